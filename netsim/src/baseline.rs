//! The policies custody is compared with, as small machines on the same scenario.
//!
//! A baseline runs on the [`Options`] of a custody run: the same links with the same randomness, the
//! same faults at the same times, the same obligations issued at the same moments by clients that ask
//! until they are answered, the same disks and the same decisions of the receivers' handlers. What
//! differs is in [`Traits`], a few yes-or-nos:
//!
//! | policy | repeats | answer | sender's memory | receiver's memory | principal told |
//! |---|---|---|---|---|---|
//! | best-effort-datagram | no | none | none | none | never |
//! | best-effort-stream | packets, while the connection lives | none | none | none | never |
//! | at-least-once | until answered or the deadline | application | lost in a crash | durable | of answers |
//! | retry-without-dedup | the same | application | lost in a crash | none | of answers |
//! | one-shot-push | packets, while the connection lives | receipt | none | none | never; errors are logged |
//! | receipt-ack | until answered or the deadline | receipt | durable | durable | of answers, escalations |
//! | volatile-ledger | until answered or the deadline | application | durable | lost in a crash | of answers, escalations |
//!
//! Where a choice is open it is made in favour of the baseline: duplicates of packets are dropped by the
//! transport, as QUIC does; every effect is written to disk before it counts; what is pending is sent at
//! once on a new connection; a handler that says "later" to a policy without answers is asked again by
//! the receiver; all but the two without a receiver's memory name the id to external systems as an
//! idempotency key.
//!
//! Left out: order (a baseline applies what comes, also an older decision after a newer one), clients
//! that issue again what was answered, inadmissible obligations, clocks, noise and address changes, which
//! change nothing here.

mod conn;
mod disk;
mod faults;
mod receiver;
mod sender;
mod sim;

use crate::options::Options;
use crate::run::Report;
use crate::scenario::Policy;

/// What the receiver's answer stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    None,
    /// The bytes have come.
    Receipt,
    /// The effect is durable.
    Application,
}

/// What the receiver remembers of what it applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ledger {
    None,
    Memory,
    Durable,
}

/// What makes a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "yes-or-nos are what they are")]
struct Traits {
    /// Sent again by the sender until it is answered, or its deadline has passed.
    retries: bool,
    answer: Answer,
    /// What is pending survives a crash of the sender, and a call is answered only then.
    durable: bool,
    ledger: Ledger,
    /// At the deadline the principal is told; the receiver applies nothing past it.
    fail_safe: bool,
    /// An unanswered one leaves a line in a log.
    logs: bool,
}

impl Traits {
    /// Custody as these traits say it: what each baseline lacks something of. It loses nothing, so
    /// what a baseline loses is lost for what it lacks.
    const CUSTODY: Self = Self {
        retries: true,
        answer: Answer::Application,
        durable: true,
        ledger: Ledger::Durable,
        fail_safe: true,
        logs: false,
    };

    const fn of(policy: Policy) -> Self {
        let best_effort = Self {
            retries: false,
            answer: Answer::None,
            durable: false,
            ledger: Ledger::None,
            fail_safe: false,
            logs: false,
        };
        let at_least_once = Self { durable: false, fail_safe: false, ..Self::CUSTODY };
        match policy {
            Policy::Custody => Self::CUSTODY,
            Policy::BestEffortDatagram | Policy::BestEffortStream => best_effort,
            Policy::OneShotPush => Self { answer: Answer::Receipt, logs: true, ..best_effort },
            Policy::AtLeastOnce => at_least_once,
            Policy::RetryWithoutDedup => Self { ledger: Ledger::None, ..at_least_once },
            Policy::ReceiptAck => Self { answer: Answer::Receipt, ..Self::CUSTODY },
            Policy::VolatileLedger => Self { ledger: Ledger::Memory, ..Self::CUSTODY },
        }
    }
}

/// Runs `options` under their policy, as a small machine, to the end. Under [`Policy::Custody`] this
/// is a model of custody and not the core: a reference for the others.
#[must_use]
pub fn run(options: &Options) -> Report {
    sim::Sim::new(options.clone()).run()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;

    #[test]
    fn a_baseline_issues_what_the_core_issues_when_the_core_does() {
        for seed in 0..20 {
            let options = Options { benign_permille: 0, ..Options::swarm(seed, 60) };
            assert_eq!(sim::Sim::new(options.clone()).asks(), World::asks(options), "seed {seed}");
        }
    }
}
