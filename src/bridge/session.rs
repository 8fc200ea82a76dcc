//! A session of a peer with an MCP server behind this node.
//!
//! The first line of a stream says which server is meant, `{"server":"files"}`, and so does the
//! first line of the answer, or it has an `error`. The lines after it are MCP's, both ways. Other ways to come here
//! (`moq::mcp`) bring messages one by one.

use super::message::{ACK_KEY, Code, Form, Message, OBLIGATION_KEY};
use super::running::{self, Calls};
use super::transport::Messages;
use super::upstream::{Place, Upstream};
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX};
use crate::a2a::whole_numbers;
use crate::acap::Told;
use crate::binding::http::OfferReply;
use crate::calls::{self, LineError, Lines};
use crate::config::{McpReach, McpServer, NodeConfig, OWN_SERVER};
use crate::gate::{Gate, Refusal};
use crate::mcp::{Caller, serve_lines, serve_on};
use crate::node::NodeHandle;
use proto::id::AgentId;
use proto::obligation::Obligation;
use quinn::{RecvStream, SendStream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch::Receiver;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Sessions of all peers at a time; each may be a program that runs.
const SESSIONS_MAX: usize = 256;
/// Those of one peer.
const SESSIONS_PER_PEER_MAX: usize = 64;
/// Bytes of the first line.
const HEAD_LEN_MAX: usize = 4 * 1024;
/// How long it may take to come.
const HEAD_TIME_MAX: Duration = Duration::from_secs(10);
/// How long the last words may take to be written.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(2);
/// Bytes of messages that wait for the server or the core; the client waits beyond them.
const WAITING_LEN_MAX: usize = 2 * MESSAGE_LEN_MAX;
/// How long a call waits for what the core says of its obligation.
const ACK_TIME_MAX: Duration = Duration::from_secs(2);

/// The MCP servers behind this node, for peers.
#[derive(Debug)]
pub(crate) struct Bridge {
    servers: BTreeMap<String, McpServer>,
    gate: Arc<Gate>,
    node: NodeHandle,
    places: Arc<Semaphore>,
    /// Of each peer; peers are listed.
    of_peers: Mutex<HashMap<AgentId, Arc<Semaphore>>>,
    /// What is not taken of it are sessions whose last words are not with their client yet.
    said: Semaphore,
    stop: Receiver<bool>,
}

/// What a session is with.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The node itself.
    Own(Place),
    /// The server of this name.
    Behind(String, Upstream),
}

impl Begun {
    fn name(&self) -> &str {
        match self {
            Self::Own(_) => OWN_SERVER,
            Self::Behind(name, _) => name,
        }
    }

    /// Bytes of one message to it.
    pub(crate) fn len_max(&self, config: &NodeConfig) -> usize {
        match self {
            Self::Own(_) => config.mcp.request_len_max.min(MESSAGE_LEN_MAX),
            Self::Behind(..) => MESSAGE_LEN_MAX,
        }
    }
}

/// What a client is told, and what it says. After an error it says nothing more.
pub(crate) type Ends = (mpsc::Sender<Vec<u8>>, mpsc::Receiver<Result<Vec<u8>, LineError>>);

/// What the gate said of a call, which is told by its serial number.
type Admitted = (Message, u64, Result<(), Refusal>);

/// What came of the obligation beside a call.
type Decided = (Message, u64, Result<Option<Value>, String>);

impl Bridge {
    pub(crate) fn new(node: NodeHandle, gate: Arc<Gate>, stop: Receiver<bool>) -> Self {
        let servers = &node.config().mcp_servers;
        let servers = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
        let (places, of_peers) = (Arc::new(Semaphore::new(SESSIONS_MAX)), Mutex::default());
        let said = Semaphore::new(SESSIONS_MAX);
        Self { servers, gate, node, places, of_peers, said, stop }
    }

