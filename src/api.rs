//! The HTTP API of a node: for the agent it serves, for its operator, and for peers that speak the
//! papers' HTTP binding.
//!
//! On a loopback address without a token it trusts its machine, but no web page; beyond loopback
//! the configuration demands a token. Peers are known by their own tokens, wherever they call from.
//! Everything is bounded: connections, heads, bodies, batches, pages, waits.

mod auth;
pub(crate) mod belief;
pub(crate) mod cells;
pub(crate) mod error;
pub(crate) mod extract;
pub(crate) mod groups;
pub(crate) mod h3;
pub(crate) mod issue;
pub(crate) mod listen;
pub(crate) mod lists;
mod openapi;
pub(crate) mod operator;
mod peer;
pub(crate) mod transfer;
mod watch;

pub(crate) use auth::Certified;
pub use auth::{Auth, AuthError};

use crate::a2a::http as a2a;
use crate::acap::evidence::published;
use crate::acap::http as acap;
use crate::bridge;
use crate::calls::Serving;
use crate::mcp;
use crate::node::NodeHandle;
use axum::Router;
use axum::extract::{DefaultBodyLimit, MatchedPath, Request};
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch::{self as flag, Receiver};

/// How long requests in progress may take to end once the node stops.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// What every handler has.
#[derive(Clone)]
pub(crate) struct App {
    node: NodeHandle,
    auth: Arc<Auth>,
    stop: Receiver<bool>,
    /// The keys by which this node signs, as a JWKS.
    keys: Option<serde_json::Value>,
}

impl App {
    /// Returns when the server is told to stop: for handlers that would go on.
    async fn stopped(&self) {
        if self.stop.clone().wait_for(|stop| *stop).await.is_err() {
            std::future::pending().await // nobody can tell us any more
        }
    }
}

/// One table: the router serves it, and a test compares the document with it.
macro_rules! routes {
    ($name:ident $routes:ident { $($method:ident $path:literal => $handler:path;)+ }) => {
        #[cfg(test)]
        const $routes: &[(&str, &str)] = &[$((stringify!($method), $path)),+];

        fn $name() -> Router<App> {
            Router::new()$(.route($path, axum::routing::$method($handler)))+
        }
    };
}

routes! { operator_routes OPERATOR {
    post "/v1/obligations" => issue::issue;
    get "/v1/obligations/{id}" => transfer::status;
    post "/v1/belief_updates" => belief::send;
    post "/v1/groups/{group}/obligations" => groups::issue;
    get "/v1/groups/{group}/obligations/{id}" => groups::status;
    get "/v1/pending" => lists::pending;
    get "/v1/terminal" => lists::terminal;
    get "/v1/escalations" => operator::escalations;
    post "/v1/escalations/{id}/ack" => operator::ack_escalation;
    post "/v1/escalations/{id}/answer" => operator::answer_review;
    get "/v1/reconciliation" => operator::reconciliation;
    post "/v1/reconciliation/{number}/resolve" => operator::resolve;
    get "/v1/authorizations" => cells::authorizations;
    get "/v1/authorizations/check" => cells::check;
    get "/v1/weights" => cells::weights;
    get "/v1/peers" => watch::peers;
    get "/v1/events" => watch::events;
    get "/metrics" => watch::metrics;
} }

routes! { open_routes OPEN {
    get "/healthz" => watch::health;
    get "/readyz" => watch::readiness;
    get "/openapi.json" => openapi::document;
} }

routes! { peer_routes PEER {
    post "/abhyasa/obligations" => peer::offer;
    post "/abhyasa/custody_ack" => peer::custody_ack;
} }

#[cfg(test)]
fn all_routes() -> impl Iterator<Item = (&'static str, &'static str)> {
    [OPERATOR, OPEN, PEER].into_iter().flatten().copied()
}

/// The API of `node`, for those whom `auth` lets in.
pub fn router(node: NodeHandle, auth: Auth) -> Router {
    let (_, stop) = flag::channel(false);
    let keys = published(node.config()).unwrap_or_else(|error| {
        tracing::error!(%error, "no keys are published");
        None
    });
    routes(App { node, auth: Arc::new(auth), stop, keys })
}

fn routes(app: App) -> Router {
    let operator = middleware::from_fn_with_state(app.clone(), auth::operator);
    let no_browser = middleware::from_fn_with_state(app.clone(), auth::no_browser);
    let api = operator_routes()
        .route_layer(operator)
        .merge(open_routes())
        .route_layer(no_browser)
        .with_state(app.clone());
    let own = routes_of_mcp(&app).merge(routes_of_consent(&app));
    around(api.merge(own).merge(routes_of_peers(&app)), &app)
}

