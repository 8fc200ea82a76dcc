//! Machines that break a rule on purpose, to see that the check of consent notices. Test-only: nothing
//! of this exists without the feature `mutants`, which no build of a node has.

/// What a mutated machine does wrong. The rule in brackets is the one it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// Takes a rejection for consent (S1).
    TakesRejection,
    /// Puts a new record in place of the last one (S2).
    Overwrites,
    /// Takes events that rest on another record, or on none (S3).
    TakesUnanchored,
    /// Runs skills without asking what was permitted (S4).
    SkipsPermit,
    /// Permits by a disputed claim what its constraint permits (S5).
    PermitsDisputed,
    /// Takes events that permit by a disputed claim (S6).
    TakesDisputedPermit,
    /// Does not see that the policy has a new version (S1: consent that holds).
    OverlooksBump,
    /// Does not see that the caller has changed (S7).
    OverlooksDrift,
    /// Does not let the caller fetch a policy with a new version once its consent is stale (L1).
    StuckOnBump,
    /// Does not let the caller fetch a policy that has not changed: "there is nothing new" (L2).
    StuckOnDrift,
}

impl Mutant {
    /// All there are.
    pub const ALL: [Self; 10] = [
        Self::TakesRejection,
        Self::Overwrites,
        Self::TakesUnanchored,
        Self::SkipsPermit,
        Self::PermitsDisputed,
        Self::TakesDisputedPermit,
        Self::OverlooksBump,
        Self::OverlooksDrift,
        Self::StuckOnBump,
        Self::StuckOnDrift,
    ];
}
