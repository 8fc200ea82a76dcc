//! What must hold: the properties of the paper's TLA+ model, by their names there, and what it has no
//! words for.

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// The machine agrees with what has happened, and a refusal leaves it as it was.
    TypeOk,
    /// S1: no skill runs but under a record that accepts, the last one.
    NoSkillWithoutConsent,
    /// S2: both chains only grow, and each new link names the one before it.
    ChainMonotonicity,
    /// S3: every event rests on the record that was the last one.
    AdherenceAnchored,
    /// S4: a skill runs only if the latest event of each of its claims permits.
    SkillRequiresPermit,
    /// S5: an action held against a disputed claim is not permitted, and no skill runs by it.
    ConditionalGating,
    /// S6: no event of the trail permits by a disputed claim.
    NoDisputedPermit,
    /// S7: no skill runs once the caller has changed, where that counts.
    NoSkillOnCapabilityDrift,
    /// No skill runs under a version of the policy that is no more, where that counts, or past its time.
    NoSkillOnStalePolicy,
    /// L1: stale consent ends in a new decision.
    EventualReConsent,
    /// L2: and also if it is the caller alone that has changed.
    EventualCapabilityReConsent,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::TypeOk,
        Self::NoSkillWithoutConsent,
        Self::ChainMonotonicity,
        Self::AdherenceAnchored,
        Self::SkillRequiresPermit,
        Self::ConditionalGating,
        Self::NoDisputedPermit,
        Self::NoSkillOnCapabilityDrift,
        Self::NoSkillOnStalePolicy,
        Self::EventualReConsent,
        Self::EventualCapabilityReConsent,
    ];

    /// Its name, as in `ConsentLifecycle.tla`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::TypeOk => "TypeOK",
            Self::NoSkillWithoutConsent => "NoSkillWithoutConsent",
            Self::ChainMonotonicity => "ChainMonotonicity",
            Self::AdherenceAnchored => "AdherenceAnchored",
            Self::SkillRequiresPermit => "SkillRequiresPermit",
            Self::ConditionalGating => "ConditionalGating",
            Self::NoDisputedPermit => "NoDisputedPermit",
            Self::NoSkillOnCapabilityDrift => "NoSkillOnCapabilityDrift",
            Self::NoSkillOnStalePolicy => "NoSkillOnStalePolicy",
            Self::EventualReConsent => "EventualReConsent",
            Self::EventualCapabilityReConsent => "EventualCapabilityReConsent",
        }
    }
}

/// A set of rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Rules(u16);

impl Rules {
    pub(super) const fn add_unless(&mut self, rule: Rule, holds: bool) {
        if !holds {
            self.0 |= 1 << rule as u16;
        }
    }

    pub(super) const fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u16) != 0
    }

    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Keeps one of them only, where only one is of interest.
    pub(super) const fn watch(&mut self, rule: Option<Rule>) {
        if let Some(rule) = rule {
            self.0 &= 1 << rule as u16;
        }
    }
}
