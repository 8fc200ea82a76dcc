//! Small HTTP services that nodes call: handlers and sinks.

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// What a service does with the next calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// Applies, and says so.
    #[default]
    Applies,
    Declines,
    Defers,
    /// Applies, and answers 500.
    LosesAnswer,
    /// 503, without an effect.
    Down,
    /// Applies, and answers 500; then 503 to every query.
    Gone,
    /// Neither posts nor queries get a usable answer.
    Mute,
    /// Takes the call, and does nothing for longer than anybody waits.
    Hangs,
}

#[derive(Debug, Default)]
pub struct Service {
    pub mood: Mutex<Mood>,
    /// Effects by idempotency key: how often each happened.
    pub effects: Mutex<BTreeMap<String, u32>>,
    /// Every POST: its idempotency key, issuer header and body.
    pub posts: Mutex<Vec<(String, String, Value)>>,
    /// The issuer header of every status query.
    pub queries: Mutex<Vec<String>>,
}

impl Service {
    /// Starts it; `POST /` and `GET /{id}`.
    pub async fn start() -> (Arc<Self>, SocketAddr) {
        let service = Arc::new(Self::default());
        let router = Router::new()
            .route("/do", post(call))
            .route("/do/{id}", get(query))
            .with_state(service.clone());
        (service, serve(router).await)
    }

    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn effects_of(&self, id: &str) -> u32 {
        self.effects.lock().unwrap().get(id).copied().unwrap_or(0)
    }

    pub fn posts_of(&self, id: &str) -> usize {
        self.posts.lock().unwrap().iter().filter(|(key, ..)| key == id).count()
    }
}

pub async fn serve(router: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn text(headers: &HeaderMap, name: &str) -> String {
    headers.get(name).map_or_else(String::new, |value| value.to_str().unwrap().to_owned())
}

async fn call(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let id = text(&headers, "idempotency-key");
    let value = serde_json::from_slice(&body).unwrap();
    service.posts.lock().unwrap().push((id.clone(), text(&headers, "abhyasa-issuer"), value));
    let effect = || *service.effects.lock().unwrap().entry(id.clone()).or_default() += 1;
    let mood = *service.mood.lock().unwrap();
    match mood {
        Mood::Applies => {
            effect();
            axum::Json(json!({ "status": "applied" })).into_response()
        }
        Mood::Declines => {
            axum::Json(json!({ "status": "declined", "reason": "not my patient" })).into_response()
        }
        Mood::Defers => {
            axum::Json(json!({ "status": "deferred", "reason": "later" })).into_response()
        }
        Mood::LosesAnswer | Mood::Mute | Mood::Gone => {
            effect();
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
        Mood::Down => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Mood::Hangs => std::future::pending().await,
    }
}

async fn query(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Response {
    service.queries.lock().unwrap().push(text(&headers, "abhyasa-issuer"));
    if *service.mood.lock().unwrap() == Mood::Mute {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    if *service.mood.lock().unwrap() == Mood::Gone {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    match service.effects_of(&id) {
        0 => StatusCode::NOT_FOUND.into_response(),
        _ => axum::Json(json!({ "status": "applied" })).into_response(),
    }
}
