//! The stories. Each plays on a healed link with both nodes up, and checks its promise.

use super::api::{Api, nano, text, until};
use super::relay::RelayProcess;
use super::stage::{ALICE, BOB, Stage};
use super::tell::Teller;
use crate::init::ca::DevCa;
use crate::proxy::{Chance, Delay, Faults, LinkModel, Micros};
use anyhow::{Context as _, ensure};
use proto::time::Time;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long anything on the stage may take: far more than it does.
const PATIENCE: Duration = Duration::from_secs(20);
/// Corrective updates of the second story, each moving a weight by a thousandth.
const UPDATES: u32 = 200;
/// Revocations of the second story.
const REVOCATIONS: u32 = 20;

/// How a story ended.
pub(super) struct Ending {
    pub(super) outcome: String,
    pub(super) figures: Map<String, Value>,
}

fn ending(outcome: String, figures: &Value) -> Ending {
    Ending { outcome, figures: figures.as_object().cloned().unwrap_or_default() }
}

fn revoke(scope: &str) -> Value {
    json!({ "kind": "anumati.consent", "target": BOB, "payload": { "decision": "revoke", "scope": scope } })
}

fn correct(key: &str, delta: f64) -> Value {
    json!({ "kind": "phala.belief_update", "target": BOB, "payload": { "weight_delta": delta, "weight_key": key } })
}

fn within(mut obligation: Value, seconds: u64) -> Value {
    if let Some(members) = obligation.as_object_mut() {
        members.insert("deadline_seconds".to_owned(), seconds.into());
    }
    obligation
}

/// Lets Bob use `scope`, and waits until his node knows. A grant is not carried under custody, so
/// it may get lost; nothing unsafe comes of that, and we ask again.
async fn grant(stage: &Stage, scope: &str) -> anyhow::Result<()> {
    let grant = json!({ "kind": "anumati.consent", "target": BOB, "payload": { "decision": "grant", "scope": scope } });
    until(PATIENCE, "the grant to arrive", async || {
        stage.alice.api.issue(&grant).await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        Ok(bob_may(stage, scope).await?.then_some(()))
    })
    .await
}

/// Whether Bob's agent is told that it may use `scope` for Alice.
async fn bob_may(stage: &Stage, scope: &str) -> anyhow::Result<bool> {
    stage.bob.api.allowed("receiver", ALICE, scope).await
}

/// Whether Alice's agent is told that Bob may use `scope`.
async fn alice_lets(stage: &Stage, scope: &str) -> anyhow::Result<bool> {
    stage.alice.api.allowed("principal", BOB, scope).await
}

/// Waits for a transfer to be applied.
async fn applied(api: &Api, id: &str) -> anyhow::Result<()> {
    let end = api.ended(id, PATIENCE).await?;
    ensure!(
        text(&end, "state") == "applied",
        "{id} ended {} ({}), not applied",
        text(&end, "state"),
        text(&end, "reason")
    );
    Ok(())
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}

