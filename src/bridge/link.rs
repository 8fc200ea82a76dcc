//! The client's end of a session with an MCP server behind another node.

use super::consent::Consent;
use super::message::{Code, Form, Message};
use super::session::Bridge;
use super::{MESSAGE_LEN_MAX, MESSAGES_READY_MAX, http3, peers};
use crate::calls::{Calls, Lines, tell};
use crate::config::NodeConfig;
use crate::http3::Http3;
use crate::moq::mcp::{Begun, Client};
use crate::peers::Dial;
use crate::tls::{self, TlsIdentity};
use anyhow::Context as _;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How long the other node may take for its first line.
pub(super) const HEAD_TIME_MAX: Duration = Duration::from_secs(15);

/// What sessions go over.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
pub(crate) enum Over {
    /// A QUIC stream each (ALPN abhyasa-mcp/1)
    #[default]
    Native,
    /// Streamable HTTP over HTTP/3 (ALPN h3)
    Http3,
    /// Tracks of Media over QUIC (ALPN moqt-18)
    Moqt,
}

/// Whom sessions are with.
#[derive(Clone, Debug)]
pub(crate) struct Far {
    way: Way,
    peer: AgentId,
    server: String,
    /// What calls are held against before they go.
    consent: Option<Arc<Consent>>,
    /// Whether they were, before they come here.
    held: bool,
}

#[derive(Clone, Debug)]
enum Way {
    Native(Arc<Calls>),
    Http3(Arc<Http3>),
    Moqt(Arc<Client>),
    /// Of a peer with a server behind this node.
    Here(Arc<Bridge>),
}

impl Far {
    /// Sessions with `server` behind `peer`, under the identity of the node of `config`, from a UDP
    /// port of their own.
    pub(crate) fn new(
        config: &NodeConfig,
        peer: AgentId,
        server: String,
        over: Over,
    ) -> anyhow::Result<Self> {
        let (dial, address) = dial(config, &peer)?;
        let way = match over {
            Over::Native => {
                let addresses = [(peer.clone(), address)].into_iter().collect();
                Way::Native(Arc::new(Calls::new(dial, addresses)))
            }
            Over::Http3 => Way::Http3(Arc::new(Http3::new(dial, peer.clone(), address))),
            Over::Moqt => Way::Moqt(Arc::new(Client::new(dial, peer.clone(), address))),
        };
        let consent = Consent::of(config, &peer, &server)?.map(Arc::new);
        Ok(Self { way, peer, server, consent, held: false })
    }

    /// Sessions of `peer` with `server` behind this node.
    pub(super) const fn here(bridge: Arc<Bridge>, peer: AgentId, server: String) -> Self {
        Self { way: Way::Here(bridge), peer, server, consent: None, held: false }
    }

    /// Whether a message may go to the server by our consent; if not, what its sender is answered.
    pub(crate) async fn hold(&self, message: &mut Message) -> Option<Message> {
        self.consent.as_ref().filter(|_| !self.held)?.hold(message).await
    }

    /// The same for what was held before: nothing is put on record twice.
    pub(super) fn held(&self) -> Self {
        Self { held: true, ..self.clone() }
    }

    /// Learns from the answer to a call of `method` what the callee says of its policy.
    pub(crate) fn hear(&self, method: &str, answer: &Message) {
        if let Some(consent) = &self.consent {
            consent.hear(method, answer);
        }
    }

    /// Begins a session.
    ///
    /// # Errors
    /// Why there is none, as a client may be told.
    pub(crate) async fn begin(&self) -> Result<Link, (Code, String)> {
        match &self.way {
            Way::Native(calls) => self.begin_native(calls).await,
            Way::Http3(http) => http3::begin(http, &self.server).await,
            Way::Moqt(client) => self.begin_moqt(client).await,
            Way::Here(bridge) => peers::begin(bridge, &self.peer, &self.server),
        }
    }

    async fn begin_moqt(&self, client: &Client) -> Result<Link, (Code, String)> {
        let begun = client.begin(&self.server).await;
        let begun = begun.map_err(|error| (Code::Unavailable, error.to_string()))?;
        let Begun { to, from: mut messages, sent: _, mut work } = begun;
        let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
        let peer = self.peer.clone();
        work.spawn(async move {
            while let Some(message) = messages.recv().await {
                let sent = match message {
                    Ok(message) => said.send(message).await,
                    Err(error) => return tracing::warn!(%peer, %error, "an MCP session was lost"),
                };
                if sent.is_err() {
                    return;
                }
            }
        });
        Ok(Link { to, from, _work: work })
    }

