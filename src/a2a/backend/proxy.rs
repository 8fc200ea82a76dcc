//! An A2A agent behind the node, over HTTP: gets each message once, and its tasks are followed over
//! lost connections and restarts of the node.
//!
//! The agent has task ids of its own; ours map to them. That a message is about to be sent is durable
//! before it is. When the node goes down between that and the agent's first word, nobody knows
//! whether the agent has it: the task fails and says so, since A2A has no way to ask.

use super::{Backend, Doing, Profile, Turn, artifact};
use crate::a2a::fault::{Fault, Kind};
use crate::a2a::record::{Edit, Record};
use crate::a2a::types::{Message, StreamResponse, Task, TaskState, TaskStatus};
use crate::config::HttpUrl;
use proto::backoff::Backoff;
use reqwest::{Response, Url};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an agent card is used before it is fetched again.
const CARD_FRESH: Duration = Duration::from_secs(30);
/// How long fetching one may take; then the one before is used.
const CARD_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes of an agent card.
const CARD_LEN_MAX: usize = 1024 * 1024;
/// How long a connection to the agent may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a short call may take: one that does not wait for the agent's work.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// How often an agent that is away, or tells nothing by itself, is asked.
const ASK_AGAIN: Backoff = Backoff { base_ms: 250, cap_ms: 5_000, jitter_permille: 200 };
/// What the task says when nobody can know.
const IN_DOUBT: &str = "the node went down while this was being given to the agent: whether the agent has it is not known";

/// The agent.
#[derive(Debug)]
pub(crate) struct Proxy {
    base: HttpUrl,
    client: reqwest::Client,
    silent_max: Duration,
    event_len_max: usize,
    card: Mutex<Card>,
}

/// What was last heard of the agent's card.
#[derive(Clone, Debug, Default)]
struct Card {
    asked: Option<Instant>,
    profile: Arc<Profile>,
    endpoint: Option<Endpoint>,
}

/// Where the agent takes JSON-RPC of A2A 1.0.
#[derive(Clone, Debug, PartialEq)]
struct Endpoint {
    url: Url,
    /// Named in each call there, if it is not empty (A2A §4.4.6).
    tenant: String,
    streams: bool,
}

/// What we remember of a task over a restart.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Memory {
    /// The message was sent, or was about to be.
    sending: bool,
    task: Option<String>,
    context: Option<String>,
    /// What the agent last asked back: while its task still asks it, it has no answer.
    question: Option<String>,
}

impl Memory {
    fn of(record: &Record) -> Self {
        serde_json::from_value(record.memory.clone()).unwrap_or_default()
    }

    fn keep(&self, edit: &mut Edit) {
        edit.record.memory = serde_json::to_value(self).unwrap_or_default();
    }
}

/// Why a call of the agent has no result.
#[derive(Debug)]
enum Lost {
    /// It was not reached, so it has nothing of it.
    Unreached(String),
    /// The connection ended, or what came was no answer.
    Broken(String),
    /// It answered with an error.
    Refused { code: i64, message: String },
}

impl Lost {
    fn text(self) -> String {
        match self {
            Self::Unreached(why) => format!("the agent cannot be reached: {why}"),
            Self::Broken(why) => format!("the agent's answer was lost: {why}"),
            Self::Refused { code, message } => format!("the agent refused ({code}): {message}"),
        }
    }
}

impl From<reqwest::Error> for Lost {
    fn from(error: reqwest::Error) -> Self {
        let unreached = error.is_connect() || error.is_builder();
        let why = error.without_url().to_string();
        if unreached { Self::Unreached(why) } else { Self::Broken(why) }
    }
}

