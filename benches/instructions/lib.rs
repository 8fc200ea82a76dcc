//! Nothing: the bench beside it is what this package is for.
