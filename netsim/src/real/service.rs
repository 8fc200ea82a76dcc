//! What stands behind both nodes and outlives their processes: one HTTP service that applies an
//! effect once for each issuer and id, and behaves as the simulator's handlers do; and the sink of
//! their escalations, which does not always take them.

use super::book::{Shared, unix_ms};
use crate::check::Class;
use crate::options::{HandlerModel, Options};
use crate::world::{Plan, plan};
use anyhow::Context as _;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use link::Rng;
use proto::id::ObligationId;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Escalations that the sink refuses for now, in thousandths.
const REFUSED_PERMILLE: u32 = 200;

/// Whose effect it is: the node that asks, the issuer, the id.
type Key = (usize, String, String);

#[derive(Clone, Copy, Debug, Default)]
struct Call {
    asked: u32,
    /// When its last call came in, in unix milliseconds.
    last_ms: u64,
    effect: bool,
}

#[derive(Debug)]
struct Inner {
    model: HandlerModel,
    seed: u64,
    calls: Mutex<BTreeMap<Key, Call>>,
    /// Escalations that the sink has taken, by node and id.
    sunk: Mutex<BTreeSet<(usize, String)>>,
    chance: Mutex<Rng>,
    book: Shared,
}

/// The service. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Service {
    inner: Arc<Inner>,
    address: SocketAddr,
    task: JoinHandle<std::io::Result<()>>,
}

impl Drop for Service {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What became of an effect.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    /// Whether it happened.
    pub(super) happened: bool,
    /// When the last call for it came in, in unix milliseconds; 0 if none did.
    pub(super) last_asked_ms: u64,
}

impl Service {
    pub(super) async fn start(options: &Options, book: Shared) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr().context("the service's address")?;
        let (model, seed) = (options.handler, options.seed);
        let (calls, sunk, chance) =
            (Mutex::default(), Mutex::default(), Mutex::new(Rng::new(seed, 66)));
        let inner = Arc::new(Inner { model, seed, calls, sunk, chance, book });
        let router = Router::new()
            .route("/sink/{node}", post(sink))
            .route("/{node}", post(ask))
            .route("/{node}/{id}", get(query))
            .with_state(inner.clone());
        let task = tokio::spawn(async move { axum::serve(listener, router).await });
        Ok(Self { inner, address, task })
    }

    /// Where a node finds it.
    pub(super) fn url(&self, node: usize) -> String {
        format!("http://{}/{node}", self.address)
    }

    /// Where a node posts its escalations.
    pub(super) fn sink_url(&self, node: usize) -> String {
        format!("http://{}/sink/{node}", self.address)
    }

    /// Whether the sink has taken an escalation.
    pub(super) fn sunk(&self, node: usize, id: &str) -> bool {
        locked(&self.inner.sunk).contains(&(node, id.to_owned()))
    }

    /// What became of an effect, whatever anybody knows.
    pub(super) fn effect(&self, node: usize, issuer: &str, id: &str) -> Effect {
        let key = (node, issuer.to_owned(), id.to_owned());
        let call = locked(&self.inner.calls).get(&key).copied().unwrap_or_default();
        Effect { happened: call.effect, last_asked_ms: call.last_ms }
    }
}

impl Inner {
    fn plan(&self, id: &str) -> Option<Plan> {
        Some(plan(&self.model, self.seed, &ObligationId::new(id).ok()?))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn header(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn said(status: &str) -> Response {
    Json(json!({ "status": status, "reason": "as planned" })).into_response()
}

/// A node tells of an escalation.
async fn sink(
    State(inner): State<Arc<Inner>>,
    Path(node): Path<usize>,
    Json(body): Json<Value>,
) -> StatusCode {
    if locked(&inner.chance).chance(REFUSED_PERMILLE) {
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    let id = body.get("obligation_id").and_then(Value::as_str).unwrap_or_default();
    locked(&inner.sunk).insert((node, id.to_owned()));
    StatusCode::NO_CONTENT
}

/// A node asks for an effect.
async fn ask(
    State(inner): State<Arc<Inner>>,
    Path(node): Path<usize>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let (id, issuer) = (header(&headers, "idempotency-key"), header(&headers, "abhyasa-issuer"));
    if body.get("obligation_id").and_then(Value::as_str) != Some(&id) {
        let detail = format!("the key of an effect is {id:?}, and it is that of {body}");
        inner.book.open().breach("AB-3", Class::Safety, node, detail);
    }
    let Some(plan) = inner.plan(&id) else { return StatusCode::BAD_REQUEST.into_response() };
    // What comes of it is settled as it comes in; a caller that goes away changes nothing.
    let answer = {
        let mut calls = locked(&inner.calls);
        let call = calls.entry((node, issuer, id.clone())).or_default();
        (call.asked, call.last_ms) = (call.asked + 1, unix_ms());
        match (call.effect, plan) {
            (true, Plan::Doubt { .. }) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            (true, _) => said("applied"),
            (false, Plan::Decline) => said("declined"),
            (false, Plan::Defer(times)) if call.asked <= times => said("deferred"),
            (false, Plan::Unreached(times)) if call.asked <= times => {
                StatusCode::SERVICE_UNAVAILABLE.into_response()
            }
            (false, Plan::Doubt { effect }) => {
                call.effect = effect;
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
            (false, _) => {
                call.effect = true;
                said("applied")
            }
        }
    };
    let takes = locked(&inner.chance).range(0, inner.model.call_ms_max);
    tokio::time::sleep(Duration::from_millis(takes)).await;
    answer
}

/// A node asks what became of one it may have asked for.
async fn query(
    State(inner): State<Arc<Inner>>,
    Path((node, id)): Path<(usize, String)>,
    headers: HeaderMap,
) -> Response {
    let key = (node, header(&headers, "abhyasa-issuer"), id);
    let call = locked(&inner.calls).get(&key).copied();
    match (call, inner.plan(&key.2)) {
        (None, _) | (_, None) => StatusCode::NOT_FOUND.into_response(),
        (Some(_), Some(Plan::Doubt { .. })) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        (Some(Call { effect: true, .. }), _) => said("applied"),
        (Some(_), Some(Plan::Decline)) => said("declined"),
        // It was asked for, and has not happened.
        (Some(_), _) => StatusCode::NOT_FOUND.into_response(),
    }
}