impl Proxy {
    pub(crate) fn new(
        base: HttpUrl,
        silent_max: Duration,
        event_len_max: usize,
    ) -> Result<Self, reqwest::Error> {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIME_MAX)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { base, client, silent_max, event_len_max, card: Mutex::default() })
    }

    fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The card, fetched again when it is old. While the agent is away the last one stands.
    async fn look(&self) -> Card {
        {
            let mut card = self.card();
            if card.asked.is_some_and(|asked| asked.elapsed() < CARD_FRESH) {
                return card.clone();
            }
            card.asked = Some(Instant::now()); // one asks, the others use what there is
        }
        match tokio::time::timeout(CARD_TIME_MAX, self.fetch_card()).await {
            Ok(Ok(found)) => {
                let (profile, endpoint) = read_card(&found);
                let mut card = self.card();
                card.profile = Arc::new(profile);
                card.endpoint = endpoint;
            }
            Ok(Err(error)) => tracing::warn!(agent = %self.base, error = error.text(), "no card"),
            Err(_) => tracing::warn!(agent = %self.base, "no card in time"),
        }
        self.card().clone()
    }

    async fn fetch_card(&self) -> Result<Value, Lost> {
        let mut url = self.base.url().clone();
        if !url.path().ends_with('/') {
            url.set_path(&format!("{}/", url.path()));
        }
        let url = url
            .join(".well-known/agent-card.json")
            .map_err(|error| Lost::Unreached(error.to_string()))?;
        let response = self.client.get(url).send().await?;
        let status = response.status();
        if !status.is_success() {
            return Err(Lost::Broken(format!("its card is {status}")));
        }
        let body = bounded(response, CARD_LEN_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Lost::Broken(error.to_string()))
    }

    /// Where the agent takes calls, asked for until it is there.
    async fn endpoint(&self) -> Result<Endpoint, Fault> {
        let begun = Instant::now();
        for attempt in 0u32.. {
            if let Some(endpoint) = self.look().await.endpoint {
                return Ok(endpoint);
            }
            if begun.elapsed() >= self.silent_max {
                break;
            }
            self.card().asked = None;
            pause(attempt).await;
        }
        Err(invalid(format!(
            "the agent shows no card with a JSONRPC interface of A2A 1.0 at {}",
            self.base
        )))
    }

    async fn post(&self, turn: &Record, method: &str, mut params: Value) -> Result<Response, Lost> {
        let Some(Endpoint { url, tenant, .. }) = self.look().await.endpoint else {
            return Err(Lost::Unreached("it has no card".to_owned()));
        };
        if let Some(params) = params.as_object_mut().filter(|_| !tenant.is_empty()) {
            params.insert("tenant".to_owned(), Value::String(tenant));
        }
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut request = self
            .client
            .post(url)
            .header("a2a-version", "1.0")
            .header("accept", "text/event-stream, application/json")
            .json(&body);
        if !turn.asked.extensions.is_empty() {
            request = request.header("a2a-extensions", turn.asked.extensions.join(","));
        }
        // An answer begins before the work is done, or the agent counts as silent.
        match tokio::time::timeout(self.silent_max, request.send()).await {
            Ok(response) => Ok(response?),
            Err(_) => Err(Lost::Broken("it went silent".to_owned())),
        }
    }

    /// A call that is answered at once.
    async fn call(&self, turn: &Record, method: &str, params: Value) -> Result<Value, Lost> {
        let answer = async {
            let response = self.post(turn, method, params).await?;
            result_of(&bounded(response, self.event_len_max).await?)
        };
        match tokio::time::timeout(CALL_TIME_MAX, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(Lost::Broken("it takes too long".to_owned())),
        }
    }

    async fn answer(&self, turn: Turn) -> Result<(), Fault> {
        let memory = Memory::of(&turn.record);
        if memory.sending {
            return match &memory.task {
                Some(task) => self.follow(&turn, task, memory.question.as_deref()).await,
                None => Err(Fault::new(Kind::Internal, IN_DOUBT)),
            };
        }
        let Endpoint { streams, .. } = self.endpoint().await?;
        turn.tell(|edit| {
            Memory { sending: true, ..memory.clone() }.keep(edit);
            if edit.record.state() != TaskState::Working {
                edit.status(TaskState::Working, None);
            }
        })
        .await?;
        let method = if streams { "SendStreamingMessage" } else { "SendMessage" };
        let question = memory.question.clone();
        let mut message = turn.message.clone();
        message.task_id = memory.task.clone().unwrap_or_default();
        message.context_id = memory.context.clone().unwrap_or_default();
        let mut params = json!({ "message": message });
        if let (Some(params), Some(metadata)) =
            (params.as_object_mut(), &turn.record.asked.metadata)
        {
            params.insert("metadata".to_owned(), Value::Object(metadata.clone()));
        }
        let begun = Instant::now();
        for attempt in 0u32.. {
            match self.send(&turn, method, params.clone(), memory.task.clone()).await {
                Ok(Some(task)) => return self.follow(&turn, &task, question.as_deref()).await,
                Ok(None) => return Ok(()),
                // It has nothing of the message: the only case in which it is sent again.
                Err(Lost::Unreached(_)) if begun.elapsed() < self.silent_max => {
                    pause(attempt).await;
                }
                Err(lost) => return Err(invalid(lost.text())),
            }
        }
        Ok(())
    }

    /// Sends the message, for `task` of the agent if it has one. The agent's task, if it goes on after
    /// the connection.
    async fn send(
        &self,
        turn: &Turn,
        method: &str,
        params: Value,
        mut task: Option<String>,
    ) -> Result<Option<String>, Lost> {
        let mut events = Events::of(self, self.post(&turn.record, method, params).await?);
        loop {
            match events.next().await {
                Ok(Some(event)) => match self.heard(turn, event, &mut task).await {
                    Ok(true) => return Ok(None),
                    Ok(false) => {}
                    Err(fault) => return Err(Lost::Broken(fault.message().to_owned())),
                },
                Ok(None) if task.is_none() => {
                    return Err(Lost::Broken("it said nothing".to_owned()));
                }
                Ok(None) => return Ok(task),
                Err(lost @ Lost::Refused { .. }) => return Err(lost),
                Err(lost) if task.is_none() => return Err(lost),
                Err(_) => return Ok(task),
            }
        }
    }

    /// Follows a task of the agent to the end of the turn. One that goes on asking what was answered
    /// in this turn may not have the answer.
    async fn follow(&self, turn: &Turn, task: &str, answered: Option<&str>) -> Result<(), Fault> {
        let begun = Instant::now();
        let mut heard = Instant::now();
        for attempt in 0u32.. {
            let params = json!({ "id": task });
            match self.call(&turn.record, "GetTask", params.clone()).await {
                Ok(found) => {
                    heard = Instant::now();
                    let found: Task = serde_json::from_value(found)
                        .map_err(|error| invalid(format!("no task: {error}")))?;
                    if answered.is_some() && question(&found.status).as_deref() == answered {
                        if begun.elapsed() >= CALL_TIME_MAX {
                            return Err(Fault::new(Kind::Internal, IN_DOUBT));
                        }
                        pause(attempt).await;
                        continue;
                    }
                    let mut known = Some(task.to_owned());
                    if self.heard(turn, StreamResponse::Task(found), &mut known).await? {
                        return Ok(());
                    }
                }
                Err(Lost::Refused { code: -32001, .. }) => {
                    return Err(invalid("the agent does not know its task any more".to_owned()));
                }
                Err(lost) => {
                    if heard.elapsed() >= self.silent_max {
                        return Err(invalid(lost.text()));
                    }
                    pause(attempt).await;
                    continue;
                }
            }
            if self.card().endpoint.as_ref().is_some_and(|endpoint| endpoint.streams)
                && let Ok(response) = self.post(&turn.record, "SubscribeToTask", params).await
            {
                let mut events = Events::of(self, response);
                let mut known = Some(task.to_owned());
                while let Ok(Some(event)) = events.next().await {
                    if self.heard(turn, event, &mut known).await? {
                        return Ok(());
                    }
                }
            }
            pause(attempt.min(4)).await;
        }
        Ok(())
    }

    /// Takes one event of the agent; whether the turn is over.
    async fn heard(
        &self,
        turn: &Turn,
        event: StreamResponse,
        task: &mut Option<String>,
    ) -> Result<bool, Fault> {
        let over = |state: TaskState| state.is_terminal() || state.is_interrupted();
        let of = match &event {
            StreamResponse::Task(found) => &found.id,
            StreamResponse::StatusUpdate(update) => &update.task_id,
            StreamResponse::ArtifactUpdate(update) => &update.task_id,
            StreamResponse::Message(message) => &message.task_id,
        };
        if task.as_ref().is_some_and(|task| !of.is_empty() && task != of) {
            return Err(invalid("the agent told of another task than was asked for".to_owned()));
        }
        match event {
            StreamResponse::Task(found) => {
                let state = found.status.state;
                *task = Some(found.id.clone());
                turn.tell(|edit| take_task(edit, found)).await?;
                Ok(over(state))
            }
            StreamResponse::StatusUpdate(update) => {
                let state = update.status.state;
                turn.tell(|edit| take_status(edit, update.status)).await?;
                Ok(over(state))
            }
            StreamResponse::ArtifactUpdate(update) => {
                turn.tell(|edit| edit.artifact(update.artifact, update.append, update.last_chunk))
                    .await?;
                Ok(false)
            }
            StreamResponse::Message(message) => {
                turn.tell(|edit| {
                    edit.artifact(artifact("answer", message.parts), false, true);
                    edit.status(TaskState::Completed, None);
                })
                .await?;
                Ok(true)
            }
        }
    }
}

