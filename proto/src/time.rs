//! The only notion of time in this crate: a number told by the caller.

use std::fmt;
use std::time::Duration;

/// Unix time in milliseconds, told by the driver. This crate never reads a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// The end of time: an alarm that never fires.
    pub const NEVER: Self = Self(u64::MAX);

    /// A time from unix milliseconds.
    #[must_use]
    pub const fn from_ms(ms: u64) -> Self {
        Self(ms)
    }

    /// Unix milliseconds.
    #[must_use]
    pub const fn as_ms(self) -> u64 {
        self.0
    }

    /// `delay` later, pinned at the end of time instead of wrapping.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        self.after_ms(u64::try_from(delay.as_millis()).unwrap_or(u64::MAX))
    }

    /// `ms` milliseconds later, pinned at the end of time.
    #[must_use]
    pub const fn after_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }

    /// `ms` milliseconds earlier, pinned at the epoch.
    #[must_use]
    pub const fn before_ms(self, ms: u64) -> Self {
        Self(self.0.saturating_sub(ms))
    }

    /// Milliseconds from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn ms_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Parses an RFC 3339 date-time; fractions below a millisecond are cut off.
    ///
    /// # Errors
    /// [`TimeError`] if the text is not RFC 3339 or lies before 1970.
    pub fn parse_rfc3339(text: &str) -> Result<Self, TimeError> {
        let stamp: jiff::Timestamp =
            text.parse().map_err(|_| TimeError::NotRfc3339 { len: text.len() })?;
        u64::try_from(stamp.as_millisecond()).map(Self).map_err(|_| TimeError::BeforeEpoch)
    }

    /// The RFC 3339 form in UTC, with milliseconds when there are any.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        i64::try_from(self.0)
            .ok()
            .and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok())
            .unwrap_or(jiff::Timestamp::MAX)
            .to_string()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_rfc3339())
    }
}

/// Why a text is no [`Time`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// Not a date-time of RFC 3339.
    #[error("a text of {len} bytes is not an RFC 3339 date-time such as 2026-11-30T12:00:00Z")]
    NotRfc3339 {
        /// Bytes in the text.
        len: usize,
    },
    /// Before 1970-01-01T00:00:00Z.
    #[error("the date-time lies before 1970, which no obligation does")]
    BeforeEpoch,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_round_trip_and_errors() {
        let time = Time::parse_rfc3339("2026-11-30T12:00:00.250+00:00").unwrap();
        assert_eq!(time.to_rfc3339(), "2026-11-30T12:00:00.25Z");
        assert_eq!(Time::parse_rfc3339(&time.to_rfc3339()).unwrap(), time);
        assert_eq!(Time::parse_rfc3339("1969-12-31T00:00:00Z"), Err(TimeError::BeforeEpoch));
        assert!(Time::parse_rfc3339("yesterday").is_err());
        assert_eq!(Time::NEVER.after_ms(5), Time::NEVER);
    }
}
