//! PS-1 with real processes: the node dies just before, or just after, each of its first commits, and what
//! a caller was told of its chains is there, once, when it is back. The caller tells again what was not
//! answered.

use super::{BOB, USE, acap, caller, event, first, publish, record};
use crate::common::{PATIENCE, World, id};
use abhyasa::demo::stage::NodeProcess;
use abhyasa::loopback::free_address;
use abhyasa::proto::consent::{AdherenceEvent, ConsentRecord, read, validate_trail};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Commits at which it dies, each in a life of its own.
const POINTS: std::ops::RangeInclusive<u64> = 1..=8;
/// Documents of one life, by which it must have died.
const DOCUMENTS_MAX: usize = 500;

async fn dies_at_each_commit(mode: &str) {
    let world = World::new();
    let at = free_address().unwrap();
    publish(&world, &first());
    let more =
        format!("[api]\nlisten = \"{at}\"\n{}{}", acap(&world, ""), caller(&world, "bob", BOB));
    world.config("alice", &more);
    let file = world.path().join("alice/abhyasa.toml");
    let program = Path::new(env!("CARGO_BIN_EXE_abhyasa"));
    let mut node = NodeProcess::new(program, &file, world.path().join("log")).unwrap();
    let http = reqwest::Client::builder().no_proxy().timeout(PATIENCE).build().unwrap();
    let tell = async |path: &str, document: &Value| -> Option<Value> {
        let request = http.post(format!("http://{at}{path}")).bearer_auth(BOB).json(document);
        let response = request.send().await.ok()?;
        let status = response.status().as_u16();
        let body: Value = serde_json::from_str(&response.text().await.ok()?).ok()?;
        match status {
            201 => Some(body),
            503 => None, // it is about to die
            _ => panic!("{mode}: {status} {body}"),
        }
    };
    let consents = serde_json::to_value(record("r-1", None, &first(), &[], json!({}))).unwrap();
    let (mut consented, mut told) = (false, Vec::<String>::new());
    // What was told and not answered: told again, unchanged.
    let mut pending: Option<AdherenceEvent> = None;
    for point in POINTS {
        node.start(Some(&format!("{mode}@{point}"))).unwrap();
        let _ = node.ready().await; // it may die while it starts
        let mut count = 0;
        while node.exited().unwrap().is_none() {
            count += 1;
            assert!(count < DOCUMENTS_MAX, "{mode}@{point}: it never died");
            if !consented {
                consented = tell("/acap/consent", &consents).await.is_some();
                continue;
            }
            let next = || {
                let name = format!("e-{}", told.len());
                event(&name, told.last().map(String::as_str), "r-1", USE, "permit", json!({}))
            };
            let event = pending.take().unwrap_or_else(next);
            match tell("/acap/adherence", &serde_json::to_value(&event).unwrap()).await {
                Some(body) => {
                    assert_eq!(body["number"], told.len(), "{mode}: {body}");
                    told.push(event.event_id.to_string());
                }
                None => {
                    pending = Some(event);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        }
    }
    node.start(None).unwrap();
    node.ready().await.unwrap();
    let request = http.get(format!("http://{at}/acap/audit/{}?limit=1000", id("bob")));
    let audit: Value =
        serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
    let of = |kind: &str| -> Vec<Value> {
        let items = audit["items"].as_array().unwrap().iter();
        items.filter(|item| item["kind"] == kind).map(|item| item[kind].clone()).collect()
    };
    let records: Vec<ConsentRecord> =
        of("record").iter().map(|value| read(value.to_string().as_bytes()).unwrap()).collect();
    assert_eq!(records.len(), 1, "{mode}: the record once");
    let events: Vec<AdherenceEvent> =
        of("event").iter().map(|value| read(value.to_string().as_bytes()).unwrap()).collect();
    validate_trail(&events, &records).unwrap();
    let ids: Vec<&str> = events.iter().map(|event| event.event_id.as_str()).collect();
    assert!(
        !told.is_empty() && ids.starts_with(&told.iter().map(String::as_str).collect::<Vec<_>>()),
        "{mode}: {ids:?}"
    );
    // At most what was pending may be there beyond what was told.
    assert!(ids.len() - told.len() <= usize::from(pending.is_some()), "{mode}: {ids:?} {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ps1_a_node_that_dies_before_a_commit_has_said_nothing_of_it() {
    dies_at_each_commit("abort-before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ps1_a_node_that_dies_after_a_commit_has_all_of_it() {
    dies_at_each_commit("abort-after").await;
}