fn wall() -> Time {
    Time::default().after(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// A whole number of a record, or 0.
fn number(obligation: &Value, key: &str) -> u64 {
    obligation.get(key).and_then(Value::as_u64).unwrap_or_default()
}

pub(super) async fn clean(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    tell.does("Alice lets Bob read her calendar; then she takes it back");
    tell.link("works");
    grant(stage, "calendar.read").await?;
    let begun = Instant::now();
    let answer =
        stage.alice.api.post("/v1/obligations?wait_seconds=10", &revoke("calendar.read")).await?;
    let took = ms(begun);
    let state = answer.pointer("/outcome/state").and_then(Value::as_str).unwrap_or_default();
    ensure!(state == "applied", "it is {state:?}, not applied");
    ensure!(!bob_may(stage, "calendar.read").await?, "Bob's node still says yes");
    tell.sees(&format!("Bob's node applied it and said so, {took} ms after Alice asked"));
    tell.sees("Bob's agent asks \"may I read her calendar?\" and is told: no");
    Ok(ending(format!("applied in {took} ms"), &json!({ "applied_ms": took })))
}

pub(super) async fn lossy(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    const APPLIED: &str = "abhyasa_offers_received_total{outcome=\"applied\"}";
    tell.does(&format!("Alice lowers a routing weight at Bob {UPDATES} times by 0.001, and revokes {REVOCATIONS} scopes"));
    tell.link("loses 30 %, doubles 10 %, delays by 5 to 35 ms and so reorders");
    let before = stage.link.count();
    let applied_before = stage.bob.api.metric(APPLIED).await?;
    let link = LinkModel {
        delay: Delay::Uniform(Micros::from_ms(5), Micros::from_ms(35)),
        loss: Chance::permille(300),
        duplicate: Chance::permille(100),
        ..LinkModel::default()
    };
    stage.link.set(Faults::both(link));
    let mut batch: Vec<Value> = (0..UPDATES).map(|_| correct("route.lossy", -0.001)).collect();
    batch.extend((0..REVOCATIONS).map(|n| revoke(&format!("files.{n}"))));
    let begun = Instant::now();
    let answer = stage.alice.api.post("/v1/obligations", &json!({ "obligations": batch })).await?;
    let results = answer.get("results").and_then(Value::as_array).context("no results")?;
    let ids: Vec<&str> =
        results.iter().filter_map(|result| result.pointer("/ok/obligation_id")?.as_str()).collect();
    ensure!(ids.len() == batch.len(), "only {} of {} were taken", ids.len(), batch.len());
    stage.alice.api.idle(PATIENCE).await?;
    let took = ms(begun);
    let mut retries = 0;
    for id in &ids {
        let end = stage.alice.api.status(id).await?;
        ensure!(text(&end, "state") == "applied", "{id} ended {}", text(&end, "state"));
        retries += number(&end, "retries");
    }
    // What is still under way, such as a late duplicate, shall have arrived.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let now = stage.link.count();
    let (dropped, doubled) = (now.dropped - before.dropped, now.duplicated - before.duplicated);
    ensure!(
        dropped > 0 && doubled > 0,
        "the link did nothing: {dropped} dropped, {doubled} doubled"
    );
    tell.sees(&format!(
        "{dropped} packets lost, {doubled} doubled; custody offered {retries} again"
    ));
    tell.sees(&format!("all {} applied, {took} ms after the first", ids.len()));
    let weight = stage.bob.api.weight("receiver", ALICE, "route.lossy").await?;
    let expected = nano(0.5) - i64::from(UPDATES) * nano(0.001);
    ensure!(
        weight == Some(expected),
        "the weight is {weight:?} e-9, not {expected}: not exactly once"
    );
    let effects = stage.bob.api.metric(APPLIED).await? - applied_before;
    ensure!(effects == f64::from(UPDATES + REVOCATIONS), "{effects} effects");
    tell.sees("the weight went from 0.500 to exactly 0.300: each correction counted once");
    let figures = json!({ "obligations": ids.len(), "packets_dropped": dropped, "packets_duplicated": doubled, "custody_retries": retries, "took_ms": took, "effects": effects });
    Ok(ending(format!("all {} applied exactly once in {took} ms", ids.len()), &figures))
}

pub(super) async fn partition(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    tell.does("Alice revokes Bob's access to her mail and lowers a weight by 0.2, both due in 2 s");
    tell.link("is cut for longer than that");
    grant(stage, "mail.send").await?;
    stage.link.partition(true);
    let revocation = stage.alice.api.issue(&within(revoke("mail.send"), 2)).await?;
    let correction = stage.alice.api.issue(&within(correct("route.cut", -0.2), 2)).await?;
    let (mut reason, mut late) = (String::new(), 0);
    for taken in [&revocation, &correction] {
        let id = &taken.obligation_id;
        let end = stage.alice.api.ended(id, PATIENCE).await?;
        ensure!(text(&end, "state") == "escalated", "{id} ended {}", text(&end, "state"));
        let found = stage
            .alice
            .api
            .escalation(id)
            .await?
            .with_context(|| format!("{id} is not in the inbox"))?;
        ensure!(
            found.get("safe_action_applied").is_some_and(|applied| *applied == true),
            "safe action of {id} not applied"
        );
        reason = text(&found, "reason").to_owned();
        late = late.max(number(&found, "at_ms").saturating_sub(taken.deadline_at_ms));
    }
    ensure!(reason == "unreachable", "the inbox says {reason:?}");
    ensure!(!alice_lets(stage, "mail.send").await?, "Alice's side still lets Bob send mail");
    let weight = stage.alice.api.weight("principal", BOB, "route.cut").await?;
    ensure!(weight == Some(nano(0.3)), "Alice's own weight of Bob is {weight:?} e-9, not 0.3");
    tell.sees(&format!("both escalated {late} ms after their deadline, without any network"));
    tell.sees("Alice's side is safe: mail is withheld from Bob, her own weight of him down to 0.3");
    tell.sees(&format!(
        "both lie in her inbox, with the reason \"{reason}\", until she acknowledges them"
    ));
    for taken in [&revocation, &correction] {
        stage.alice.api.acknowledge(&taken.obligation_id).await?;
        ensure!(
            stage.alice.api.escalation(&taken.obligation_id).await?.is_none(),
            "acknowledged, yet in the inbox"
        );
    }
    let figures = json!({ "escalated": 2, "after_deadline_ms": late, "reason": reason });
    Ok(ending(format!("escalated {late} ms after the deadline, fail-safe applied"), &figures))
}

pub(super) async fn lost_revocation(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    tell.does("Alice revokes Bob's access to her photos");
    tell.link("is cut before the revocation can leave, for two seconds");
    grant(stage, "photos.read").await?;
    stage.link.partition(true);
    let taken = stage.alice.api.issue(&revoke("photos.read")).await?;
    ensure!(
        !alice_lets(stage, "photos.read").await?,
        "Alice's side still lets Bob read her photos"
    );
    ensure!(bob_may(stage, "photos.read").await?, "Bob cannot know yet");
    tell.sees("Bob does not know yet, but Alice's side withholds her photos from that moment");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let pending = stage.alice.api.status(&taken.obligation_id).await?;
    ensure!(
        text(&pending, "state") == "pending",
        "ended {} during the cut",
        text(&pending, "state")
    );
    let retries = number(&pending, "retries");
    let healed = Instant::now();
    stage.link.heal();
    applied(&stage.alice.api, &taken.obligation_id).await?;
    let took = ms(healed);
    ensure!(!bob_may(stage, "photos.read").await?, "Bob's node still says yes");
    tell.sees(&format!(
        "after {retries} vain retries the link heals; {took} ms later Bob's node has applied it"
    ));
    let figures = json!({ "retries_while_cut": retries, "applied_after_heal_ms": took });
    Ok(ending(format!("withheld at once, applied {took} ms after the link healed"), &figures))
}

pub(super) async fn receiver_killed(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    tell.does("Alice lowers a weight at Bob by 0.1; Bob's node is killed once it has applied that");
    tell.link("lets nothing back from Bob, so Alice cannot know");
    stage.link.cut_from_bob();
    let taken = stage.alice.api.issue(&correct("route.killed", -0.1)).await?;
    until(PATIENCE, "Bob's node to apply it", async || {
        Ok(stage
            .bob
            .api
            .weight("receiver", ALICE, "route.killed")
            .await?
            .filter(|weight| *weight == nano(0.4)))
    })
    .await?;
    let status = stage.alice.api.status(&taken.obligation_id).await?;
    ensure!(text(&status, "state") == "pending", "Alice's node says {}", text(&status, "state"));
    stage.bob.kill();
    tell.sees(
        "the weight is 0.4 and Alice's node still waits; now Bob's process is gone (SIGKILL)",
    );
    stage.link.heal();
    let restarted = Instant::now();
    stage.bob.start(None)?;
    stage.bob.ready().await?;
    applied(&stage.alice.api, &taken.obligation_id).await?;
    let took = ms(restarted);
    let weight = stage.bob.api.weight("receiver", ALICE, "route.killed").await?;
    ensure!(weight == Some(nano(0.4)), "Bob's weight is {weight:?} e-9: applied again");
    tell.sees(&format!(
        "started again, Bob's node is offered it again and acknowledges it, {took} ms after its start"
    ));
    tell.sees("the weight is still 0.4: there was no second effect");
    Ok(ending(
        "acknowledged after the restart, no second effect".to_owned(),
        &json!({ "acked_after_restart_ms": took }),
    ))
}

pub(super) async fn custodian_killed(stage: &mut Stage, tell: &Teller) -> anyhow::Result<Ending> {
    tell.does(
        "Alice issues two revocations, due in 3 s and in 15 s; her node is killed while retrying",
    );
    tell.link("is cut");
    stage.link.partition(true);
    let short = stage.alice.api.issue(&within(revoke("notes.read"), 3)).await?;
    let long = stage.alice.api.issue(&within(revoke("diary.read"), 15)).await?;
    let retries = until(PATIENCE, "two retries", async || {
        let retries = number(&stage.alice.api.status(&long.obligation_id).await?, "retries");
        Ok((retries >= 2).then_some(retries))
    })
    .await?;
    stage.alice.kill();
    tell.sees(&format!(
        "killed (SIGKILL) after {retries} retries; the short deadline passes meanwhile"
    ));
    let wait = Time::from_ms(short.deadline_at_ms).ms_since(wall()) + 300;
    tokio::time::sleep(Duration::from_millis(wait)).await;
    stage.alice.start(None)?;
    let restarted = Instant::now();
    stage.alice.ready().await?;
    let end = stage.alice.api.ended(&short.obligation_id, Duration::from_secs(2)).await?;
    let took = ms(restarted);
    ensure!(text(&end, "state") == "escalated", "the short one ended {}", text(&end, "state"));
    tell.sees(&format!(
        "restarted: the overdue one is escalated at once, {took} ms after the start"
    ));
    let status = stage.alice.api.status(&long.obligation_id).await?;
    ensure!(text(&status, "state") == "pending", "the long one ended {}", text(&status, "state"));
    // The attempt under way at the kill is repeated; those before it stay counted.
    ensure!(number(&status, "retries") + 1 >= retries, "the retry budget was filled up again");
    let deadline = Time::from_ms(long.deadline_at_ms).to_rfc3339();
    ensure!(
        text(&status, "deadline_at") == deadline,
        "the deadline moved from {deadline} to {}",
        text(&status, "deadline_at")
    );
    tell.sees("the other goes on with the deadline it was issued with, not a new one");
    stage.link.heal();
    let healed = Instant::now();
    applied(&stage.alice.api, &long.obligation_id).await?;
    let after = ms(healed);
    tell.sees(&format!("the link heals; {after} ms later it is applied"));
    stage.alice.api.acknowledge(&short.obligation_id).await?;
    let figures = json!({ "retries_before_kill": retries, "escalated_after_start_ms": took, "applied_after_heal_ms": after });
    Ok(ending("deadlines kept over the crash".to_owned(), &figures))
}

pub(super) async fn relay_killed(
    stage: &mut Stage,
    tell: &Teller,
    program: &Path,
) -> anyhow::Result<Ending> {
    const SCOPES: u32 = 20;
    let ca = stage.dir.path().join("alice/ca");
    let pem = |file| std::fs::read_to_string(ca.join(file));
    let ca = DevCa::from_pem(&pem("ca.pem")?, &pem("ca.key")?)?;
    let mut relay = RelayProcess::start(program, &stage.dir.path().join("relay"), &ca)?;
    let name = program.file_name().unwrap_or_default().display();
    tell.does("Alice's and Bob's nodes have no way to each other any more, and meet at a relay");
    tell.link(&format!("{name}, which knows nothing of obligations"));
    stage.meet_at(&relay.url("/demo"), relay.ca()).await?;
    grant(stage, "photos.read").await?;
    let begun = Instant::now();
    let answer =
        stage.alice.api.post("/v1/obligations?wait_seconds=10", &revoke("photos.read")).await?;
    let took = ms(begun);
    let state = answer.pointer("/outcome/state").and_then(Value::as_str).unwrap_or_default();
    ensure!(state == "applied", "it is {state:?}, not applied");
    tell.sees(&format!("what she takes back is applied through it, {took} ms after she asked"));
    tell.does(&format!("Alice revokes {SCOPES} scopes more; at once the relay is killed"));
    let scope = |n| format!("relay.scope-{n}");
    let batch: Vec<Value> = (0..SCOPES).map(|n| revoke(&scope(n))).collect();
    let answer = stage.alice.api.post("/v1/obligations", &json!({ "obligations": batch })).await?;
    relay.kill();
    let results = answer.get("results").and_then(Value::as_array).context("no results")?;
    let ids: Vec<&str> =
        results.iter().filter_map(|result| result.pointer("/ok/obligation_id")?.as_str()).collect();
    ensure!(ids.len() == batch.len(), "only {} of {} were taken", ids.len(), batch.len());
    tokio::time::sleep(Duration::from_millis(300)).await;
    relay.restart()?;
    tell.sees("it comes back and knows nothing of anybody");
    let mut retries = 0;
    for id in ids {
        let end = stage.alice.api.ended(id, PATIENCE).await?;
        ensure!(
            text(&end, "state") == "applied",
            "{id} ended {}, not applied",
            text(&end, "state")
        );
        retries += number(&end, "retries");
    }
    for n in 0..SCOPES {
        ensure!(!bob_may(stage, &scope(n)).await?, "Bob's node still says yes to {}", scope(n));
    }
    tell.sees(&format!("all {SCOPES} are applied at Bob's, after {retries} retries"));
    Ok(ending(
        format!("{SCOPES} of {SCOPES} applied, the relay killed in between"),
        &json!({ "applied_ms": took, "retries": retries, "relay": name.to_string() }),
    ))
}