    /// Serves one stream of `peer`.
    pub(crate) async fn serve(
        self: Arc<Self>,
        peer: AgentId,
        mut send: SendStream,
        recv: RecvStream,
    ) {
        let mut head_lines = Lines::new(recv, HEAD_LEN_MAX);
        let asked = tokio::time::timeout(HEAD_TIME_MAX, head_lines.next()).await;
        let Ok(Ok(Some(line))) = asked else {
            let _ = send.reset(calls::Code::Malformed.into());
            return;
        };
        let begun = serde_json::from_slice::<Value>(&line)
            .map_err(|error| (Code::Unavailable, format!("the first line: {error}")))
            .and_then(|head| {
                self.begin(&peer, head.get("server").and_then(Value::as_str).unwrap_or_default())
            });
        let begun = match begun {
            Ok(begun) => begun,
            Err((code, what)) => {
                let error = json!({ "error": { "code": code as i64, "message": what } });
                let _ = calls::tell(&mut send, error.to_string().into_bytes()).await;
                let _ = send.finish();
                return;
            }
        };
        let head = json!({ "server": begun.name() }).to_string();
        if calls::tell(&mut send, head.into_bytes()).await.is_err() {
            return;
        }
        let read = head_lines.into_inner();
        let (name, upstream) = match begun {
            Begun::Own(_place) => {
                let (node, stop) = (self.node.clone(), self.stop.clone());
                let served = serve_lines(node, Caller::Peer(peer), stop, read, send).await;
                if let Err(error) = served {
                    tracing::debug!(%error, "an MCP session of a peer");
                }
                return;
            }
            Begun::Behind(name, upstream) => (name, upstream),
        };
        // Messages may be longer than the first line; what was read beyond it stays.
        let lines = Lines::new(read, MESSAGE_LEN_MAX);
        let (client, mut answers) = mpsc::channel::<Vec<u8>>(MESSAGES_READY_MAX);
        let (read, heard) = mpsc::channel(MESSAGES_READY_MAX);
        let mut reading = JoinSet::new(); // it ends with the session
        reading.spawn(lines.feed(read));
        let left = send.stopped(); // the client's side is gone
        let write = async move {
            while let Some(answer) = answers.recv().await {
                if calls::tell(&mut send, answer).await.is_err() {
                    return; // nobody listens
                }
            }
            let _ = send.finish();
        };
        let wire = async {
            tokio::select! {
                biased;
                () = write => {} // all is said
                _ = left => {}
            }
        };
        self.pump(peer, name, upstream, (client, heard), wire).await;
    }

    pub(crate) fn config(&self) -> &NodeConfig {
        self.node.config()
    }

    /// The names of the servers that are `peer`'s: those behind the node, then the node itself.
    pub(crate) fn names(&self, peer: &AgentId) -> Vec<String> {
        let theirs = self.servers.values().filter(|server| is_for(server, peer));
        let mut names: Vec<String> = theirs.map(|server| server.name.clone()).collect();
        if self.node.config().mcp.enabled {
            names.push(OWN_SERVER.to_owned());
        }
        names
    }

    /// Whether there is a server of this name for `peer`.
    pub(super) fn is_for(&self, peer: &AgentId, name: &str) -> bool {
        let own = name == OWN_SERVER && self.node.config().mcp.enabled;
        own || self.servers.get(name).is_some_and(|server| is_for(server, peer))
    }

    /// What a peer is told: what is not its own looks like what is not there.
    pub(super) fn none(peer: &AgentId, name: &str) -> String {
        format!("no MCP server {name:?} for {peer} here")
    }

    /// Takes a place for a session of `peer` with a server, and starts what it needs.
    ///
    /// # Errors
    /// Why there is none, as the peer may be told.
    pub(crate) fn begin(&self, peer: &AgentId, name: &str) -> Result<Begun, (Code, String)> {
        let of_peer = {
            let mut of_peers = self.of_peers.lock().unwrap_or_else(PoisonError::into_inner);
            let none = || Arc::new(Semaphore::new(SESSIONS_PER_PEER_MAX));
            of_peers.entry(peer.clone()).or_insert_with(none).clone()
        };
        let places = (self.places.clone().try_acquire_owned(), of_peer.try_acquire_owned());
        let begun = match places {
            (Ok(of_all), Ok(of_peer)) => {
                self.begin_in(peer, name, Place { _of_all: of_all, _of_peer: of_peer })
            }
            _ => {
                let what = format!(
                    "too many sessions: {SESSIONS_PER_PEER_MAX} of one peer and {SESSIONS_MAX} of all are the limits"
                );
                Err((Code::Overloaded, what))
            }
        };
        if let Err((_, what)) = &begun {
            tracing::info!(%peer, what, "no MCP session");
        }
        begun
    }

