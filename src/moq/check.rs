//! What a relay can do of what abhyasa needs: `abhyasa moq relay-check`.
//!
//! Each check opens sessions of its own, under names of its own, so that one which a relay answers by ending the
//! session spoils no other. Every wait has a limit, and a limit that passes is an answer: "silent".

mod client;
mod ends;
mod names;
mod objects;

use serde::Serialize;
use std::pin::Pin;
use std::time::Duration;

pub(crate) use client::Relay;

/// Longest wait for one answer of the relay.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// Longest wait for the end of a subscription whose publisher fell silent. Relays notice by the idle timeout of
/// QUIC, which they set to 10 to 30 seconds.
const SILENCE_LIMIT: Duration = Duration::from_secs(45);
/// Longest time of one check, above all the waits in it.
const CHECK_LIMIT: Duration = Duration::from_secs(90);

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    /// The relay does it.
    Ok,
    /// The relay does not do it.
    Lacks,
    /// What it rests on is lacking already.
    NotAsked,
}

/// One line of the report.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Finding {
    /// Name of the check.
    pub(crate) check: &'static str,
    /// What came of it.
    pub(crate) verdict: Verdict,
    /// Whether custody through this relay rests on it.
    pub(crate) needed: bool,
    /// What was seen.
    pub(crate) saw: String,
    /// What of abhyasa does not work where this is lacking.
    pub(crate) without: &'static str,
}

/// All that was asked of a relay.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Report {
    /// The relay.
    pub(crate) relay: String,
    /// Whether all that custody needs is there.
    pub(crate) usable: bool,
    /// One for each check, in the order of asking.
    pub(crate) findings: Vec<Finding>,
}

/// What was seen, as `Ok` where the relay does it and as `Err` where not.
type Answer = Result<String, String>;
type Asking<'a> = Pin<Box<dyn Future<Output = Answer> + Send + 'a>>;

struct Check {
    name: &'static str,
    needed: bool,
    /// Checks without which this one says nothing.
    after: &'static [&'static str],
    without: &'static str,
    ask: for<'a> fn(&'a Relay) -> Asking<'a>,
}

macro_rules! checks {
    ($($name:literal $(needed $needed:tt)?, after $after:expr, $ask:path, $without:literal;)*) => {
        &[$(Check {
            name: $name,
            needed: checks!(@needed $($needed)?),
            after: &$after,
            without: $without,
            ask: |relay| Box::pin($ask(relay)),
        }),*]
    };
    (@needed) => { false };
    (@needed $needed:tt) => { true };
}