/// The agent's task becomes part of ours: what differs is told.
fn take_task(edit: &mut Edit, found: Task) {
    let memory = Memory::of(&edit.record);
    if memory.task.as_deref() != Some(&found.id) {
        let context = Some(found.context_id).filter(|context| !context.is_empty());
        Memory { sending: true, task: Some(found.id), context, ..memory }.keep(edit);
    }
    for artifact in found.artifacts.unwrap_or_default() {
        let known = edit.record.task.artifacts.as_ref().is_some_and(|all| all.contains(&artifact));
        if !known {
            edit.artifact(artifact, false, true);
        }
    }
    take_status(edit, found.status);
}

/// Tells one question of the agent from another; `None` where there is none, or nothing to tell it by.
fn question(status: &TaskStatus) -> Option<String> {
    let message = status.message.as_ref().map_or("", |message| &message.message_id);
    let told = !message.is_empty() || !status.timestamp.is_empty();
    (status.state.is_interrupted() && told).then(|| format!("{} {message}", status.timestamp))
}

fn take_status(edit: &mut Edit, status: TaskStatus) {
    let asked = question(&status);
    let task = &edit.record.task;
    let message = status.message.map(|message| Message {
        task_id: task.id.clone(),
        context_id: task.context_id.clone(),
        ..message
    });
    let same =
        task.status.state == status.state && (message.is_none() || task.status.message == message);
    let begins = matches!(status.state, TaskState::Submitted | TaskState::Unspecified);
    if same || (begins && message.is_none()) {
        return;
    }
    if status.state.is_interrupted() {
        // The next turn sends anew, into the same task.
        let memory = Memory { sending: false, question: asked, ..Memory::of(&edit.record) };
        memory.keep(edit);
    }
    let state = if begins { TaskState::Working } else { status.state };
    edit.status(state, message);
}