    fn begin_in(&self, peer: &AgentId, name: &str, place: Place) -> Result<Begun, (Code, String)> {
        if name == OWN_SERVER && self.node.config().mcp.enabled {
            return Ok(Begun::Own(place));
        }
        let server = self.servers.get(name).filter(|server| is_for(server, peer));
        let none = || (Code::Unavailable, Self::none(peer, name));
        let server = server.ok_or_else(none)?;
        let started = match &server.reach {
            McpReach::Command(command) => Upstream::program(name, command, place),
            McpReach::Http { url, token_file } => {
                Upstream::http(name, url, token_file.as_deref(), place)
            }
        };
        match started {
            Ok(upstream) => Ok(Begun::Behind(name.to_owned(), upstream)),
            Err(error) => {
                tracing::error!(server = name, %error, "an MCP server cannot be started");
                Err((Code::Unavailable, format!("the server {name:?} cannot be started")))
            }
        }
    }

    /// Waits until the node stops and each session of [`Self::run`] has told its client what became of the calls.
    pub(crate) async fn stopped(&self) {
        stopped(self.stop.clone()).await;
        let all = u32::try_from(SESSIONS_MAX).unwrap_or(u32::MAX);
        drop(self.said.acquire_many(all).await);
    }

    /// Passes messages between a client and a server until one of them ends, or `wire` does, which brings the
    /// client what it is told.
    pub(crate) async fn run(
        self: Arc<Self>,
        peer: AgentId,
        begun: Begun,
        messages: Ends,
        wire: impl Future<Output = ()>,
    ) {
        let _saying = self.said.try_acquire(); // there is one for each place
        match begun {
            Begun::Own(_place) => {
                let (to, from) = messages;
                let served = async {
                    let (node, stop) = (self.node.clone(), self.stop.clone());
                    let transport = Messages::new(to, from);
                    let served = serve_on(node, Caller::Peer(peer), stop, transport).await;
                    if let Err(error) = served {
                        tracing::debug!(%error, "an MCP session of a peer");
                    }
                    std::future::pending::<()>().await; // its last words may be on their way
                };
                tokio::select! {
                    () = served => {}
                    () = wire => {}
                }
            }
            Begun::Behind(name, upstream) => self.pump(peer, name, upstream, messages, wire).await,
        }
    }

    async fn pump(
        self: &Arc<Self>,
        peer: AgentId,
        server: String,
        upstream: Upstream,
        (client, heard): Ends,
        wire: impl Future<Output = ()>,
    ) {
        let mut session = Session {
            bridge: self.clone(),
            peer,
            server,
            calls: Calls::default(),
            answers: VecDeque::new(),
            orders: VecDeque::new(),
            deciding: JoinSet::new(),
            admitting: JoinSet::new(),
            deciding_len: 0,
        };
        let stopped = async {
            // The session itself tells the calls; this is for one that does not end.
            stopped(self.stop.clone()).await;
            tokio::time::sleep(LAST_WORDS_TIME_MAX).await;
        };
        let run = async {
            session.run(client, heard, upstream).await;
            std::future::pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = run => {}
            () = wire => {}
            () = stopped => {}
        }
    }
}

fn is_for(server: &McpServer, peer: &AgentId) -> bool {
    server.peers.as_ref().is_none_or(|peers| peers.contains(peer))
}

/// Returns when the node stops.
async fn stopped(mut stop: Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await; // nobody can tell us any more
    }
}

