//! Changes of the policy are told to callers: by server-sent events, and to a webhook that a caller registers with
//! its record. Who hears neither may go on asking for the policy.

use super::book::Book;
use super::http::Surface;
use super::line::Line;
use super::{Acap, Denial, Told};
use crate::a2a::reach::{PublicOnly, names_public};
use crate::config::Grace;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse as _, Response};
use proto::backoff::Backoff;
use proto::consent::{Extra, PolicyDiff, PolicyVersion};
use proto::id::AgentId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;

/// Streams of changes of all callers at a time; a further one is refused.
pub(super) const STREAMS_MAX: usize = 1_024;
/// Streams of one caller.
pub(super) const STREAMS_PER_CALLER_MAX: usize = 4;
/// Bytes of the URL of a webhook, and of its token.
pub(super) const HOOK_TEXT_LEN_MAX: usize = 2_048;
/// Webhooks that are called at a time.
pub(super) const HOOKS_CALLED_MAX: usize = 32;
/// Tries to tell a webhook of one version. Then its caller has to ask.
pub(super) const HOOK_TRIES_MAX: u32 = 10;
/// How long a webhook may take to answer.
const HOOK_TIME_MAX: Duration = Duration::from_secs(15);
/// How long between two signs of life of a stream.
const ALIVE_EVERY: Duration = Duration::from_secs(15);
/// Pauses between tries.
const BACKOFF: Backoff = Backoff { base_ms: 500, cap_ms: 60_000, jitter_permille: 0 };
/// Member of a record that registers a webhook.
const MEMBER: &str = "policy_push";

/// A webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Hook {
    url: String,
    /// Shown there as a bearer token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

/// Places of streams.
#[derive(Debug)]
pub(super) struct Streams {
    of_all: Arc<Semaphore>,
    /// Callers are listed as peers.
    of: Mutex<HashMap<Option<AgentId>, Arc<Semaphore>>>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { of_all: Arc::new(Semaphore::new(STREAMS_MAX)), of: Mutex::default() }
    }
}

impl Streams {
    fn place(&self, caller: Option<AgentId>) -> Result<[OwnedSemaphorePermit; 2], Denial> {
        let of = {
            let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(Semaphore::new(STREAMS_PER_CALLER_MAX));
            of.entry(caller).or_insert_with(new).clone()
        };
        match (self.of_all.clone().try_acquire_owned(), of.try_acquire_owned()) {
            (Ok(of_all), Ok(of)) => Ok([of_all, of]),
            _ => {
                let what = format!(
                    "{STREAMS_PER_CALLER_MAX} streams of changes for one caller and {STREAMS_MAX} for all are the limits"
                );
                Err(Denial::new(StatusCode::TOO_MANY_REQUESTS, "full", what))
            }
        }
    }
}

/// What is told of the policy that is served.
fn told(line: &Line) -> Value {
    let policy = &line.policy;
    let material = line
        .before
        .last()
        .map(|before| PolicyDiff::between(before, policy).map_or(true, |diff| diff.material));
    json!({
        "version": policy.version, "document_hash": policy.document_hash,
        "document_uri": policy.document_uri, "publisher": policy.publisher,
        "effective_date": policy.effective_date, "supersedes": policy.supersedes,
        "material": material,
    })
}

/// Versions as they come, of several at once the last.
#[derive(Debug)]
pub(crate) struct Policies {
    acap: Arc<Acap>,
    versions: watch::Receiver<u64>,
}

impl Policies {
    /// The version that is served, and those that come.
    pub(crate) fn of(acap: &Arc<Acap>) -> Self {
        let mut versions = acap.versions();
        versions.mark_changed();
        Self { acap: acap.clone(), versions }
    }

    /// What is told of the next one; at once the first time. May be dropped while it waits.
    pub(crate) async fn next(&mut self) -> Value {
        if self.versions.changed().await.is_err() {
            std::future::pending().await // the node is gone
        }
        told(&self.acap.line())
    }
}

/// The policy that holds, unless `Last-Event-ID` names it, and each further version, by its version as id.
pub(super) async fn changes(State(surface): State<Surface>, request: Request) -> Response {
    let (parts, _) = request.into_parts();
    let begun = surface.caller(&parts).and_then(|caller| surface.acap.streams.place(caller));
    let places = match begun {
        Ok(places) => places,
        Err(denial) => return super::http::answer(Err(denial)),
    };
    let known = last_seen(&parts.headers);
    let (tell, heard) = mpsc::channel(1);
    tokio::spawn(async move {
        let _places = places;
        let acap = surface.acap.clone();
        tokio::select! {
            () = each(&acap, known, &tell) => {}
            () = tell.closed() => {}
            () = crate::mcp::stopped(surface.stop.clone()) => {}
        }
    });
    let alive = KeepAlive::new().interval(ALIVE_EVERY);
    Sse::new(ReceiverStream::new(heard)).keep_alive(alive).into_response()
}

fn last_seen(headers: &HeaderMap) -> Option<String> {
    headers.get("last-event-id")?.to_str().ok().map(str::to_owned)
}

async fn each(acap: &Acap, known: Option<String>, tell: &mpsc::Sender<Result<Event, Infallible>>) {
    let mut versions = acap.versions();
    let mut last = known;
    loop {
        versions.mark_unchanged();
        let line = acap.line();
        let version = line.policy.version.to_string();
        if last.as_ref() != Some(&version) {
            let event = Event::default().event("policy").id(&version).data(told(&line).to_string());
            if tell.send(Ok(event)).await.is_err() {
                return;
            }
            last = Some(version);
        }
        if versions.changed().await.is_err() {
            return; // the node is gone
        }
    }
}

