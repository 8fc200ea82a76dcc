//! Messages of MCP, one a line, to a server that speaks Streamable HTTP, and its answers back.
//!
//! A message is passed on as it came; only as much of it is read as its HTTP headers must repeat. A
//! client before 2026-07-28 has a session at the server. When the server has forgotten it, such as by a
//! restart, it is begun again the way the client began it, with what the client had subscribed to, so
//! that the client does not notice.

mod way;

pub(crate) use way::{Behind, Target, Way};

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use way::{Response, Unanswered};

/// Requests of the client that are not answered yet. A further one is answered with an error.
const REQUESTS_MAX: usize = 256;
/// How long what was asked may take to be answered once the client has said its last.
const LAST_ANSWERS_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the server may take to take what has no answer: what comes behind it waits.
const TELL_TIME_MAX: Duration = Duration::from_secs(5);
/// How long to wait before the stream of a session is opened again.
const REOPEN_AFTER: Duration = Duration::from_secs(1);
/// JSON-RPC: a line that is no JSON.
const PARSE_ERROR: i64 = -32_700;

const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");
/// Where a message of 2026-07-28 says its version.
const META_VERSION: &str = "/params/_meta/io.modelcontextprotocol~1protocolVersion";

/// Forwards lines until there are no more, or the way is gone. What comes back goes to `lines`, which their reader bounds.
///
/// # Errors
/// `read` is broken, or a line is too long.
pub(crate) async fn forward<R: AsyncRead + Unpin>(
    way: Way,
    read: R,
    lines: mpsc::Sender<String>,
) -> anyhow::Result<()> {
    let forwarder = Arc::new(Forwarder {
        way,
        lines,
        session: Mutex::default(),
        beginning: tokio::sync::Mutex::default(),
    });
    forwarder.read(BufReader::new(read)).await
}

/// What a client before 2026-07-28 has at the server.
#[derive(Default)]
struct Session {
    id: Option<HeaderValue>,
    version: Option<HeaderValue>,
    /// The message that began it.
    began: Option<String>,
    /// Resources it is subscribed to.
    subscribed: BTreeSet<String>,
}

struct Forwarder {
    way: Way,
    lines: mpsc::Sender<String>,
    session: Mutex<Session>,
    /// Held while a session is begun again.
    beginning: tokio::sync::Mutex<()>,
}

impl Forwarder {
    fn session(&self) -> std::sync::MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn say(&self, line: String) {
        // Nobody reads any more: then nobody writes either, and the end of the input follows.
        let _ = self.lines.send(line).await;
    }

    async fn fail(&self, id: &Value, error: Unanswered) {
        let Unanswered { code, message } = error;
        let error = json!({ "code": code, "message": message });
        self.say(json!({ "jsonrpc": "2.0", "id": id, "error": error }).to_string()).await;
    }

