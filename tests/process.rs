//! Two real processes on a bad link, each killed with SIGKILL again and again: every transfer ends
//! as the rules say, and nothing that was answered is lost.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    unreachable_pub
)]

use abhyasa::demo::api::{Api, nano, text};
use abhyasa::demo::stage::{ALICE, BOB, NodeProcess, Stage};
use abhyasa::proxy::{Chance, Delay, Faults, LinkModel, Micros};
use proto::backoff::mix;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Times a process is killed.
const KILLS: u64 = 14;
/// Obligations issued between two kills.
const PER_KILL: u64 = 24;
/// Each correction, in billionths.
const STEP: i64 = 100_000;
const PATIENCE: Duration = Duration::from_secs(45);

/// One obligation of the test: its body, and whether the node has answered for it.
struct Owed {
    body: Value,
    taken: bool,
}

/// A seeded sequence of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = mix(self.0);
        self.0 % sides
    }
}

/// Obligation `n`: most correct one weight and have all the time they need, some revoke a scope,
/// and some of those within a second.
fn obligation(n: u64) -> (String, Value) {
    let mut body = match n % 4 {
        0 => {
            json!({ "kind": "anumati.consent", "payload": { "decision": "revoke", "scope": format!("scope-{n}") } })
        }
        1 => {
            json!({ "kind": "oauth.token", "payload": { "action": "revoke", "token_id": format!("token-{n}") }, "deadline_seconds": 1 })
        }
        _ => {
            json!({ "kind": "phala.belief_update", "payload": { "weight_delta": -0.0001, "weight_key": "route" }, "deadline_seconds": 600 })
        }
    };
    let id = format!("ob-{n}");
    body["obligation_id"] = json!(id);
    body["target"] = json!(BOB);
    (id, body)
}

/// Issues what is not taken yet, until a call fails.
async fn issue(api: &Api, owed: &mut BTreeMap<String, Owed>) {
    for one in owed.values_mut().filter(|one| !one.taken) {
        match api.issue(&one.body).await {
            Ok(taken) => {
                assert!(taken.custody);
                one.taken = true;
            }
            Err(error) if error.to_string().starts_with('4') => panic!("refused: {error:#}"),
            Err(_) => return, // killed, or still starting: whether it was taken is unknown
        }
    }
}

async fn torture(seed: u64) {
    let mut dice = Dice(seed);
    let mut stage = Stage::set(Path::new(env!("CARGO_BIN_EXE_abhyasa")), seed, "").await.unwrap();
    stage.start().await.unwrap();
    let link = LinkModel {
        delay: Delay::Uniform(Micros::from_ms(1), Micros::from_ms(16)),
        loss: Chance::permille(100),
        duplicate: Chance::permille(100),
        ..LinkModel::default()
    };
    stage.link.set(Faults::both(link));
    let mut owed = BTreeMap::new();
    for kill in 0..KILLS {
        for n in kill * PER_KILL..(kill + 1) * PER_KILL {
            let (id, body) = obligation(n);
            owed.insert(id, Owed { body, taken: false });
        }
        // The kill falls somewhere into the issuing, or the delivery, of these.
        let delay = Duration::from_millis(dice.roll(250));
        let api = stage.alice.api.clone();
        let who = dice.roll(3);
        let killing = async {
            tokio::time::sleep(delay).await;
            let mut victims: Vec<&mut NodeProcess> = Vec::new();
            if who != 0 {
                victims.push(&mut stage.alice);
            }
            if who != 1 {
                victims.push(&mut stage.bob);
            }
            for victim in &mut victims {
                victim.kill();
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
            for victim in victims {
                victim.start(None).unwrap();
                victim.ready().await.unwrap();
            }
        };
        tokio::join!(issue(&api, &mut owed), killing);
        if dice.roll(4) == 0 {
            // Long enough for the shortest deadlines.
            stage.link.partition(true);
            issue(&stage.alice.api, &mut owed).await;
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            stage.link.partition(false);
        }
    }
    issue(&stage.alice.api, &mut owed).await;
    assert!(owed.values().all(|one| one.taken));
    stage.link.heal();
    stage.alice.api.idle(PATIENCE).await.unwrap();
    check(&stage, &owed).await;
}

async fn check(stage: &Stage, owed: &BTreeMap<String, Owed>) {
    let (alice, bob) = (&stage.alice.api, &stage.bob.api);
    let mut ends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut corrections = 0;
    for (id, Owed { body, .. }) in owed {
        let end = alice.status(id).await.unwrap();
        let state = text(&end, "state");
        let receipt = bob.get(&format!("/v1/obligations/{id}"), &[("issuer", ALICE)]).await.ok();
        let applied_there =
            receipt.as_ref().is_some_and(|receipt| text(receipt, "state") == "applied");
        let payload = &body["payload"];
        match text(body, "kind") {
            "phala.belief_update" => {
                assert_eq!(state, "applied", "{end}");
                assert!(applied_there, "{id} acked, and not in Bob's ledger: {receipt:?}");
                corrections += 1;
            }
            kind => {
                let scope = if kind == "oauth.token" {
                    text(payload, "token_id")
                } else {
                    text(payload, "scope")
                };
                let withheld = cell(alice, "principal", BOB, kind, scope).await;
                assert_eq!(
                    withheld,
                    Some(false),
                    "{id} ended {state}, and Alice's side lets {scope} through"
                );
                match state {
                    "applied" => assert_eq!(
                        cell(bob, "receiver", ALICE, kind, scope).await,
                        Some(false),
                        "{end}"
                    ),
                    "escalated" => {
                        let found = alice.escalation(id).await.unwrap();
                        let found = found
                            .unwrap_or_else(|| panic!("{id} is escalated and not in the inbox"));
                        assert_eq!(found["safe_action_applied"], json!(true), "{found}");
                        let (at, deadline) = (
                            found["at_ms"].as_u64().unwrap(),
                            found["deadline_at_ms"].as_u64().unwrap(),
                        );
                        assert!(
                            at >= deadline,
                            "{id} escalated {} ms early: {found}",
                            deadline - at
                        );
                    }
                    "declined" => assert_eq!(text(&end, "reason"), "expired", "{end}"),
                    _ => panic!("{end}"),
                }
            }
        }
        *ends
            .entry(match state {
                "applied" => "applied",
                "escalated" => "escalated",
                _ => "declined",
            })
            .or_default() += 1;
    }
    let weight = bob.weight("receiver", ALICE, "route").await.unwrap();
    assert_eq!(
        weight,
        Some(nano(0.5) - STEP * corrections),
        "{corrections} corrections, each once"
    );
    assert_eq!(ends.values().sum::<u32>(), u32::try_from(KILLS * PER_KILL).unwrap());
    assert!(ends["applied"] >= u32::try_from(KILLS * PER_KILL / 2).unwrap(), "{ends:?}");
}

/// Whether a scope of a kind is granted there; `None` if it was never decided.
async fn cell(api: &Api, role: &str, agent: &str, kind: &str, scope: &str) -> Option<bool> {
    let query = [("role", role), ("agent", agent), ("kind", kind), ("scope", scope)];
    let check = api.get("/v1/authorizations/check", &query).await.unwrap();
    (text(&check, "why") != "unknown").then(|| check["allowed"].as_bool().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliver_or_report_holds_while_both_processes_are_killed_again_and_again() {
    torture(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deliver_or_report_holds_with_other_kills() {
    torture(2).await;
}