struct Session {
    bridge: Arc<Bridge>,
    peer: AgentId,
    server: String,
    calls: Calls,
    /// Answers of ours that wait for room, one a call at most.
    answers: VecDeque<Message>,
    /// What the server is to be told.
    orders: VecDeque<Message>,
    deciding: JoinSet<Decided>,
    /// Calls of which the gate has to put on record what it says.
    admitting: JoinSet<Admitted>,
    /// Bytes of the calls that wait for either.
    deciding_len: usize,
}

impl Session {
    /// Passes messages until the client has said all and heard all, or the server ends.
    async fn run(
        &mut self,
        client: mpsc::Sender<Vec<u8>>,
        mut heard: mpsc::Receiver<Result<Vec<u8>, LineError>>,
        upstream: Upstream,
    ) {
        let Upstream { to, mut from, _work, _end } = upstream;
        let stopping = stopped(self.bridge.stop.clone());
        tokio::pin!(stopping);
        let mut changes = self.bridge.gate.changes();
        let mut listening = true;
        loop {
            let quiet = self.answers.is_empty() && self.orders.is_empty();
            if !listening && quiet && self.calls.is_empty() {
                return;
            }
            let said = async {
                let room = client.reserve().await.ok()?;
                Some((room, from.recv().await))
            };
            tokio::select! {
                biased;
                () = &mut stopping => {
                    return self.end(&client, Code::Lost, "the node stops: whether the call ran is not known").await;
                }
                room = client.reserve(), if !self.answers.is_empty() => {
                    let (Ok(room), Some(answer)) = (room, self.answers.pop_front()) else { return };
                    room.send(answer.to_vec());
                }
                room = to.reserve(), if !self.orders.is_empty() => {
                    match (room, self.orders.pop_front()) {
                        (Ok(room), Some(order)) => room.send(order),
                        _ => self.orders.clear(), // it ended, which its silence tells next
                    }
                }
                () = changes.next(), if self.calls.any() => self.look_again().await,
                Some(decided) = self.deciding.join_next() => {
                    if let Ok(decided) = decided {
                        self.decided(decided);
                    }
                }
                Some(admitted) = self.admitting.join_next() => {
                    if let Ok(admitted) = admitted {
                        self.admitted(admitted).await;
                    }
                }
                line = heard.recv(), if listening && self.has_room() => match line {
                    Some(Ok(line)) => self.hear_client(&line),
                    Some(Err(error)) => {
                        tracing::info!(peer = %self.peer, server = self.server, %error, "an MCP session ends");
                        return self.end(&client, Code::Lost, &error.to_string()).await;
                    }
                    None => listening = false,
                },
                said = said => match said {
                    Some((room, Some(message))) => {
                        let message = self.hear_server(message).await;
                        if let Some(line) = message.and_then(|message| message.within(MESSAGE_LEN_MAX)) {
                            room.send(line);
                        }
                    }
                    Some((_, None)) => {
                        let what = "the server ended: whether the call ran is not known";
                        return self.end(&client, Code::Lost, what).await;
                    }
                    None => return, // nobody listens
                },
            }
        }
    }

    /// Whether there is room for what the client says next.
    fn has_room(&self) -> bool {
        let waiting: usize = self.orders.iter().map(|message| message.len).sum();
        self.orders.len() < running::RUNNING_MAX
            && self.answers.len() < running::RUNNING_MAX
            && waiting + self.deciding_len < WAITING_LEN_MAX
    }

    /// Answers all calls that run, with an error.
    async fn end(&mut self, client: &mpsc::Sender<Vec<u8>>, code: Code, what: &str) {
        for id in self.calls.ids() {
            self.refuse(&id, code, what, json!({}));
        }
        for answer in self.answers.drain(..) {
            if client.send(answer.to_vec()).await.is_err() {
                return;
            }
        }
    }

