//! `abhyasa mcp proxy --listen`: Streamable HTTP for clients on this machine.

use super::MESSAGE_LEN_MAX;
use super::hub::{self, Hub, Room};
use super::link::Far;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use serde_json::Value;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// How long a session may be idle.
const SESSION_IDLE_MAX: Duration = Duration::from_secs(600);
/// How often idle sessions are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);

/// Serves clients until `stop`.
///
/// # Errors
/// The listener is broken.
pub(crate) async fn serve(
    far: Far,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (_stopping, stopped) = watch::channel(false); // all ends with this
    let hub = Arc::new(Hub::new(far, false, Room::default(), stopped));
    let router = Router::new()
        .route("/mcp", axum::routing::post(post).get(get).delete(delete))
        .layer(middleware::from_fn(of_this_machine))
        .layer(DefaultBodyLimit::max(MESSAGE_LEN_MAX))
        .with_state(hub.clone());
    let sweep = async {
        loop {
            tokio::time::sleep(SWEEP_EVERY).await;
            hub.sweep(SESSION_IDLE_MAX);
        }
    };
    tokio::select! {
        served = axum::serve(listener, router).into_future() => served,
        () = sweep => Ok(()),
        () = stop => Ok(()),
    }
}

/// Refuses web pages: a browser names the page in `Origin`, or its own host in `Host` after DNS
/// rebinding.
async fn of_this_machine(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let local = |host: &str| {
        let host = host.parse::<Authority>();
        host.is_ok_and(|host| {
            let name = host.host().trim_matches(['[', ']']);
            name.eq_ignore_ascii_case("localhost")
                || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
        })
    };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if headers.contains_key(header::ORIGIN) || !host.is_some_and(local) {
        let what = "this proxy answers to programs of this machine, at a loopback name or address";
        return hub::error(StatusCode::FORBIDDEN, &Value::Null, hub::INVALID, what);
    }
    next.run(request).await
}

async fn post(State(hub): State<Arc<Hub>>, headers: HeaderMap, body: Bytes) -> Response {
    hub.post(&headers, &body).await
}

async fn get(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    hub.get(&headers).await
}

async fn delete(State(hub): State<Arc<Hub>>, headers: HeaderMap) -> Response {
    hub.delete(&headers)
}