fn invalid(why: String) -> Fault {
    Fault::new(Kind::InvalidAgentResponse, why)
}

async fn pause(attempt: u32) {
    tokio::time::sleep(Duration::from_millis(ASK_AGAIN.delay_ms(attempt, u64::from(attempt))))
        .await;
}

/// What a card says of the agent, and where it takes JSON-RPC.
fn read_card(card: &Value) -> (Profile, Option<Endpoint>) {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let texts = |name: &str| {
        let texts = list(card.get(name));
        texts.iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let capabilities = card.get("capabilities");
    let of = |name: &str| capabilities.and_then(|capabilities| capabilities.get(name));
    let text = |interface: &Value, name: &str| {
        interface.get(name).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let endpoint = list(card.get("supportedInterfaces"))
        .iter()
        .find(|interface| {
            text(interface, "protocolBinding") == "JSONRPC"
                && super::super::http::is_our_version(&text(interface, "protocolVersion"))
        })
        .and_then(|interface| {
            let url = HttpUrl::try_from(text(interface, "url")).ok()?;
            let streams = of("streaming") == Some(&Value::Bool(true));
            let tenant = text(interface, "tenant");
            Some(Endpoint { url: url.url().clone(), tenant, streams })
        });
    // What one skill takes, the agent takes.
    let mut input_modes = texts("defaultInputModes");
    let skills = if input_modes.is_empty() { Vec::new() } else { list(card.get("skills")) };
    for skill in &skills {
        let modes = list(skill.get("inputModes"));
        input_modes.extend(modes.iter().filter_map(Value::as_str).map(str::to_owned));
    }
    let profile = Profile {
        skills: list(card.get("skills")),
        input_modes,
        output_modes: texts("defaultOutputModes"),
        extensions: list(of("extensions")),
    };
    (profile, endpoint)
}

/// A body within a limit, in bytes.
async fn bounded(mut response: Response, max: usize) -> Result<Vec<u8>, Lost> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > max {
            return Err(Lost::Broken(format!("its answer is over the limit of {max} bytes")));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// The result of a JSON-RPC response.
fn result_of(body: &[u8]) -> Result<Value, Lost> {
    let mut answer: Value =
        serde_json::from_slice(body).map_err(|error| Lost::Broken(error.to_string()))?;
    if let Some(error) = answer.get("error").filter(|error| !error.is_null()) {
        let code = error.get("code").and_then(Value::as_i64).unwrap_or_default();
        let message = error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
        return Err(Lost::Refused { code, message });
    }
    let result = answer.get_mut("result").map(Value::take);
    result.ok_or_else(|| Lost::Broken("neither a result nor an error".to_owned()))
}

/// The events of one answer: a stream of them, or one.
struct Events {
    response: Response,
    streams: bool,
    over: bool,
    buffer: Vec<u8>,
    len_max: usize,
    silent_max: Duration,
}

impl Events {
    fn of(proxy: &Proxy, response: Response) -> Self {
        let streams = response
            .headers()
            .get(reqwest::header::CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|text| text.starts_with("text/event-stream"));
        let (len_max, silent_max) = (proxy.event_len_max, proxy.silent_max);
        Self { response, streams, over: false, buffer: Vec::new(), len_max, silent_max }
    }

    async fn next(&mut self) -> Result<Option<StreamResponse>, Lost> {
        loop {
            if let Some(data) = self.whole() {
                let event = serde_json::from_value(result_of(&data)?);
                return event.map(Some).map_err(|error| Lost::Broken(error.to_string()));
            }
            if self.over {
                return Ok(None);
            }
            match tokio::time::timeout(self.silent_max, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => {
                    if self.buffer.len() + chunk.len() > self.len_max {
                        return Err(Lost::Broken("an event is too long".to_owned()));
                    }
                    self.buffer.extend_from_slice(&chunk);
                }
                Ok(Ok(None)) => self.over = true,
                Ok(Err(error)) => return Err(error.into()),
                Err(_) => return Err(Lost::Broken("it went silent".to_owned())),
            }
        }
    }

    /// The data of one whole event in the buffer.
    fn whole(&mut self) -> Option<Vec<u8>> {
        if !self.streams {
            return (self.over && !self.buffer.is_empty())
                .then(|| std::mem::take(&mut self.buffer));
        }
        loop {
            let text = &self.buffer;
            let end = (0..text.len()).find_map(|at| {
                let rest = text.get(at..)?;
                [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"]
                    .into_iter()
                    .find(|end| rest.starts_with(end))
                    .map(|end| at + end.len())
            });
            let event: Vec<u8> = self.buffer.drain(..end?).collect();
            let data: Vec<&[u8]> = event
                .split(|byte| matches!(byte, b'\n' | b'\r'))
                .filter_map(|line| line.strip_prefix(b"data:"))
                .collect();
            if !data.is_empty() {
                return Some(data.join(&b'\n'));
            }
        }
    }
}

impl Backend for Proxy {
    fn run(&self, turn: Turn) -> Doing<'_, Result<(), Fault>> {
        Box::pin(self.answer(turn))
    }

    fn cancel<'a>(&'a self, record: &'a Record) -> Doing<'a, Result<(), Fault>> {
        Box::pin(async move {
            let goes_on = |what: String| {
                Err(Fault::new(Kind::TaskNotCancelable, what).with("taskId", &record.task.id))
            };
            let memory = Memory::of(record);
            let Some(task) = memory.task else {
                if memory.sending {
                    let what = "the agent is being given the message, and has not named its task yet; try again";
                    return goes_on(what.to_owned());
                }
                return Ok(()); // it has nothing of it
            };
            match self.call(record, "CancelTask", json!({ "id": task })).await {
                Ok(found) => match serde_json::from_value::<Task>(found) {
                    Ok(found) if found.status.state == TaskState::Canceled => Ok(()),
                    _ => {
                        goes_on("the agent took the wish and has not canceled its task".to_owned())
                    }
                },
                Err(Lost::Refused { code: -32001, .. }) => Ok(()),
                Err(Lost::Refused { message, .. }) => goes_on(message),
                Err(lost) => Err(Fault::new(Kind::Unavailable, lost.text())),
            }
        })
    }

    fn profile(&self) -> Doing<'_, Arc<Profile>> {
        Box::pin(async {
            let profile = self.look().await.profile;
            if profile.skills.is_empty() {
                // Before the agent was ever there. A card needs a skill.
                let skill = json!({
                    "id": "agent", "name": "Agent", "tags": ["agent"],
                    "description": "The agent behind this node, which has not shown its card yet."
                });
                return Arc::new(Profile { skills: vec![skill], ..(*profile).clone() });
            }
            profile
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_says_where_for_which_tenant_and_what_is_taken() {
        let card = json!({
            "capabilities": { "streaming": true },
            "supportedInterfaces": [
                { "url": "http://a/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0" },
                { "url": "http://a/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0", "tenant": "t" }
            ],
            "defaultInputModes": ["text/plain"],
            "skills": [{ "id": "s", "inputModes": ["image/png"] }]
        });
        let (profile, endpoint) = read_card(&card);
        let url = Url::parse("http://a/rpc").unwrap();
        assert_eq!(endpoint, Some(Endpoint { url, tenant: "t".into(), streams: true }));
        assert_eq!(profile.input_modes, ["text/plain", "image/png"]);
    }
}
