//! What is checked: how many obligations, which receiver, and what may go wrong how often.

use super::rules::Rule;
use crate::node::EPOCH_MS;
use crate::{Options, draft};
use proto::backoff::Backoff;
use proto::custodian::Draft;
use proto::settings::Settings;
use proto::time::Time;
use serde::Serialize;
use serde_json::json;

/// Milliseconds in one tick of the paper's clock.
pub(super) const TICK_MS: u64 = 1_000;
/// When the last look happens: long after every deadline, when the ledger has been pruned.
const LATER_MS: u64 = 120_000;
/// Kind of all obligations: a lower weight is admissible, a higher one is benign.
const KIND: &str = "phala.belief_update";
/// Obligations of one run at most.
pub const ITEMS_MAX: usize = 6;

/// How often something may happen in one run; none: any number of times.
pub type Budget = Option<u8>;

/// What is checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// Admissible obligations.
    pub admissible: usize,
    /// Benign obligations, sent best effort.
    pub benign: usize,
    /// Deadline, in ticks.
    pub deadline: u8,
    /// Retry budget.
    pub max_retries: u32,
    /// Longest delay between two retries, in ticks; the first is one tick.
    pub backoff_cap: u8,
    /// How the receiver has effects.
    pub receiver: Receiving,
    /// Whether a decline is put before the principal, and no fail-safe applied of itself.
    pub surface: bool,
    /// Crashes of the custodian.
    pub custodian_crashes: Budget,
    /// Crashes of the receiver.
    pub receiver_crashes: Budget,
    /// Connections lost without a crash.
    pub breaks: Budget,
    /// Commits on their way to the disk while further inputs are handled; 0: each input is
    /// committed before the next is handled.
    pub in_flight: usize,
    /// Whether alarms may go off late.
    pub late_alarms: bool,
    /// Whether states that differ in which of several like obligations did what count as one.
    pub symmetry: bool,
    /// Whether nothing is reduced: see the module's documentation.
    pub exact: bool,
    /// A rule the cores break on purpose.
    #[cfg(feature = "mutants")]
    pub mutant: Option<proto::mutant::Mutant>,
    /// The one rule that is held against the states, if not all are.
    pub watch: Option<Rule>,
}

/// How the receiver has effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Receiving {
    /// It applies whatever is in time.
    BuiltIn,
    /// An external handler applies or declines.
    Declining,
    /// An external handler applies, declines, defers or is not reached.
    Deferring,
    /// The same, and sometimes nobody can say whether it applied until a person looks.
    InDoubt,
}

impl Receiving {
    /// Whether a handler decides.
    #[must_use]
    pub const fn external(self) -> bool {
        !matches!(self, Self::BuiltIn)
    }

    /// Whether it has answers that are not its last.
    #[must_use]
    pub const fn defers(self) -> bool {
        matches!(self, Self::Deferring | Self::InDoubt)
    }
}

impl Setup {
    /// The bounds of the paper's TLA+ model (`Abhyasa.cfg`): four obligations, three of them
    /// admissible, four retries, a deadline of six ticks, no crashes, a receiver that may decline,
    /// and no fail-safe for that.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            admissible: 3,
            benign: 1,
            deadline: 6,
            max_retries: 4,
            backoff_cap: 1,
            receiver: Receiving::Declining,
            surface: true,
            custodian_crashes: Some(0),
            receiver_crashes: Some(0),
            breaks: Some(0),
            in_flight: 0,
            late_alarms: false,
            symmetry: true,
            exact: false,
            #[cfg(feature = "mutants")]
            mutant: None,
            watch: None,
        }
    }

    /// The same with crashes of both sides and lost connections, any number of them.
    #[must_use]
    pub const fn crashing() -> Self {
        Self {
            receiver: Receiving::BuiltIn,
            surface: false,
            custodian_crashes: None,
            receiver_crashes: None,
            breaks: None,
            ..Self::paper()
        }
    }

    /// Obligations in all.
    #[must_use]
    pub const fn items(&self) -> usize {
        self.admissible + self.benign
    }

    /// Whether each copy of an offer or ack arrives by itself.
    pub(super) const fn singly(&self) -> bool {
        self.exact || self.receiver.defers()
    }

    /// Whether a state is known by all there is in it: nothing sums up what a commit on its way holds.
    pub(super) const fn is_known_exactly(&self) -> bool {
        self.exact || self.in_flight > 0
    }

    /// What is reduced.
    #[must_use]
    pub fn reductions(&self) -> Vec<&'static str> {
        if self.exact {
            return Vec::new();
        }
        let mut all = vec![
            "alarms that write and send nothing go off at once",
            "a copy of what the ledger has is answered at once",
        ];
        if !self.is_known_exactly() {
            all.push("copies, refs and sessions that nothing can tell apart count as one");
            if self.symmetry {
                all.push("like obligations count as one");
            }
        }
        if !self.receiver.defers() {
            all.push("copies of an offer, and acks that say the same, arrive together");
        }
        if !self.receiver.external() {
            all.push("recovery that writes and sends nothing is done at once");
        }
        all
    }

    /// Why this cannot be checked, if it cannot.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.items() == 0 || self.items() > ITEMS_MAX {
            return Some(format!("between 1 and {ITEMS_MAX} obligations, not {}", self.items()));
        }
        if self.deadline == 0 || self.backoff_cap == 0 || self.backoff_cap >= self.deadline {
            return Some("0 < backoff cap < deadline".to_owned());
        }
        if u64::from(self.deadline) * TICK_MS >= LATER_MS / 2 {
            return Some(format!("all deadlines lie within {} ticks", LATER_MS / 2 / TICK_MS));
        }
        None
    }

    /// The tick of the last look, when everything may have been forgotten.
    pub(super) const fn later(&self) -> u8 {
        self.deadline + 1
    }

    /// What the clocks say at a tick.
    pub(super) fn clock(&self, tick: u8) -> Time {
        let ms = if tick < self.later() { u64::from(tick) * TICK_MS } else { LATER_MS };
        Time::from_ms(EPOCH_MS + ms)
    }

    /// The first tick at which the clocks have reached `time`.
    pub(super) fn tick_of(&self, time: Time) -> u8 {
        (0..=self.later()).find(|tick| self.clock(*tick) >= time).unwrap_or(u8::MAX)
    }

    /// What the custodian (0) or the receiver (1) is told.
    pub(super) fn settings(&self, node: usize) -> Option<Settings> {
        let options = Options {
            deadline_s: u64::from(self.deadline) * TICK_MS / 1_000,
            backoff: Backoff {
                base_ms: TICK_MS,
                cap_ms: u64::from(self.backoff_cap) * TICK_MS,
                jitter_permille: 0,
            },
            retries: Some(self.max_retries),
            surface: self.surface,
            external: if self.receiver.external() { vec![KIND.to_owned()] } else { Vec::new() },
            ..Options::quiet(1)
        };
        options.settings(node)
    }

    /// Obligation `item`, the admissible ones first, each with a governed key of its own.
    pub(super) fn draft(&self, item: usize) -> Draft {
        let id = Self::name(item);
        let delta = if self.is_admissible(item) { -0.1 } else { 0.1 };
        let payload = json!({"weight_delta": delta, "weight_key": format!("route-{item}")});
        draft(&id, KIND, "b", &payload)
    }

    /// Whether obligation `item` is admissible.
    pub(super) const fn is_admissible(&self, item: usize) -> bool {
        item < self.admissible
    }

    /// The id of obligation `item`.
    pub(super) fn name(item: usize) -> String {
        format!("o{}", item + 1)
    }
}
