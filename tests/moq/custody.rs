//! Custody over tracks: what goes by the native binding goes by them, with no other outcome.

use crate::common::relay::{Kind, Relay};
use crate::common::*;
use abhyasa::config::NodeConfig;
use abhyasa::demo::api::{nano, text};
use abhyasa::demo::stage::{ALICE, BOB, Stage};
use abhyasa::loopback::free_address;
use abhyasa::node::{Node, NodeHandle};
use proto::custodian::Draft;
use proto::fanout::GroupId;
use proto::record::{Role, Terminal};
use proto::track::{GroupName, part_of};
use std::path::Path;
use std::time::Duration;

const BY_MOQT: &str = "[moq]\nenabled = true\n";

/// Alice and Bob, who deal with each other over MOQT directly: Alice dials.
fn direct(world: &World) -> (NodeConfig, NodeConfig) {
    let at_bob = free_address().unwrap();
    let to_bob = format!("{BY_MOQT}{}binding = \"moqt\"\n", peer_toml("bob", Some(at_bob)));
    let to_alice = format!("{BY_MOQT}{}binding = \"moqt\"\n", peer_toml("alice", None));
    (world.config("alice", &to_bob), world.config_at("bob", at_bob, &to_alice))
}

/// Alice and Bob, who meet at a relay.
fn by_relay(world: &World, relay: &Relay) -> (NodeConfig, NodeConfig) {
    let relays = format!(
        "[[relays]]\nname = \"r\"\nurl = \"{}\"\nca = \"{}\"\n",
        relay.url("/test"),
        relay.ca.display()
    );
    let with = |name| format!("{relays}{}relay = \"r\"\n", peer_toml(name, None));
    (world.config("alice", &with("bob")), world.config("bob", &with("alice")))
}

async fn both_ways(alice: &NodeHandle, bob: &NodeHandle) {
    issue(alice, revoke("r", "bob", "calendar")).await;
    issue(alice, move_weight("w", "bob", "route", -0.25)).await;
    issue(bob, revoke("r", "alice", "mail")).await;
    for name in ["r", "w"] {
        ends(alice, name, Terminal::Applied).await;
    }
    ends(bob, "r", Terminal::Applied).await;
    assert_eq!(granted(bob.store(), Role::Receiver, "alice", "calendar"), Some(false));
    assert_eq!(weight(bob.store(), Role::Receiver, "alice", "route"), Some(250_000_000));
    assert_eq!(granted(alice.store(), Role::Receiver, "bob", "mail"), Some(false));
    assert!(!issue(alice, move_weight("up", "bob", "route", 0.125)).await.custody);
    eventually("best effort", async || {
        (weight(bob.store(), Role::Receiver, "alice", "route") == Some(375_000_000)).then_some(())
    })
    .await;
}

async fn many(alice: &NodeHandle, from: usize, to: usize) {
    for first in (from..to).step_by(500) {
        let drafts =
            (first..to.min(first + 500)).map(|n| revoke(&format!("m{n}"), "bob", &format!("s{n}")));
        assert!(alice.issue(drafts.collect()).await.unwrap().iter().all(Result::is_ok));
    }
    for n in from..to {
        ends(alice, &format!("m{n}"), Terminal::Applied).await;
    }
}