/// The webhook that a record registers; without one it has none.
pub(super) fn hook_of(extra: &Extra, to_private: bool) -> Result<Option<Hook>, Denial> {
    let Some(value) = extra.0.get(MEMBER).filter(|value| !value.is_null()) else {
        return Ok(None);
    };
    let wrong = |what: String| {
        let what = format!("{MEMBER} is no webhook: {what}");
        Err(Denial::new(StatusCode::UNPROCESSABLE_ENTITY, "policy_push", what))
    };
    let hook: Hook = match serde_json::from_value(value.clone()) {
        Ok(hook) => hook,
        Err(error) => return wrong(error.to_string()),
    };
    let token = hook.token.as_deref().unwrap_or_default();
    if hook.url.len() > HOOK_TEXT_LEN_MAX || token.len() > HOOK_TEXT_LEN_MAX {
        return wrong(format!("its url or token has more than {HOOK_TEXT_LEN_MAX} bytes"));
    }
    let url = reqwest::Url::parse(&hook.url).ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    match url {
        None => wrong(format!("{:?} is no http or https URL", hook.url)),
        Some(url) if !to_private && !names_public(&url) => {
            wrong("its url is on this machine or in a private network".to_owned())
        }
        Some(_) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            wrong("its token cannot be sent in a header".to_owned())
        }
        Some(_) => Ok(Some(hook)),
    }
}

impl Acap {
    /// Tells webhooks of changes, for ever. What was told is kept, so that a restart tells the rest.
    pub(crate) async fn push(self: Arc<Self>) {
        let mut client = reqwest::Client::builder()
            .timeout(HOOK_TIME_MAX)
            .redirect(reqwest::redirect::Policy::none());
        if !self.config.a2a.push_to_private {
            client = client.dns_resolver(Arc::new(PublicOnly));
        }
        let client = match client.build() {
            Ok(client) => client,
            Err(error) => {
                tracing::error!(%error, "no HTTP client: webhooks hear of no policy");
                return std::future::pending().await;
            }
        };
        let mut versions = self.versions();
        versions.mark_changed(); // what a restart left
        while versions.changed().await.is_ok() {
            let callers: Vec<AgentId> = {
                let books = self.books.read().unwrap_or_else(PoisonError::into_inner);
                books.keys().cloned().collect()
            };
            let mut calls = JoinSet::new();
            for caller in callers {
                let Some((hook, told)) = self.untold(&caller).await else { continue };
                if calls.len() >= HOOKS_CALLED_MAX {
                    calls.join_next().await;
                }
                let (here, client, versions) = (self.clone(), client.clone(), versions.clone());
                calls
                    .spawn(async move { here.tell(&client, &caller, &hook, told, versions).await });
            }
            while calls.join_next().await.is_some() {}
        }
        std::future::pending().await // the node is gone
    }

    /// The webhook of a caller that has not heard of the policy that is served.
    async fn untold(&self, caller: &AgentId) -> Option<(Hook, Arc<Line>)> {
        let line = self.line();
        let book = self.book(caller).await.ok()?;
        let told = book.kept.hook_told.as_ref() == Some(&line.policy.version);
        Some((book.kept.hook.clone().filter(|_| !told)?, line))
    }

    /// Tells one, until it has taken it, there is a further version, or it was tried often enough.
    async fn tell(
        &self,
        client: &reqwest::Client,
        caller: &AgentId,
        hook: &Hook,
        line: Arc<Line>,
        mut versions: watch::Receiver<u64>,
    ) {
        let version = &line.policy.version;
        for tries in 0..HOOK_TRIES_MAX {
            let mut request = client.post(&hook.url).json(&told(&line));
            if let Some(token) = &hook.token {
                request = request.bearer_auth(token);
            }
            let why = match request.send().await {
                Ok(answer) if answer.status().is_success() => {
                    return self.note_told(caller, hook, version).await;
                }
                Ok(answer) => answer.status().to_string(),
                Err(error) => error.without_url().to_string(),
            };
            tracing::info!(%caller, %version, why, tries, "a webhook has not taken a policy");
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(BACKOFF.ceiling_ms(tries))) => {}
                _ = versions.changed() => return, // that is told instead
            }
        }
        tracing::warn!(%caller, %version, "a webhook is not told of a policy: {HOOK_TRIES_MAX} tries");
    }

    async fn note_told(&self, caller: &AgentId, hook: &Hook, version: &PolicyVersion) {
        let Ok(book) = self.book(caller).await else { return };
        if book.kept.hook.as_ref() != Some(hook) {
            return; // it has another by now
        }
        let mut next: Book = book.clone();
        next.kept.hook_told = Some(version.clone());
        if let Err(denial) = self.keep(caller, book, next, Vec::new()).await {
            tracing::error!(%caller, %denial, "that a webhook was told is not kept");
        }
    }

    /// Whether calls of `caller` that run are to stop, since consent has ended by another way than a revocation,
    /// which always stops them.
    //= S7
    pub(crate) async fn stops(&self, caller: &AgentId) -> Result<(), Denial> {
        match self.config.acap.grace {
            Grace::Finish => Ok(()),
            Grace::Stop => self.holds(caller).await,
        }
    }

    /// Whether the consent of `caller` holds, as it is known now.
    pub(crate) async fn holds(&self, caller: &AgentId) -> Result<(), Denial> {
        let mut book = self.book(caller).await?.clone();
        self.look(caller, &mut book, &Told::default())?;
        if book.machine.state().is_live() {
            return Ok(());
        }
        let what = format!("consent of {caller} has ended");
        let ended = book.kept.ended.map(|why| json!(why));
        Err(self.hint(Denial::forbidden("consent_stale", what).with("reconsent_trigger", ended)))
    }
}