/// MCP, for operators. Like A2A it is described by its own specification, not by our document.
fn routes_of_mcp(app: &App) -> Router {
    if !app.node.config().mcp.enabled {
        return Router::new();
    }
    mcp::http::router(app.node.clone(), app.stop.clone())
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::operator))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::own_origin))
}

/// Consent, ours to callees and that of callers, for operators.
fn routes_of_consent(app: &App) -> Router {
    let consents = app.node.consents().cloned();
    if consents.is_none() && app.node.acap().is_none() {
        return Router::new();
    }
    consents
        .map_or_else(Router::new, crate::acap::caller::http::router)
        .merge(crate::acap::operator::router(app.node.clone()))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::operator))
        .route_layer(middleware::from_fn_with_state(app.clone(), auth::no_browser))
}

/// What others than the operator may call, over HTTP of any version. A2A and ACAP are described by their own
/// specifications and by the agent card, not by our document.
fn routes_of_peers(app: &App) -> Router {
    let a2a = app.node.a2a().map_or_else(Router::new, |a2a| {
        let (auth, stop) = (app.auth.clone(), app.stop.clone());
        a2a::router(a2a::Surface { a2a: a2a.clone(), auth, stop })
    });
    let acap = app.node.acap().map_or_else(Router::new, |acap| {
        acap::router(acap::Surface {
            acap: acap.clone(),
            auth: app.auth.clone(),
            stop: app.stop.clone(),
        })
    });
    let keys = app.keys.clone().map_or_else(Router::new, |keys| {
        let serve = async move || axum::Json(keys.clone());
        Router::new().route("/.well-known/jwks.json", axum::routing::get(serve))
    });
    peer_routes().with_state(app.clone()).merge(a2a).merge(acap).merge(keys)
}

fn around(router: Router, app: &App) -> Router {
    let router = router
        .fallback(watch::no_route)
        .method_not_allowed_fallback(watch::no_method)
        .layer(DefaultBodyLimit::max(app.node.config().api.body_len_max))
        .layer(middleware::from_fn(log));
    if !app.node.config().api.http3 {
        return router;
    }
    // RFC 7838: the same is at the QUIC port of this host.
    let port = app.node.quic_address().port();
    let Ok(value) = HeaderValue::try_from(format!("h3=\":{port}\"; ma=86400")) else {
        return router;
    };
    router.layer(middleware::map_response(move |mut response: Response| {
        response.headers_mut().insert(header::ALT_SVC, value.clone());
        std::future::ready(response)
    }))
}

/// One line per request, without what it carries.
async fn log(request: Request, next: Next) -> Response {
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("(none)", MatchedPath::as_str);
    tracing::debug!(%method, path, status = response.status().as_u16(), "request");
    response
}

/// Serves the API of `node` on `listener` until `shutdown`; then lets requests in progress end.
///
/// # Errors
/// A token file or the keys to publish cannot be used, or the listener is broken.
pub async fn serve(
    listener: TcpListener,
    node: NodeHandle,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let auth = Auth::load(node.config()).map_err(io::Error::other)?;
    let (stopping, stop) = flag::channel(false);
    let config = node.config().clone();
    let wait = Duration::from_secs(config.api.wait_seconds_max.max(config.a2a.wait_seconds_max));
    let bounded =
        listen::Bounded::new(listener, config.api.connections_max, listen::IDLE_TIME_MAX, wait);
    let keys = published(&config).map_err(io::Error::other)?;
    let app = App { node, auth: Arc::new(auth), stop: stop.clone(), keys };
    let http3 = app.node.http3().map(|connections| {
        let mut body_len_max = config.api.body_len_max.max(config.a2a.request_len_max);
        let mut router = routes_of_peers(&app);
        if let Some(bridge) = app.node.bridge() {
            router = router.merge(bridge::router(bridge, stop.clone()));
            body_len_max = body_len_max.max(bridge::MESSAGE_LEN_MAX);
        }
        let router = around(router, &app);
        // Each proxy has a connection of its own, beside that of the node.
        let per_peer_max = 2 * config.quic.connections_per_peer_max;
        let serving = Serving { per_peer_max, stop: stop.clone() };
        h3::Http3::new(router, body_len_max, serving).serve(connections)
    });
    let told = app.clone();
    let http3 = async {
        if let Some(http3) = http3 {
            http3.await;
        }
    };
    let server = axum::serve(bounded, listen::Counting(routes(app)))
        .with_graceful_shutdown(async move { told.stopped().await });
    let over = async move {
        shutdown.await;
        let _ = stopping.send(true);
        tokio::time::sleep(STOP_TIME_MAX).await;
    };
    tokio::select! {
        (result, ()) = async { tokio::join!(server, http3) } => result,
        () = over => Ok(()),
    }
}