const CHECKS: &[Check] = checks! {
    "setup" needed !, after [], names::setup,
        "nothing works: no MOQT session comes about";
    "publish-namespace" needed !, after ["setup"], names::announce,
        "nothing works: a node cannot make its tracks known";
    "second-namespace" needed !, after ["publish-namespace"], names::announce_second,
        "a node that reconnects, or has more sessions than one, cannot announce itself again";
    "same-namespace" , after ["publish-namespace"], names::announce_same,
        "nothing of abhyasa: no two sessions announce one namespace";
    "watch-then-announce" needed !, after ["publish-namespace"], names::watch_then_announce,
        "a node that is there first never learns of those that come later";
    "announce-then-watch" needed !, after ["publish-namespace"], names::announce_then_watch,
        "a node that comes later never learns of those that are there";
    "watch-all" , after ["publish-namespace"], names::watch_all,
        "watchers of all nodes must name each node";
    "namespace-done" , after ["watch-then-announce"], names::withdrawn,
        "subscriptions to a node that left end only with their tracks";
    "namespace-done-at-death" , after ["watch-then-announce"], names::withdrawn_by_death,
        "subscriptions to a node that died end only with their tracks";
    "subscribe" needed !, after ["publish-namespace"], names::subscribe,
        "nothing works: no track can be had";
    "routing" needed !, after ["subscribe", "second-namespace"], names::routing,
        "tracks of a node's older sessions would be asked of newer ones, and refused";
    "unknown-namespace" needed !, after ["setup"], ends::unknown_namespace,
        "a subscription to a node that is gone hangs, and holds one of 128 places";
    "unknown-track" needed !, after ["subscribe"], ends::unknown_track,
        "a node's refusal of a track does not reach who asked";
    "rendezvous" , after ["subscribe"], ends::rendezvous,
        "who subscribes before the namespace is announced must ask again";
    "groups" needed !, after ["subscribe"], objects::groups,
        "batches get lost or altered, and every one of them waits for a retry";
    "burst" , after ["groups"], objects::burst,
        "of what is sent at once some is lost, and waits for a retry";
    "early-groups" , after ["groups"], objects::early,
        "what is sent the moment a subscription comes is lost in part, and waits for a retry";
    "priorities" , after ["subscribe"], objects::priorities,
        "acks do not overtake bulk beyond the relay";
    "object-48KiB" needed !, after ["subscribe"], objects::batch,
        "batches of custody do not pass";
    "object-1MiB" , after ["subscribe"], objects::large,
        "large messages of MCP and A2A do not pass";
    "fan-out" , after ["subscribe"], objects::fan_out,
        "an obligation to a group costs the custodian one object for each member, as unicast does";
    "first-group" , after ["subscribe"], objects::first_group,
        "nothing of abhyasa: the first group of a track that many read stays open, and reaches all of them";
    "late-subscriber" , after ["subscribe"], objects::late,
        "who subscribes to a track that others have already gets nothing of it";
    "fetch" , after ["subscribe"], objects::fetch,
        "a hole in an MCP control track cannot be mended, and late joiners get no snapshot";
    "fetch-read" , after ["groups"], objects::fetch_read,
        "a hole in a track cannot be mended from the relay, nor from the publisher while it publishes";
    "publish" , after ["subscribe"], objects::publish,
        "MCP's names of two publishers in one namespace cannot be used; a field for the role is added";
    "publisher-closes" , after ["subscribe"], ends::publisher_closes,
        "subscribers learn that a node left only by its namespace";
    "publisher-silent" , after ["subscribe"], ends::publisher_silent,
        "subscribers learn that a node died only by its namespace";
    "subscriptions-160" , after ["subscribe"], ends::many_subscriptions,
        "more sessions are needed: one for each so many tracks";
    "publisher-129th" , after ["subscribe"], ends::many_at_one_publisher,
        "a node that more than 128 tracks are asked of leaves askers waiting";
    "path-scope" , after ["subscribe"], ends::scope,
        "tenants on one relay see each other's namespaces";
};

/// The names of all checks.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    CHECKS.iter().map(|check| check.name)
}

/// Asks of a relay what `asked` takes by name, one check after the other; `seen` gets each finding at once.
pub(crate) async fn check(
    relay: &Relay,
    asked: impl Fn(&str) -> bool,
    mut seen: impl FnMut(&Finding),
) -> Report {
    let mut findings: Vec<Finding> = Vec::new();
    for check in CHECKS.iter().filter(|check| asked(check.name)) {
        let lacking = check.after.iter().find(|name| {
            findings.iter().any(|found| found.check == **name && found.verdict != Verdict::Ok)
        });
        let (verdict, saw) = match lacking {
            Some(name) => (Verdict::NotAsked, format!("{name} is lacking")),
            None => match tokio::time::timeout(CHECK_LIMIT, (check.ask)(relay)).await {
                Ok(Ok(saw)) => (Verdict::Ok, saw),
                Ok(Err(saw)) => (Verdict::Lacks, saw),
                Err(_) => (Verdict::Lacks, format!("no end within {} s", CHECK_LIMIT.as_secs())),
            },
        };
        tokio::time::sleep(client::SETTLE).await;
        let Check { name, needed, without, .. } = *check;
        let finding = Finding { check: name, verdict, needed, saw, without };
        seen(&finding);
        findings.push(finding);
    }
    let usable = findings.iter().all(|found| !found.needed || found.verdict == Verdict::Ok);
    Report { relay: relay.url().to_string(), usable, findings }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_name_of_its_own_and_rests_on_earlier_ones() {
        let mut before: Vec<&str> = Vec::new();
        for check in CHECKS {
            assert!(!before.contains(&check.name), "{} is there twice", check.name);
            for name in check.after {
                assert!(
                    before.contains(name),
                    "{} rests on {name}, which is not before it",
                    check.name
                );
                let rests = CHECKS.iter().find(|other| other.name == *name).unwrap();
                assert!(!check.needed || rests.needed, "{} is needed and {name} not", check.name);
            }
            before.push(check.name);
        }
    }
}