    /// Reads messages until there are no more, then lets what was asked be answered.
    async fn read<R: AsyncRead + Unpin>(
        self: &Arc<Self>,
        mut input: BufReader<R>,
    ) -> anyhow::Result<()> {
        let mut asked = JoinSet::new();
        let mut running: HashMap<String, (AbortHandle, bool)> = HashMap::new();
        let mut stream: Option<tokio::task::JoinHandle<()>> = None;
        let mut gone = false;
        let len_max = self.way.len_max();
        loop {
            let mut line = Vec::new();
            let mut source = (&mut input).take(len_max as u64 + 1);
            let read = tokio::select! {
                read = source.read_until(b'\n', &mut line) => read?,
                () = self.way.gone() => {
                    gone = true;
                    break;
                }
            };
            if read == 0 {
                break;
            }
            anyhow::ensure!(line.len() <= len_max, "a message of more than {len_max} bytes");
            while asked.try_join_next().is_some() {}
            running.retain(|_, (task, _)| !task.is_finished());
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            if text.is_empty() {
                continue;
            }
            let message: Value = match serde_json::from_str(&text) {
                Ok(message) => message,
                Err(error) => {
                    let message = format!("not JSON: {error}");
                    self.fail(&Value::Null, Unanswered { code: PARSE_ERROR, message }).await;
                    continue;
                }
            };
            let method = message.get("method").and_then(Value::as_str).unwrap_or_default();
            match message.get("id") {
                Some(id) if !method.is_empty() => {
                    if running.len() >= REQUESTS_MAX {
                        let message =
                            format!("{REQUESTS_MAX} requests are not answered yet, the limit");
                        self.fail(id, self.way.busy(message)).await;
                        continue;
                    }
                    let endless = method == "subscriptions/listen";
                    let (here, id) = (self.clone(), id.clone());
                    let key = id.to_string();
                    let task = asked.spawn(async move { here.ask(text, message, id).await });
                    running.insert(key, (task, endless));
                }
                _ => {
                    let cancels = method == "notifications/cancelled";
                    let in_session = self.session().id.is_some();
                    let hears = self.way.hears_cancels();
                    if cancels && (!in_session || hears) {
                        // A client of 2026-07-28 cancels over HTTP by hanging up.
                        let id = message.pointer("/params/requestId").map(Value::to_string);
                        if let Some((task, _)) = id.and_then(|id| running.remove(&id)) {
                            task.abort(); // and so it hears of no end without an answer
                        }
                        if hears && let Err(error) = self.tell(text, &message).await {
                            tracing::warn!(method, error = error.message, "not passed on");
                        }
                        continue;
                    }
                    let initialized = method == "notifications/initialized";
                    if let Err(error) = self.tell(text, &message).await {
                        tracing::warn!(method, error = error.message, "not passed on");
                    }
                    if initialized && stream.is_none() {
                        let here = self.clone();
                        stream = Some(tokio::spawn(async move { here.follow().await }));
                    }
                }
            }
        }
        if let Some(stream) = stream {
            stream.abort();
        }
        running.into_values().filter(|(_, endless)| *endless).for_each(|(task, _)| task.abort());
        let rest = async { while asked.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS_TIME_MAX, rest).await;
        asked.shutdown().await;
        let id = self.session().id.take();
        if let Some(id) = id.filter(|_| !gone) {
            let headers = HeaderMap::from_iter([(SESSION, id)]);
            let max = Some(LAST_ANSWERS_TIME_MAX);
            let _ = self.way.send(Method::DELETE, headers, String::new(), max).await;
        }
        Ok(())
    }

