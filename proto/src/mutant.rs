//! Cores that break a rule on purpose, to see that the checkers of the simulator notice. Test-only:
//! nothing of this exists without the feature `mutants`, which no build of a node has.

use crate::obligation::Obligation;
use crate::polarity::Judgement;
use crate::record::{Escalation, EscalationReason, Role, num_key, split_cell_key, to_json};
use crate::safe_action::{SafeAction, SafeEffect};
use crate::step::{Ctx, Staging};
use crate::store::Table;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What a mutated core does wrong. The rule in brackets is the one it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mutant {
    /// Takes what is inadmissible under custody (AC-1).
    TakesInadmissible,
    /// Escalates what is best effort (AC-1).
    EscalatesBestEffort,
    /// Issues without the pending record (AB-1, PS-1).
    SkipsPending,
    /// Issues a revocation without withholding here (AB-1).
    SkipsWithholding,
    /// Makes a second transfer of an id that comes again (AB-1, TS-1).
    IssuesTwice,
    /// Retries beyond its budget (AB-2).
    IgnoresBudget,
    /// Does not count its retries durably, so that a crash refills the budget (AB-2).
    SkipsAttempts,
    /// Counts the deadline from the restart (AB-2, seen as AB-4).
    MovesDeadline,
    /// Lets a deferral move the deadline (DF-1, seen as AB-4).
    DeferralExtends,
    /// Loads nothing at a restart (deliver-or-report).
    ForgetsPending,
    /// Loses the alarm of a deadline (deliver-or-report).
    LosesDeadline,
    /// Escalates at half the deadline (AB-4).
    EscalatesEarly,
    /// Escalates without `safe(O)` (AB-4).
    EscalatesUnsafe,
    /// Escalates without an item in the inbox (AB-4).
    EscalatesUnfiled,
    /// Files two items for one escalation (AB-4).
    EscalatesTwice,
    /// Applies `safe(O)` twice (AB-4).
    SafeTwice,
    /// Forgets escalations nobody has seen (AB-4).
    InboxForgets,
    /// Neither applies the fail-safe of a decline nor surfaces it (DC-1).
    DeclineUnprotected,
    /// Takes a decline for an application (AB-3, PS-1).
    DeclineIsApplied,
    /// Takes a decline that comes after the deadline at its word (DC-1).
    DeclinePastDeadline,
    /// Lets an `applied` that comes late overwrite an escalation (TS-1).
    LateReopens,
    /// Does not file an `applied` that comes late (TS-1).
    LateUnfiled,
    /// Files an `applied` that comes late each time it comes (TS-1).
    LateFiledAgain,
    /// Lets `safe(O)` of an older decision win over a newer one (SG-1).
    IgnoresGuardHere,
    /// Applies an older decision over a newer one (SG-2).
    IgnoresGuardThere,
    /// Applies without a ledger entry (LE-1).
    SkipsLedger,
    /// Writes a ledger entry without the effect (LE-1).
    SkipsEffect,
    /// Does not ask the ledger, and applies a redelivery again (AB-3).
    AppliesAgain,
    /// Does not see what is not durable yet (AB-3).
    OverlooksStaged,
    /// Applies near and past the deadline (DL-1).
    AppliesLate,
    /// Acknowledges what it has only received (PS-1).
    AcksReceipt,
    /// Asks a handler without a durable intent (PS-1).
    SkipsIntent,
    /// Declines what may have had its effect (DC-1).
    DeclinesDoubt,
    /// Forgets its ledger before the deadline (LE-1).
    LedgerForgets,
    /// Applies best effort each time it comes (AB-3).
    BestEffortAgain,
    /// Offers beyond the window (BD-1).
    IgnoresWindow,
    /// Takes more than may be pending (BD-1).
    IgnoresFull,
    /// Does not offer again (converges).
    StopsRetrying,
    /// A driver that releases outputs before their commit is durable (PS-1).
    ReleasesEarly,
    /// A driver that goes on after a commit that failed (PS-1).
    IgnoresFailure,
    /// A driver that takes it for an ack that a relay has an object (AB-3, PS-1).
    RelayIsAck,
}