    async fn begin_native(&self, calls: &Calls) -> Result<Link, (Code, String)> {
        let lost = |why: String| (Code::Unavailable, why);
        let begun = calls.begin(&self.peer, tls::ALPN_MCP).await;
        let (mut send, recv) = begun.map_err(|error| lost(error.to_string()))?;
        let head = json!({ "server": self.server }).to_string().into_bytes();
        let mut lines = Lines::new(recv, MESSAGE_LEN_MAX);
        let said = async {
            tell(&mut send, head).await.map_err(|error| error.to_string())?;
            let line = lines.next().await.map_err(|error| error.to_string())?;
            let line = line.ok_or_else(|| "it ended the stream".to_owned())?;
            serde_json::from_slice::<Value>(&line).map_err(|error| error.to_string())
        };
        let said = match tokio::time::timeout(HEAD_TIME_MAX, said).await {
            Ok(Ok(said)) => said,
            Ok(Err(why)) => return Err(lost(format!("{} does not begin: {why}", self.peer))),
            Err(_) => return Err(lost(format!("{} says nothing", self.peer))),
        };
        if let Some(error) = said.get("error") {
            let text = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
            return Err(lost(format!("{} refuses: {text}", self.peer)));
        }
        let (to, mut told) = mpsc::channel::<Vec<u8>>(MESSAGES_READY_MAX);
        let (said, from) = mpsc::channel(MESSAGES_READY_MAX);
        let mut work = JoinSet::new();
        work.spawn(async move {
            while let Some(line) = told.recv().await {
                if tell(&mut send, line).await.is_err() {
                    return;
                }
            }
            let _ = send.finish();
            // The stream is ours until the other side has all of it.
            let _ = send.stopped().await;
        });
        let peer = self.peer.clone();
        work.spawn(async move {
            loop {
                match lines.next().await {
                    Ok(Some(line)) => {
                        if said.send(line).await.is_err() {
                            return;
                        }
                    }
                    Ok(None) => return,
                    Err(error) => return tracing::warn!(%peer, %error, "an MCP session was lost"),
                }
            }
        });
        Ok(Link { to, from, _work: work })
    }
}

/// What dials `peer` under the identity of the node of `config`, from a UDP port of its own, and where.
pub(super) fn dial(config: &NodeConfig, peer: &AgentId) -> anyhow::Result<(Dial, String)> {
    let tls = TlsIdentity::load(&config.quic.cert, &config.quic.key, &config.quic.ca)?;
    tls.expect_node(&config.id)?;
    let listed = config.peers.iter().find(|listed| listed.id == *peer);
    let address = listed.and_then(|listed| listed.address.as_ref()).with_context(|| {
        format!("{peer} is no peer with an address in the configuration\n  hint: [[peers]] needs its id and address")
    })?;
    let dial = Dial::alone(config, tls)?;
    Ok((dial, address.as_str().to_owned()))
}

/// A session. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    /// Lines to the server. Dropped: nothing more comes.
    pub(crate) to: mpsc::Sender<Vec<u8>>,
    /// Lines from it. Closed: the session ended.
    pub(crate) from: mpsc::Receiver<Vec<u8>>,
    pub(super) _work: JoinSet<()>,
}

/// What a session of the time of `initialize` must be told anew when the way to the server broke: the
/// server that is there then knows nothing of it (MCP 2025-11-25 §Lifecycle).
#[derive(Clone, Debug, Default)]
pub(crate) struct Opening {
    initialize: Option<Message>,
    initialized: Option<Message>,
}

impl Opening {
    /// Remembers what opens a session.
    pub(crate) fn hear(&mut self, message: &Message) {
        match &message.form {
            Form::Request { method, .. } if method == "initialize" => {
                *self = Self { initialize: Some(message.clone()), initialized: None };
            }
            Form::Notification { method } if method == "notifications/initialized" => {
                self.initialized = Some(message.clone());
            }
            _ => {}
        }
    }

    /// Says it again, and hears the answer, which the client has had before.
    pub(crate) async fn repeat(&self, link: &mut Link) -> Result<(), (Code, String)> {
        let (Some(initialize), Some(initialized)) = (&self.initialize, &self.initialized) else {
            return Ok(());
        };
        let Form::Request { id, .. } = &initialize.form else { return Ok(()) };
        let lost = || (Code::Unavailable, "the server does not take the session up".to_owned());
        link.to.send(initialize.to_vec()).await.map_err(|_| lost())?;
        let answered = async {
            while let Some(line) = link.from.recv().await {
                if let Ok(answer) = Message::parse(&line)
                    && answer.form == (Form::Response { id: id.clone() })
                {
                    return !answer.is_error();
                }
            }
            false
        };
        if !tokio::time::timeout(HEAD_TIME_MAX, answered).await.unwrap_or(false) {
            return Err(lost());
        }
        link.to.send(initialized.to_vec()).await.map_err(|_| lost())
    }
}