    /// Passes a request on, and its answer back. There is always one.
    async fn ask(self: Arc<Self>, text: String, message: Value, id: Value) {
        let begins = message.get("method").and_then(Value::as_str) == Some("initialize");
        let answered = match self.post(text.clone(), &message).await {
            Ok(response) if begins => self.begin(text, response, &id).await,
            Ok(response) => {
                self.remember(&message);
                self.pass(response, &id).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = answered {
            self.fail(&id, error).await;
        }
    }

    /// Passes on what has no answer.
    async fn tell(&self, text: String, message: &Value) -> Result<(), Unanswered> {
        let posted = tokio::time::timeout(TELL_TIME_MAX, self.post(text, message)).await;
        let response = posted.map_err(|_| self.way.lost("the server takes too long"))??;
        match response.status() {
            status if status.is_success() => Ok(()),
            status => Err(self.way.lost(format!("the server answered {status}"))),
        }
    }

    /// Posts a message; once more if its session is gone and can be begun again.
    async fn post(&self, text: String, message: &Value) -> Result<Response, Unanswered> {
        let headers = self.headers(message);
        let session = headers.get(SESSION).cloned();
        let response = self.send(text.clone(), headers).await?;
        match session {
            Some(session) if response.status() == StatusCode::NOT_FOUND => {
                self.begin_again(&session).await?;
                self.send(text, self.headers(message)).await
            }
            _ => Ok(response),
        }
    }

    async fn send(&self, text: String, headers: HeaderMap) -> Result<Response, Unanswered> {
        self.way.send(Method::POST, headers, text, None).await
    }

    /// The headers that must say what a message says (MCP, Streamable HTTP).
    fn headers(&self, message: &Value) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, text/event-stream"));
        let text = |at: &str| message.pointer(at).and_then(Value::as_str);
        let mut put = |name: HeaderName, value: Option<&str>| {
            if let Some(Ok(value)) = value.map(HeaderValue::from_str) {
                headers.insert(name, value);
            }
        };
        let method = text("/method");
        if let Some(version) = text(META_VERSION) {
            put(VERSION, Some(version));
            put(METHOD, method);
            let named = match method {
                Some("tools/call" | "prompts/get") => text("/params/name"),
                Some("resources/read") => text("/params/uri"),
                _ => None,
            };
            put(NAME, named);
        } else if method != Some("initialize") {
            let session = self.session();
            let known = [(SESSION, session.id.clone()), (VERSION, session.version.clone())];
            headers.extend(known.into_iter().filter_map(|(name, value)| Some((name, value?))));
        }
        headers
    }

    /// Takes what begins a session from the answer to `initialize`.
    async fn begin(&self, text: String, response: Response, id: &Value) -> Result<(), Unanswered> {
        let session = response.headers().get(SESSION).cloned();
        let (text_of_answer, answer) = self.one(response, id).await?;
        let version = answer.pointer("/result/protocolVersion").and_then(Value::as_str);
        if let Some(version) = version {
            let mut now = self.session();
            now.id = session;
            now.version = HeaderValue::from_str(version).ok();
            now.began = Some(text);
            now.subscribed.clear();
        }
        self.say(text_of_answer).await;
        Ok(())
    }

    /// Begins the session again, as the client began it, unless somebody did since `forgotten`.
    async fn begin_again(&self, forgotten: &HeaderValue) -> Result<(), Unanswered> {
        let _beginning = self.beginning.lock().await;
        if self.session().id.as_ref() != Some(forgotten) {
            return Ok(());
        }
        let (began, subscribed) = {
            let session = self.session();
            (session.began.clone(), session.subscribed.clone())
        };
        let gone = || self.way.lost("the server has forgotten the session");
        let began = began.ok_or_else(gone)?;
        let message: Value = serde_json::from_str(&began).map_err(|_| gone())?;
        let response = self.send(began, self.headers(&message)).await?;
        let id = response.headers().get(SESSION).cloned();
        let (_, answer) = self.one(response, message.get("id").unwrap_or(&Value::Null)).await?;
        if id.is_none() || answer.get("result").is_none() {
            return Err(gone());
        }
        self.session().id = id;
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        self.send(initialized.to_string(), self.headers(&initialized)).await?;
        for (number, uri) in subscribed.into_iter().enumerate() {
            let id = format!("abhyasa-again-{number}");
            let params = json!({ "uri": uri });
            let again = json!({ "jsonrpc": "2.0", "id": id, "method": "resources/subscribe", "params": params });
            let response = self.send(again.to_string(), self.headers(&again)).await?;
            self.one(response, &json!(id)).await?;
        }
        Ok(())
    }

    /// Remembers what a session is subscribed to.
    fn remember(&self, message: &Value) {
        let text = |at: &str| message.pointer(at).and_then(Value::as_str);
        let Some(uri) = text("/params/uri") else { return };
        match text("/method") {
            Some("resources/subscribe") => {
                self.session().subscribed.insert(uri.to_owned());
            }
            Some("resources/unsubscribe") => {
                self.session().subscribed.remove(uri);
            }
            _ => {}
        }
    }

    /// Passes an answer back, and what comes before it.
    async fn pass(&self, response: Response, id: &Value) -> Result<(), Unanswered> {
        let mut answered = false;
        let mut messages = Messages::of(&self.way, response, id.clone());
        while let Some((text, message)) = messages.next().await? {
            answered |= message.get("id") == Some(id) && message.get("method").is_none();
            self.say(text).await;
        }
        if answered { Ok(()) } else { Err(self.ended()) }
    }

    /// The one answer that there is to be.
    async fn one(&self, response: Response, id: &Value) -> Result<(String, Value), Unanswered> {
        let mut messages = Messages::of(&self.way, response, id.clone());
        while let Some((text, message)) = messages.next().await? {
            if message.get("id") == Some(id) {
                return Ok((text, message));
            }
        }
        Err(self.ended())
    }

    fn ended(&self) -> Unanswered {
        self.way.lost("the server ended the stream before it answered")
    }

    /// Follows what the server says unasked, for as long as the session lives.
    async fn follow(&self) {
        loop {
            let (id, version) = {
                let session = self.session();
                (session.id.clone(), session.version.clone())
            };
            let Some(id) = id else { return }; // the server keeps no sessions
            let accept = HeaderValue::from_static("text/event-stream");
            let mut headers = HeaderMap::from_iter([(SESSION, id.clone()), (ACCEPT, accept)]);
            headers.extend(version.map(|version| (VERSION, version)));
            match self.way.send(Method::GET, headers, String::new(), None).await {
                Ok(response) if response.status().is_success() => {
                    let mut messages = Messages::of(&self.way, response, Value::Null);
                    while let Ok(Some((text, _))) = messages.next().await {
                        self.say(text).await;
                    }
                }
                Ok(response) if response.status() == StatusCode::NOT_FOUND => {
                    let _ = self.begin_again(&id).await;
                }
                _ => {}
            }
            tokio::time::sleep(REOPEN_AFTER).await;
        }
    }
}

/// The messages of a response, whether it is one or a stream of them.
struct Messages<'a> {
    way: &'a Way,
    response: Response,
    /// Of the request, which the one message of no stream must answer.
    id: Value,
    events: Events,
    ready: VecDeque<String>,
    over: bool,
}

