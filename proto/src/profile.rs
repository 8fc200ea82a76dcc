//! Delivery profile of a kind: deadline, retry budget, backoff, and what a decline does.

use crate::backoff::Backoff;
use crate::limits::{DEADLINE_SECONDS_MAX, RETRIES_MAX};

/// What the custodian does when the receiver declined (a decline discharges delivery, not
/// protection).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDecline {
    /// Apply `safe(O)` to principal-side state.
    #[default]
    Apply,
    /// Surface the decline and its reason for the principal's own decision.
    Surface,
}

/// How one kind is carried under custody. A value of this type is coherent: its retries span its
/// deadline (AB-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    deadline_ms: u64,
    max_retries: u32,
    backoff: Backoff,
    /// What a decline does.
    pub on_decline: OnDecline,
}

/// Why a profile is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Deadline of zero or beyond the limit.
    #[error("deadline of {given_ms} ms is not between 1 ms and {max_seconds} s")]
    Deadline {
        /// Given, in milliseconds.
        given_ms: u64,
        /// Limit, in seconds.
        max_seconds: u64,
    },
    /// Backoff base of zero, cap below base, or jitter of everything.
    #[error(
        "backoff needs 1 <= base <= cap and jitter below 1000 permille; base is {base_ms} ms, cap {cap_ms} ms, jitter {jitter_permille}"
    )]
    Backoff {
        /// Given base.
        base_ms: u64,
        /// Given cap.
        cap_ms: u64,
        /// Given jitter.
        jitter_permille: u16,
    },
    /// The cap is not below the deadline, so that no retry would be left inside it.
    #[error("backoff cap of {cap_ms} ms must be below the deadline of {deadline_ms} ms (AB-2)")]
    CapPastDeadline {
        /// Given cap.
        cap_ms: u64,
        /// Given deadline.
        deadline_ms: u64,
    },
    /// The budget would run out before the deadline.
    #[error(
        "{given} retries cannot span a deadline of {deadline_ms} ms with this backoff: it takes {needed} (AB-2)"
    )]
    RetriesTooFew {
        /// Given budget.
        given: u32,
        /// Budget it takes.
        needed: u64,
        /// The deadline to span.
        deadline_ms: u64,
    },
    /// The budget is over the limit.
    #[error("{given} retries are over the limit of {max}")]
    RetriesTooMany {
        /// Given budget.
        given: u32,
        /// Limit.
        max: u32,
    },
}

impl Profile {
    /// A profile, checked.
    ///
    /// ```
    /// # use abhyasa_proto::{backoff::Backoff, profile::{Profile, ProfileError}};
    /// let backoff = Backoff { base_ms: 1_000, cap_ms: 64_000, jitter_permille: 0 };
    /// assert!(Profile::new(600_000, 15, backoff).is_ok());
    /// assert!(matches!(
    ///     Profile::new(600_000, 14, backoff),
    ///     Err(ProfileError::RetriesTooFew { given: 14, needed: 15, .. })
    /// ));
    /// ```
    ///
    /// # Errors
    /// [`ProfileError`]: incoherent values are refused, with the number of retries it would take.
    //= AB-2
    pub fn new(deadline_ms: u64, max_retries: u32, backoff: Backoff) -> Result<Self, ProfileError> {
        let Backoff { base_ms, cap_ms, jitter_permille } = backoff;
        if deadline_ms == 0 || deadline_ms > DEADLINE_SECONDS_MAX * 1000 {
            return Err(ProfileError::Deadline {
                given_ms: deadline_ms,
                max_seconds: DEADLINE_SECONDS_MAX,
            });
        }
        if base_ms == 0 || cap_ms < base_ms || jitter_permille >= 1000 {
            return Err(ProfileError::Backoff { base_ms, cap_ms, jitter_permille });
        }
        if cap_ms >= deadline_ms {
            return Err(ProfileError::CapPastDeadline { cap_ms, deadline_ms });
        }
        if max_retries > RETRIES_MAX {
            return Err(ProfileError::RetriesTooMany { given: max_retries, max: RETRIES_MAX });
        }
        let needed = backoff.retries_needed(deadline_ms);
        if u64::from(max_retries) < needed {
            return Err(ProfileError::RetriesTooFew { given: max_retries, needed, deadline_ms });
        }
        Ok(Self::unchecked(deadline_ms, max_retries, backoff))
    }

    /// A profile whose budget may end before its deadline, to study exhaustion (AB-4 fires at
    /// whichever comes first). A node's configuration never makes one.
    #[must_use]
    pub const fn unchecked(deadline_ms: u64, max_retries: u32, backoff: Backoff) -> Self {
        Self { deadline_ms, max_retries, backoff, on_decline: OnDecline::Apply }
    }

    /// The deadline, in milliseconds from issue.
    #[must_use]
    pub const fn deadline_ms(&self) -> u64 {
        self.deadline_ms
    }

    /// The retry budget.
    #[must_use]
    pub const fn max_retries(&self) -> u32 {
        self.max_retries
    }

    /// The retry schedule.
    #[must_use]
    pub const fn backoff(&self) -> Backoff {
        self.backoff
    }

    /// The profile of one obligation that brings its own deadline or budget.
    ///
    /// # Errors
    /// As [`Profile::new`]; a cap that is not below a short deadline is halved into it rather
    /// than refused, since the caller chose the deadline and not the cap.
    pub fn with(
        &self,
        deadline_ms: Option<u64>,
        max_retries: Option<u32>,
    ) -> Result<Self, ProfileError> {
        if deadline_ms.is_none() && max_retries.is_none() {
            return Ok(*self);
        }
        let deadline_ms = deadline_ms.unwrap_or(self.deadline_ms);
        let mut backoff = self.backoff;
        if backoff.cap_ms >= deadline_ms {
            backoff.cap_ms = (deadline_ms / 4).max(1);
            backoff.base_ms = backoff.base_ms.min((deadline_ms / 16).max(1));
        }
        let needed = u32::try_from(backoff.retries_needed(deadline_ms)).unwrap_or(u32::MAX);
        let max_retries = max_retries.unwrap_or_else(|| self.max_retries.max(needed));
        let profile = Self::new(deadline_ms, max_retries, backoff)?;
        Ok(Self { on_decline: self.on_decline, ..profile })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { base_ms: 1_000, cap_ms: 60_000, jitter_permille: 200 };

    #[test]
    fn ab2_incoherent_profiles_are_refused_with_the_number_they_need() {
        let Err(ProfileError::RetriesTooFew { needed, .. }) = Profile::new(3_600_000, 3, BACKOFF)
        else {
            panic!("accepted");
        };
        let needed = u32::try_from(needed).unwrap();
        assert!(Profile::new(3_600_000, needed, BACKOFF).is_ok());
        assert!(Profile::new(3_600_000, needed - 1, BACKOFF).is_err());
        assert!(matches!(
            Profile::new(60_000, 99, BACKOFF),
            Err(ProfileError::CapPastDeadline { .. })
        ));
        assert!(Profile::new(0, 99, BACKOFF).is_err());
        assert!(Profile::new(90_000, 99, Backoff { base_ms: 0, ..BACKOFF }).is_err());
    }

    #[test]
    fn ab2_a_short_deadline_keeps_several_attempts_inside_it() {
        let profile = Profile::new(3_600_000, 80, BACKOFF).unwrap();
        let short = profile.with(Some(4_000), None).unwrap();
        assert!(short.backoff().cap_ms <= 1_000);
        assert!(profile.with(Some(7_200_000), Some(3)).is_err());
    }
}