async fn started(alice: NodeConfig, bob: NodeConfig) -> (Node, Node) {
    let (alice, bob) = (start(alice).await, start(bob).await);
    connected(&alice.handle(), 1).await;
    connected(&bob.handle(), 1).await;
    (alice, bob)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_obligations_are_applied_both_ways_over_a_direct_session() {
    let world = World::new();
    let (alice, bob) = direct(&world);
    let (a, b) = started(alice, bob).await;
    both_ways(&a.handle(), &b.handle()).await;
    many(&a.handle(), 0, 3_000).await;
    assert_eq!((a.handle().pending(), b.handle().pending()), (0, 0));
    a.stop().await.unwrap();
    b.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab2_a_restarted_peer_is_met_again_under_a_new_epoch() {
    let world = World::new();
    let (alice, bob) = direct(&world);
    let (a, b) = started(alice, bob.clone()).await;
    many(&a.handle(), 0, 10).await;
    b.stop().await.unwrap();
    eventually("down", async || (a.handle().peers()[0].sessions == 0).then_some(())).await;
    issue(&a.handle(), revoke("late", "bob", "x")).await;
    let b = start(bob).await;
    ends(&a.handle(), "late", Terminal::Applied).await;
    many(&a.handle(), 10, 20).await;
    a.stop().await.unwrap();
    b.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_obligations_are_applied_both_ways_by_relays() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let (alice, bob) = by_relay(&world, &relay);
        let (a, b) = started(alice, bob).await;
        both_ways(&a.handle(), &b.handle()).await;
        many(&a.handle(), 0, 1_000).await;
        assert_eq!((a.handle().pending(), b.handle().pending()), (0, 0), "{kind:?}");
        a.stop().await.unwrap();
        b.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab2_a_relay_that_dies_between_offer_and_ack_costs_a_retry_and_no_more() {
    for kind in Kind::all() {
        let world = World::new();
        let mut relay = Relay::start(&world, kind).await;
        let (alice, bob) = by_relay(&world, &relay);
        let (a, b) = started(alice, bob).await;
        many(&a.handle(), 0, 10).await;
        let drafts = (0..200).map(|n| move_weight(&format!("w{n}"), "bob", "route", -0.0001));
        assert!(a.handle().issue(drafts.collect()).await.unwrap().iter().all(Result::is_ok));
        relay.kill();
        tokio::time::sleep(Duration::from_millis(300)).await;
        relay.restart().await;
        for n in 0..200 {
            ends(&a.handle(), &format!("w{n}"), Terminal::Applied).await;
        }
        // AB-3: each was applied once, however often it was offered.
        assert_eq!(
            weight(b.handle().store(), Role::Receiver, "alice", "route"),
            Some(500_000_000 - 200 * 100_000),
            "{kind:?}"
        );
        a.stop().await.unwrap();
        b.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_a_target_killed_between_apply_and_ack_applies_once() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let program = Path::new(env!("CARGO_BIN_EXE_abhyasa"));
        let mut stage = Stage::set(program, 1, "").await.unwrap();
        stage.meet_at(&relay.url("/test"), &relay.ca).await.unwrap();
        let mut deaths = 0;
        // The process dies just after its n-th commit: as it starts, or with the effect durable and no ack sent.
        for point in 1..=4 {
            stage.bob.start(Some(&format!("abort-after@{point}"))).unwrap();
            let correction = serde_json::json!({
                "kind": BELIEF, "target": BOB,
                "payload": { "weight_delta": -0.01, "weight_key": "route" },
            });
            let issued = stage.alice.api.issue(&correction).await.unwrap();
            let ended = within(Duration::from_secs(60), "an end, or a death", async || {
                let status = stage.alice.api.status(&issued.obligation_id).await.unwrap();
                let ended = text(&status, "state") == "applied";
                (ended || stage.bob.exited().unwrap().is_some()).then_some(ended)
            });
            if !ended.await {
                deaths += 1;
                stage.bob.start(None).unwrap();
                stage.bob.ready().await.unwrap();
            }
            let end = stage.alice.api.ended(&issued.obligation_id, PATIENCE).await.unwrap();
            assert_eq!(text(&end, "state"), "applied", "{kind:?} {point}");
            let weight = stage.bob.api.weight("receiver", ALICE, "route").await.unwrap();
            assert_eq!(weight, Some(nano(0.5) - point * nano(0.01)), "{kind:?} {point}: once each");
            stage.bob.kill();
        }
        assert!(deaths >= 2, "{deaths} deaths");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_two_custodians_of_one_target_do_not_touch_each_other() {
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let relays = format!(
            "[[relays]]\nname = \"r\"\nurl = \"{}\"\nca = \"{}\"\n",
            relay.url("/test"),
            relay.ca.display()
        );
        let with = |name| format!("{}relay = \"r\"\n", peer_toml(name, None));
        let alice = start(world.config("alice", &format!("{relays}{}", with("bob")))).await;
        let carol = start(world.config("carol", &format!("{relays}{}", with("bob")))).await;
        let both = format!("{relays}{}{}", with("alice"), with("carol"));
        let bob = start(world.config("bob", &both)).await;
        connected(&bob.handle(), 2).await;
        connected(&alice.handle(), 1).await;
        connected(&carol.handle(), 1).await;
        // The same ids, scopes and keys from both.
        for n in 0..50 {
            for node in [&alice, &carol] {
                issue(&node.handle(), revoke(&format!("r{n}"), "bob", &format!("s{n}"))).await;
            }
            issue(&alice.handle(), move_weight(&format!("w{n}"), "bob", "route", -0.001)).await;
        }
        issue(&carol.handle(), move_weight("w0", "bob", "route", -0.002)).await;
        for n in 0..50 {
            for node in [&alice, &carol] {
                ends(&node.handle(), &format!("r{n}"), Terminal::Applied).await;
            }
            ends(&alice.handle(), &format!("w{n}"), Terminal::Applied).await;
        }
        ends(&carol.handle(), "w0", Terminal::Applied).await;
        let at_bob = |issuer| weight(bob.handle().store(), Role::Receiver, issuer, "route");
        assert_eq!(at_bob("alice"), Some(450_000_000), "{kind:?}");
        assert_eq!(at_bob("carol"), Some(498_000_000), "{kind:?}");
        for node in [alice, bob, carol] {
            node.stop().await.unwrap();
        }
    }
}

/// A custodian and `n` members of its group, who meet at a relay.
async fn group(world: &World, relay: &Relay, n: usize) -> (Node, Vec<Node>) {
    let names: Vec<String> = (0..n).map(|n| format!("m{n}")).collect();
    group_of(world, relay, &names, 0).await
}

/// A custodian and the members of its group, who meet at a relay, and as many other peers that are not there.
async fn group_of(
    world: &World,
    relay: &Relay,
    names: &[String],
    others: usize,
) -> (Node, Vec<Node>) {
    let relays = format!(
        "[[relays]]\nname = \"r\"\nurl = \"{}\"\nca = \"{}\"\n",
        relay.url("/test"),
        relay.ca.display()
    );
    let others: Vec<String> = (0..others).map(|n| format!("away{n}")).collect();
    let peers = names.iter().chain(&others);
    let peers: String = peers.map(|name| peer_toml(name, None) + "relay = \"r\"\n").collect();
    let members: Vec<_> = names.iter().map(|name| format!("\"{}\"", id(name))).collect();
    let group = format!("[[groups]]\nname = \"all\"\nmembers = [{}]\n", members.join(", "));
    let custodian = start(world.config("alice", &format!("{relays}{group}{peers}"))).await;
    let mut nodes = Vec::new();
    for name in names {
        let alice = format!("{}relay = \"r\"\ngroups = [\"all\"]\n", peer_toml("alice", None));
        nodes.push(start(world.config(name, &format!("{relays}{alice}"))).await);
    }
    connected(&custodian.handle(), names.len()).await;
    for node in &nodes {
        connected(&node.handle(), 1).await;
    }
    (custodian, nodes)
}

fn published(node: &NodeHandle, what: &str) -> u64 {
    let line = format!("abhyasa_moqt_objects_published_total{{outcome=\"{what}\"}} ");
    let text = node.metrics().encode();
    text.lines().find_map(|found| found.strip_prefix(&line)).map_or(0, |n| n.parse().unwrap())
}

async fn decide(node: &NodeHandle, members: usize, gid: &str, scope: &str) -> GroupId {
    let names: Vec<String> = (0..members).map(|n| format!("m{n}")).collect();
    decide_for(node, &names, gid, scope).await
}

async fn decide_for(node: &NodeHandle, members: &[String], gid: &str, scope: &str) -> GroupId {
    let gid = GroupId::new(gid).unwrap();
    let drafts = members.iter().map(|member| {
        let draft = revoke("x", member, scope);
        Draft { id: gid.member(&id(member)), ..draft }
    });
    let group = GroupName::new("all").unwrap();
    let results = node.issue_to_group(&gid, &group, drafts.collect()).await.unwrap();
    assert!(results.iter().all(|result| result.as_ref().unwrap().custody));
    gid
}

/// What came of a decision at each member.
async fn applied(node: &NodeHandle, members: &[Node], gid: &GroupId, scope: &str) {
    for (n, member) in members.iter().enumerate() {
        let member_id = gid.member(&id(&format!("m{n}")));
        ends(node, member_id.as_str(), Terminal::Applied).await;
        let granted = granted(member.handle().store(), Role::Receiver, "alice", scope);
        assert_eq!(granted, Some(false), "m{n}");
    }
}

/// A custodian of many meets them in several sessions, and publishes what is for all in one: who is met in another
/// hears it all the same, and goes on to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_members_hear_a_group_whichever_session_they_are_met_in() {
    const N: usize = 3;
    /// More than streams of who has not shown who it is may be open.
    const OPEN: Duration = Duration::from_secs(7);
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        // Peers that are not there, so many that one session is not enough.
        let (custodian, members) = group_of(&world, &relay, &met_elsewhere(N), 40).await;
        let node = custodian.handle();
        tokio::time::sleep(OPEN).await;
        let names = met_elsewhere(N);
        eventually("once for all", async || {
            let before = (published(&node, "group_offer"), published(&node, "offers"));
            let name = format!("try{}", before.0 + before.1);
            let gid = decide_for(&node, &names, &name, &name).await;
            for name in &names {
                ends(&node, gid.member(&id(name)).as_str(), Terminal::Applied).await;
            }
            let after = (published(&node, "group_offer"), published(&node, "offers"));
            (after == (before.0 + 1, before.1)).then_some(())
        })
        .await;
        for member in &members {
            assert_eq!(member.handle().metrics().moqt_unproven.get(), 0, "{kind:?}");
        }
        for node in members.into_iter().chain([custodian]) {
            node.stop().await.unwrap();
        }
    }
}

/// Names of peers that a custodian of many does not meet in its first session, whether it needs 2, 3 or 4.
fn met_elsewhere(n: usize) -> Vec<String> {
    let names = (0..).map(|n| format!("m{n}"));
    names.filter(|name| (2..=4).all(|count| part_of(&id(name), count) != 0)).take(n).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_members_with_histories_of_their_own_apply_a_decision_to_all() {
    const N: usize = 3;
    let world = World::new();
    let relay = Relay::start(&world, Kind::Aiomoqt).await;
    let (custodian, members) = group(&world, &relay, N).await;
    let node = custodian.handle();
    for round in 0..3 {
        // One member is ahead of the others in the sequence of the scope, and holds a grant.
        for n in 0..4 {
            issue(&node, revoke(&format!("own{round}-{n}"), "m1", "calendar")).await;
            ends(&node, &format!("own{round}-{n}"), Terminal::Applied).await;
        }
        let grant = serde_json::json!({ "decision": "grant", "scope": "calendar" });
        issue(&node, draft(&format!("grant{round}"), CONSENT, "m1", grant)).await;
        let gid = decide(&node, N, &format!("all{round}"), "calendar").await;
        applied(&node, &members, &gid, "calendar").await;
    }
    // An old decision issued again is nothing new to those that had it.
    let again = decide(&node, N, "all0", "calendar").await;
    applied(&node, &members, &again, "calendar").await;
    for node in std::iter::once(custodian).chain(members) {
        node.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_who_was_not_issued_a_decision_makes_none_of_what_goes_to_the_group() {
    const N: usize = 3;
    let world = World::new();
    let relay = Relay::start(&world, Kind::Aiomoqt).await;
    let (custodian, members) = group(&world, &relay, N).await;
    let node = custodian.handle();
    // Until the relay asks for the group's track nothing goes there.
    eventually("the group's track", async || {
        let name = format!("try{}", published(&node, "group_offer") + published(&node, "offers"));
        let gid = decide(&node, N, &name, &name).await;
        applied(&node, &members, &gid, &name).await;
        (published(&node, "group_offer") > 0).then_some(())
    })
    .await;
    let before = published(&node, "group_offer");
    let gid = GroupId::new("some").unwrap();
    let drafts = (0..N).map(|n| {
        let member = format!("m{n}");
        // What m2 is not allowed is refused at issue.
        let draft = revoke("x", if n == 2 { "stranger" } else { &member }, "some");
        Draft { id: gid.member(&id(&member)), ..draft }
    });
    let all = GroupName::new("all").unwrap();
    let results = node.issue_to_group(&gid, &all, drafts.collect()).await.unwrap();
    assert!(results[..2].iter().all(Result::is_ok) && results[2].is_err(), "{results:?}");
    applied(&node, &members[..2], &gid, "some").await;
    assert_eq!(published(&node, "group_offer"), before, "it went to each alone");
    let own = granted(members[2].handle().store(), Role::Receiver, "alice", "some");
    assert_eq!(own, None, "m2 was not issued it");
    for node in std::iter::once(custodian).chain(members) {
        node.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_a_decision_goes_once_to_a_group_and_each_member_has_custody_of_its_own() {
    const N: usize = 5;
    for kind in Kind::all() {
        let world = World::new();
        let relay = Relay::start(&world, kind).await;
        let (custodian, mut members) = group(&world, &relay, N).await;
        let node = custodian.handle();
        // Until the relay has asked for the group's track, members get it each on its own.
        eventually("once for all", async || {
            let before = (published(&node, "group_offer"), published(&node, "offers"));
            let name = format!("try{}", before.0 + before.1);
            let gid = decide(&node, N, &name, &name).await;
            for n in 0..N {
                ends(&node, gid.member(&id(&format!("m{n}"))).as_str(), Terminal::Applied).await;
            }
            let after = (published(&node, "group_offer"), published(&node, "offers"));
            (after == (before.0 + 1, before.1)).then_some(())
        })
        .await;
        for member in &members {
            let member = member.handle();
            assert!(member.metrics().moqt_dropped.get() == 0, "{kind:?}");
        }
        // One is away: the others have it, and it gets it by itself when it is back.
        let away = members.pop().unwrap();
        let config = (*away.handle().config()).as_ref().clone();
        away.stop().await.unwrap();
        eventually("away", async || {
            (node.peers().iter().filter(|peer| peer.sessions > 0).count() == N - 1).then_some(())
        })
        .await;
        let gid = decide(&node, N, "later", "later").await;
        for n in 0..N - 1 {
            ends(&node, gid.member(&id(&format!("m{n}"))).as_str(), Terminal::Applied).await;
        }
        let late = gid.member(&id(&format!("m{}", N - 1)));
        assert!(node.outcome(&late).unwrap().is_none(), "it is not there to have applied it");
        let back = start(config).await;
        ends(&node, late.as_str(), Terminal::Applied).await;
        assert_eq!(
            granted(back.handle().store(), Role::Receiver, "alice", "later"),
            Some(false),
            "{kind:?}"
        );
        for node in members.into_iter().chain([back, custodian]) {
            node.stop().await.unwrap();
        }
    }
}
