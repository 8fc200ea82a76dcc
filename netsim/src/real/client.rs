//! Clients of the nodes: those that issue, and one that watches.

use super::book::Shared;
use super::service::Service;
use super::work::Call;
use crate::check::Class;
use abhyasa::demo::api::{Answer, Api, Taken, text};
use link::Rng;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time between two looks at what has ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Items on a page, at most.
const PAGE: &str = "1000";

/// Makes one issue call, again and again until it is answered or `until` has passed.
pub(super) async fn issue(api: Api, book: Shared, call: Call, until: Instant) {
    let rng = &mut Rng::new(call.seed, 0);
    let mut again = call.again;
    while Instant::now() < until {
        let bodies = book.open().ask(&call.works);
        let body = match bodies.as_slice() {
            [one] => one.clone(),
            all => json!({ "obligations": all }),
        };
        let settled = match api.ask("/v1/obligations", &body).await {
            Ok(answer) => answered(&book, &call, &answer),
            Err(_) => {
                book.open().unanswered(&call.works);
                !call.persists
            }
        };
        if settled {
            if !again {
                return;
            }
            again = false;
        }
        tokio::time::sleep(Duration::from_millis(rng.range(20, 400))).await;
    }
}

/// Notes an answer; returns whether it settles the call.
fn answered(book: &Shared, call: &Call, answer: &Answer) -> bool {
    let mut book = book.open();
    let (code, message) = error(&answer.body);
    match (answer.status, call.works.as_slice()) {
        // Nothing of it was kept, unless it says so; it may be asked for again.
        (429 | 503, works) => {
            if code == "unanswered" {
                book.unanswered(works);
            }
            return false;
        }
        (200..300, [work]) => match serde_json::from_value::<Taken>(answer.body.clone()) {
            Ok(taken) => book.taken(*work, taken),
            Err(error) => {
                let detail = format!("an answer that makes no sense: {error}: {}", answer.body);
                book.breach("API", Class::Crash, call.issuer, detail);
            }
        },
        (200..300, works) => {
            let results = answer.body.get("results").and_then(Value::as_array);
            let results = results.map_or(&[] as &[Value], Vec::as_slice);
            if results.len() != works.len() {
                let detail = format!("{} results for {} asked for", results.len(), works.len());
                book.breach("API", Class::Crash, call.issuer, detail);
            }
            let mut all = true;
            for (work, result) in works.iter().zip(results) {
                let taken = result.get("ok").cloned().map(serde_json::from_value::<Taken>);
                match taken {
                    Some(Ok(taken)) => book.taken(*work, taken),
                    _ => match error(result) {
                        ("full" | "busy", _) => all = false,
                        (code, message) => book.refused(*work, code, message),
                    },
                }
            }
            return all;
        }
        (500.., _) => {
            let detail = format!("the API answers {}: {}", answer.status, answer.body);
            book.breach("API", Class::Crash, call.issuer, detail);
        }
        (_, works) => works.iter().for_each(|work| book.refused(*work, code, message)),
    }
    true
}

fn error(body: &Value) -> (&str, &str) {
    let error = body.get("error").unwrap_or(&Value::Null);
    (text(error, "code"), text(error, "message"))
}

/// Looks at what a node says has ended, for as long as it is let, and decides some of what waits
/// for a person.
pub(super) async fn watch(api: Api, book: Shared, node: usize, seed: u64, service: Arc<Service>) {
    let rng = &mut Rng::new(seed, 65 + node as u64);
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let _ = look(&api, &book, node).await; // it may be down
        let _ = acknowledge(&api, &book, node, rng).await;
        let _ = resolve(&api, &book, node, rng, &service).await;
    }
}

/// A person settles the newest item for reconciliation, or does not: by what the external system
/// has done, where nobody else could say.
async fn resolve(
    api: &Api,
    book: &Shared,
    node: usize,
    rng: &mut Rng,
    service: &Service,
) -> anyhow::Result<()> {
    let page = api.get("/v1/reconciliation", &[("limit", PAGE)]).await?;
    let open = page.get("items").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
    let Some(item) = open.last().filter(|_| rng.chance(400)) else { return Ok(()) };
    let (agent, id) = (text(item, "agent"), text(item, "obligation_id"));
    let resolution = match text(item, "kind") {
        "in_doubt" if service.effect(node, agent, id).happened => "applied",
        "in_doubt" => "not_applied",
        "decline_surfaced" if rng.chance(500) => "apply_safe",
        _ => "noted",
    };
    let number = item.get("number").and_then(Value::as_u64).unwrap_or(0);
    let path = format!("/v1/reconciliation/{number}/resolve");
    api.post(&path, &json!({ "resolution": resolution })).await?;
    book.open().resolved.insert((node, number), resolution.to_owned());
    Ok(())
}

/// A person sees the newest escalation, or does not.
async fn acknowledge(api: &Api, book: &Shared, node: usize, rng: &mut Rng) -> anyhow::Result<()> {
    let page = api.get("/v1/escalations", &[("limit", PAGE)]).await?;
    let open = page.get("items").and_then(Value::as_array).map_or(&[] as &[Value], Vec::as_slice);
    if let Some(item) = open.last().filter(|_| rng.chance(300)) {
        let id = text(item, "obligation_id");
        api.acknowledge(id).await?;
        book.open().acknowledged.insert((node, id.to_owned()));
    }
    Ok(())
}

/// One look at all that a node says has ended.
pub(super) async fn look(api: &Api, book: &Shared, node: usize) -> anyhow::Result<()> {
    let mut after: Option<String> = None;
    loop {
        let mut query = vec![("limit", PAGE)];
        if let Some(after) = &after {
            query.push(("after", after));
        }
        let page = api.get("/v1/terminal", &query).await?;
        let items = page.get("items").and_then(Value::as_array);
        for item in items.into_iter().flatten() {
            let retries = item.get("retries").and_then(Value::as_u64).unwrap_or(0);
            let end = (text(item, "state").to_owned(), text(item, "at").to_owned(), retries);
            book.open().ended(node, text(item, "obligation_id"), end);
        }
        after = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if after.is_none() {
            return Ok(());
        }
    }
}