impl<'a> Messages<'a> {
    fn of(way: &'a Way, response: Response, id: Value) -> Self {
        let (events, ready) = (Events::default(), VecDeque::new());
        Self { way, response, id, events, ready, over: false }
    }

    /// The next message, as it came and as what it is.
    async fn next(&mut self) -> Result<Option<(String, Value)>, Unanswered> {
        let kind = self.response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return if std::mem::replace(&mut self.over, true) {
                Ok(None)
            } else {
                self.whole().await.map(Some)
            };
        }
        loop {
            if let Some(text) = self.ready.pop_front() {
                let message = serde_json::from_str(&text);
                let message = message.map_err(|_| self.way.lost("an event is no message"))?;
                return Ok(Some((text, message)));
            }
            let Some(chunk) = self.response.chunk().await? else { return Ok(None) };
            let taken = self.events.take(&chunk, self.way.len_max());
            self.ready.extend(taken.map_err(|what| self.way.lost(what))?);
        }
    }

    async fn whole(&mut self) -> Result<(String, Value), Unanswered> {
        let mut body = Vec::new();
        let len_max = self.way.len_max();
        while let Some(chunk) = self.response.chunk().await? {
            body.extend_from_slice(&chunk);
            if body.len() > len_max {
                return Err(self.way.lost(format!("an answer of more than {len_max} bytes")));
            }
        }
        let text = String::from_utf8_lossy(&body).into_owned();
        match serde_json::from_slice::<Value>(&body) {
            Ok(message)
                if message.get("jsonrpc").is_some() && message.get("id") == Some(&self.id) =>
            {
                Ok((one_line(&text), message))
            }
            other => {
                let said = other.ok();
                let said = said.as_ref().and_then(|body| body.pointer("/error/message")?.as_str());
                Err(self.way.refused(self.response.status(), said.unwrap_or(&text)))
            }
        }
    }
}

/// JSON without the line breaks that stand between its parts; there are none inside of them.
fn one_line(json: &str) -> String {
    json.trim().replace(['\n', '\r'], " ")
}

/// Server-sent events, as far as they carry messages.
#[derive(Default)]
struct Events {
    buffer: Vec<u8>,
    /// Bytes at its begin in which no event ends.
    searched: usize,
}

impl Events {
    /// The messages that end in `chunk`, each on one line.
    fn take(&mut self, chunk: &[u8], len_max: usize) -> Result<Vec<String>, String> {
        self.buffer.extend(chunk.iter().filter(|byte| **byte != b'\r'));
        let mut messages = Vec::new();
        loop {
            let rest = self.buffer.get(self.searched..).unwrap_or_default();
            let Some(end) = rest.windows(2).position(|pair| pair == b"\n\n") else { break };
            let event: Vec<u8> = self.buffer.drain(..self.searched + end + 2).collect();
            self.searched = 0;
            let event = String::from_utf8_lossy(&event);
            let lines: Vec<&str> = event
                .lines()
                .filter_map(|line| line.strip_prefix("data:"))
                .map(|data| data.strip_prefix(' ').unwrap_or(data))
                .collect();
            let data = lines.join("\n");
            if !data.is_empty() {
                messages.push(one_line(&data));
            }
        }
        self.searched = self.buffer.len().saturating_sub(1); // of an end the first half may be there
        if self.buffer.len() > len_max {
            return Err(format!("an event of more than {len_max} bytes"));
        }
        Ok(messages)
    }
}

#[cfg(test)]
mod tests {
    use super::way::LINE_LEN_MAX;
    use super::*;

    #[test]
    fn events_are_messages_on_one_line_however_they_are_cut() {
        let stream =
            "id: 1\nretry: 3000\ndata:\n\n: alive\n\ndata: {\"a\":\r\ndata: 1}\n\ndata: {}\n\n";
        for cut in 0..stream.len() {
            let mut events = Events::default();
            let mut found = events.take(&stream.as_bytes()[..cut], LINE_LEN_MAX).unwrap();
            found.extend(events.take(&stream.as_bytes()[cut..], LINE_LEN_MAX).unwrap());
            assert_eq!(found, ["{\"a\": 1}", "{}"], "cut at {cut}");
        }
    }
}
