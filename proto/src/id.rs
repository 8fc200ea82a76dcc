//! Checked names: a value of one of these types is proof that the text is usable.

use crate::limits::ID_LEN_MAX;

/// Why a text cannot be an id, kind, agent name or governed key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdError {
    /// Empty, or white space only.
    #[error("{what} is empty")]
    Empty {
        /// Which field.
        what: &'static str,
    },
    /// Longer than [`ID_LEN_MAX`].
    #[error("{what} of {len} bytes is over the limit of {max}")]
    TooLong {
        /// Which field.
        what: &'static str,
        /// Bytes given.
        len: usize,
        /// Bytes allowed.
        max: usize,
    },
    /// Holds a control character, which would break logs and store keys.
    #[error("{what} holds a control character at byte {at}")]
    Control {
        /// Which field.
        what: &'static str,
        /// Byte offset.
        at: usize,
    },
    /// Holds the mark that stands in derived ids only.
    #[error("{what} holds '~' at byte {at}, which marks ids derived from it")]
    Reserved {
        /// Which field.
        what: &'static str,
        /// Byte offset.
        at: usize,
    },
}

pub(crate) fn check(what: &'static str, text: &str) -> Result<(), IdError> {
    if text.len() > ID_LEN_MAX {
        return Err(IdError::TooLong { what, len: text.len(), max: ID_LEN_MAX });
    }
    // Nearly all names are printable ASCII without spaces, and need no closer look.
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(());
    }
    if text.trim().is_empty() {
        return Err(IdError::Empty { what });
    }
    if let Some((at, _)) = text.char_indices().find(|(_, c)| c.is_control()) {
        return Err(IdError::Control { what, at });
    }
    Ok(())
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            /// Checks `text`: not blank, at most [`ID_LEN_MAX`](crate::limits::ID_LEN_MAX) bytes, no control characters.
            ///
            /// # Errors
            /// [`IdError`](crate::id::IdError) says which rule it breaks.
            pub fn new(text: &str) -> Result<Self, crate::id::IdError> {
                crate::id::check($what, text)?;
                Ok(Self(text.into()))
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = crate::id::IdError;
            fn try_from(text: String) -> Result<Self, crate::id::IdError> {
                crate::id::check($what, &text)?;
                Ok(Self(text.into()))
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::id::IdError;
            fn from_str(text: &str) -> Result<Self, crate::id::IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.as_str().to_owned()
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }
    };
}

pub(crate) use checked_name;

checked_name!(
    /// Stable name of an obligation, the key of idempotent application (AB-3).
    ObligationId,
    "obligation_id"
);
checked_name!(
    /// An agent's authenticated identity, such as `spiffe://example.org/agent/a` or a DNS name.
    AgentId,
    "agent id"
);
checked_name!(
    /// Kind of an obligation, such as `anumati.consent`; picks its polarity rule.
    Kind,
    "kind"
);
checked_name!(
    /// The governed key: scope, weight key, token or target whose state an obligation sets.
    GovernedKey,
    "governed key"
);

impl ObligationId {
    /// As [`ObligationId::new`], called `what` in errors.
    pub(crate) fn named(what: &'static str, text: &str) -> Result<Self, IdError> {
        check(what, text)?;
        Ok(Self(text.into()))
    }

    /// An id put together of a checked one and printable ASCII, within the limit.
    pub(crate) fn derived(text: String) -> Self {
        debug_assert!(check("obligation_id", &text).is_ok(), "a derived id breaks a rule of ids");
        Self(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        assert!(ObligationId::new("ob-1").is_ok());
        assert_eq!(ObligationId::new("  "), Err(IdError::Empty { what: "obligation_id" }));
        assert_eq!(
            Kind::new(&"k".repeat(257)),
            Err(IdError::TooLong { what: "kind", len: 257, max: 256 })
        );
        assert_eq!(AgentId::new("a\nb"), Err(IdError::Control { what: "agent id", at: 1 }));
    }
}