impl Mutant {
    /// All there are.
    pub const ALL: [Self; 41] = [
        Self::TakesInadmissible,
        Self::EscalatesBestEffort,
        Self::SkipsPending,
        Self::SkipsWithholding,
        Self::IssuesTwice,
        Self::IgnoresBudget,
        Self::SkipsAttempts,
        Self::MovesDeadline,
        Self::DeferralExtends,
        Self::ForgetsPending,
        Self::LosesDeadline,
        Self::EscalatesEarly,
        Self::EscalatesUnsafe,
        Self::EscalatesUnfiled,
        Self::EscalatesTwice,
        Self::SafeTwice,
        Self::InboxForgets,
        Self::DeclineUnprotected,
        Self::DeclineIsApplied,
        Self::DeclinePastDeadline,
        Self::LateReopens,
        Self::LateUnfiled,
        Self::LateFiledAgain,
        Self::IgnoresGuardHere,
        Self::IgnoresGuardThere,
        Self::SkipsLedger,
        Self::SkipsEffect,
        Self::AppliesAgain,
        Self::OverlooksStaged,
        Self::AppliesLate,
        Self::AcksReceipt,
        Self::SkipsIntent,
        Self::DeclinesDoubt,
        Self::LedgerForgets,
        Self::BestEffortAgain,
        Self::IgnoresWindow,
        Self::IgnoresFull,
        Self::StopsRetrying,
        Self::ReleasesEarly,
        Self::IgnoresFailure,
        Self::RelayIsAck,
    ];
}

impl Staging {
    /// Whether a write is one the mutant leaves out.
    pub(crate) fn skips(&self, table: Table, key: &Bytes, value: Option<&Bytes>) -> bool {
        let Some(mutant) = self.mutant.filter(|_| value.is_some()) else { return false };
        let role = || split_cell_key(key).map(|named| named.0);
        match mutant {
            Mutant::SkipsPending => table == Table::Pending,
            Mutant::SkipsAttempts => table == Table::Attempt,
            Mutant::SkipsLedger => table == Table::Ledger,
            Mutant::SkipsIntent => table == Table::Intent,
            Mutant::EscalatesUnfiled => table == Table::Escalation,
            Mutant::SkipsEffect => table == Table::Cell && role() == Some(Role::Receiver),
            Mutant::SkipsWithholding => table == Table::Cell && role() == Some(Role::Principal),
            _ => false,
        }
    }
}

impl Ctx<'_> {
    /// Whether the core is this mutant.
    pub(crate) fn is(&self, mutant: Mutant) -> bool {
        self.staging.mutant == Some(mutant)
    }

    /// Whether a fail-safe is to be left out: that of an escalation.
    pub(crate) fn skips_safe(&self, action: &SafeAction) -> bool {
        self.is(Mutant::EscalatesUnsafe) && !action.rationale.as_str().starts_with("declined")
    }

    /// Files an escalation of a best-effort obligation, which has none.
    pub(crate) fn escalate_best_effort(&mut self, obligation: &Obligation, judged: &Judgement) {
        let effect = SafeEffect::FailClosed { scope: judged.key.clone() };
        let (obligation_id, target) = (obligation.id.clone(), obligation.target.clone());
        let escalation = Escalation {
            obligation_id: obligation_id.clone(),
            kind: obligation.kind.clone(),
            target: target.clone(),
            reason: EscalationReason::Unreachable,
            at_ms: self.now.as_ms(),
            deadline_at_ms: obligation.deadline_at().as_ms(),
            retries: 0,
            safe_action: SafeAction {
                obligation_id,
                target,
                effect,
                rationale: crate::ack::Reason::new("a mutant"),
                sequence: obligation.sequence,
            },
            safe_action_applied: false,
            acknowledged_at_ms: None,
            delivered_at_ms: None,
            outlived: false,
        };
        self.put(Table::Escalation, num_key(1 << 40), to_json(&escalation));
    }
}