    fn hear_client(&mut self, line: &[u8]) {
        let mut message = match Message::parse(line) {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(peer = %self.peer, %error, "a line that is no message");
                let error =
                    Message::error(&Value::Null, Code::Envelope, &error.to_string(), json!({}));
                return self.answers.push_back(error);
            }
        };
        if let Some(what) = running::evades(&message) {
            tracing::info!(peer = %self.peer, server = self.server, what, "a message is not passed");
            if let Form::Request { id, .. } = &message.form {
                self.answers.push_back(Message::error(id, Code::Envelope, &what, json!({})));
            }
            return;
        }
        match message.form.clone() {
            Form::Request { id, .. } => {
                let wanted = running::wanted(&self.server, &message);
                if let Err(what) = self.calls.begin(&message, wanted) {
                    // Not a call of ours: another of that id may run.
                    let error = Message::error(&id, Code::Overloaded, &what, json!({}));
                    return self.answers.push_back(error);
                }
                match message.take_meta(OBLIGATION_KEY) {
                    None => self.give(&id, message),
                    Some(envelope) => {
                        let Some(serial) = self.calls.get(&id).map(|call| call.serial) else {
                            return;
                        };
                        self.deciding_len += message.len;
                        let (bridge, peer) = (self.bridge.clone(), self.peer.clone());
                        self.deciding.spawn(async move {
                            let decided = bridge.decide(&peer, envelope).await;
                            (message, serial, decided)
                        });
                    }
                }
            }
            Form::Notification { method } if method == "notifications/cancelled" => {
                let id = message.params().and_then(|params| params.get("requestId")).cloned();
                let call = id.as_ref().and_then(|id| self.calls.cut(id));
                let given = call.is_none_or(|call| call.given);
                if given && !id.is_some_and(|id| self.take_back(&id)) {
                    self.orders.push_back(message);
                }
            }
            Form::Notification { .. } | Form::Response { .. } => self.orders.push_back(message),
        }
    }

    /// What the core said of the obligation beside a call.
    fn decided(&mut self, (message, serial, decided): Decided) {
        self.deciding_len -= message.len;
        let Form::Request { id, .. } = message.form.clone() else { return };
        let Some(call) = self.calls.get_as(&id, serial) else { return }; // canceled
        match decided {
            Ok(ack) => {
                call.ack = ack;
                self.give(&id, message);
            }
            Err(what) => self.refuse(&id, Code::Envelope, &what, json!({})),
        }
    }

    /// Gives a call to the server, if the gate lets it pass.
    fn give(&mut self, id: &Value, message: Message) {
        let Some(call) = self.calls.get(id) else { return };
        let (wanted, serial) = (call.wanted.clone(), call.serial);
        if let (Some(wanted), Some(_)) = (&wanted, self.bridge.gate.acap()) {
            self.deciding_len += message.len;
            let (bridge, peer, wanted) = (self.bridge.clone(), self.peer.clone(), wanted.clone());
            let told = Told::beside(|name| message.meta(name));
            self.admitting.spawn(async move {
                let admitted = bridge.gate.admit(Some(&peer), &wanted, &told).await;
                (message, serial, admitted)
            });
            return;
        }
        let refused =
            wanted.and_then(|wanted| self.bridge.gate.check(Some(&self.peer), &wanted).err());
        self.let_in(id, message, refused);
    }

    /// What the gate has said of a call is on record.
    async fn admitted(&mut self, (message, serial, admitted): Admitted) {
        self.deciding_len -= message.len;
        let Form::Request { id, .. } = message.form.clone() else { return };
        let Some(call) = self.calls.get_as(&id, serial) else { return }; // canceled
        let wanted = call.wanted.clone();
        // What ended meanwhile ended no call, since this one had not been given.
        let refused = match (admitted, wanted) {
            (Err(refusal), _) => Some(refusal),
            (Ok(()), Some(wanted)) => {
                self.bridge.gate.may_go_on(Some(&self.peer), &wanted).await.err()
            }
            (Ok(()), None) => None,
        };
        self.let_in(&id, message, refused);
    }

    fn let_in(&mut self, id: &Value, message: Message, refused: Option<Refusal>) {
        let Some(call) = self.calls.get(id) else { return }; // canceled
        match refused {
            None => {
                call.given = true;
                self.orders.push_back(message);
            }
            Some(refusal) => self.withhold(id, &refusal),
        }
    }

    /// Ends the calls that may not go on.
    async fn look_again(&mut self) {
        for (id, wanted) in self.calls.governed() {
            let goes_on = self.bridge.gate.may_go_on(Some(&self.peer), &wanted).await;
            if let Err(refusal) = goes_on {
                tracing::info!(peer = %self.peer, server = self.server, %refusal, "a call was ended");
                if !self.take_back(&id) {
                    let what = json!({ "requestId": id, "reason": refusal.to_string() });
                    self.orders.push_back(Message::notification("notifications/cancelled", what));
                }
                self.withhold(&id, &refusal);
            }
        }
    }

    /// Takes back a call that waits for the server; whether it did.
    fn take_back(&mut self, id: &Value) -> bool {
        let before = self.orders.len();
        self.orders.retain(
            |order| !matches!(&order.form, Form::Request { id: waiting, .. } if waiting == id),
        );
        self.orders.len() < before
    }

    fn withhold(&mut self, id: &Value, refusal: &Refusal) {
        let code = if refusal.is_temporary() { Code::Unavailable } else { Code::Withheld };
        self.refuse(id, code, &refusal.to_string(), refusal.to_json());
    }

    /// Answers a call with an error, and its ack if there is one.
    fn refuse(&mut self, id: &Value, code: Code, what: &str, data: Value) {
        let Some(call) = self.calls.cut(id) else { return };
        let mut error = Message::error(id, code, what, data);
        if let Some(ack) = call.ack {
            error.attach(ACK_KEY, ack);
        }
        self.answers.push_back(error);
    }

    /// What the client hears of what the server said.
    async fn hear_server(&mut self, mut message: Message) -> Option<Message> {
        if let Form::Response { id } = &message.form.clone() {
            // The answer to a call that was ended is no answer any more.
            let call = self.calls.end(id)?;
            if let Some(ack) = call.ack {
                message.attach(ACK_KEY, ack);
            }
            if call.opens {
                message.advertise();
                if let Some(acap) = self.bridge.gate.acap() {
                    message.advertise_policy(acap.capability());
                }
            }
            if call.lists
                && let Some(acap) = self.bridge.gate.acap()
                && let Some(tools) = message.tools()
            {
                acap.annotate_tools(&self.server, tools);
            }
        } else if self.calls.is_late(&message) {
            return None;
        } else if let Some(wanted) = running::told_of(&self.server, &message)
            && self.bridge.gate.may_hear(Some(&self.peer), &wanted).await.is_err()
        {
            return None; // what it was subscribed to before its consent ended
        }
        Some(message)
    }
}

impl Bridge {
    /// Gives the obligation beside a call to the core: its ack, if there is one by now, or why it was
    /// refused. It stands whatever becomes of the call.
    async fn decide(&self, peer: &AgentId, envelope: Value) -> Result<Option<Value>, String> {
        let obligation: Obligation = serde_json::from_value(whole_numbers(envelope))
            .map_err(|error| format!("params._meta[{OBLIGATION_KEY}] is no obligation: {error}"))?;
        let stopping = || "the node is stopping".to_owned();
        let http = self.node.http_peers().of(peer).await.ok_or_else(stopping)?;
        let answer = http.begin(&obligation).await.ok_or_else(stopping)?;
        match tokio::time::timeout(ACK_TIME_MAX, answer).await {
            Ok(Ok(OfferReply::Ack(ack))) => Ok(serde_json::to_value(ack).ok()),
            // No ack yet: whoever has custody goes on asking.
            Ok(Ok(OfferReply::Later)) | Err(_) => Ok(None),
            Ok(Ok(OfferReply::Refused { code, text, .. })) => {
                Err(format!("the obligation was refused ({}): {}", code.as_str(), text.as_str()))
            }
            Ok(Err(_)) => Err(stopping()),
        }
    }
}
