//! Tracks by hand, for people who debug: `abhyasa moq sub` and `abhyasa moq pub`.

use super::check::Relay;
use super::sign::{Opened, Signatures};
use super::track::{Outgoing, TrackError, object};
use super::{ALPN, Link, LinkError, namespace};
use crate::config::NodeConfig;
use crate::peers::Dial;
use crate::tls::TlsIdentity;
use anyhow::Context as _;
use bytes::Bytes;
use moq_transport::coding::TrackNamespace;
use moq_transport::session::NamespaceEvent;
use proto::ack::CustodyAck;
use proto::batch::{Batch, Content, Hello};
use proto::fanout::Template;
use proto::id::AgentId;
use proto::limits::FRAME_LEN_MAX;
use proto::obligation::Obligation;
use proto::time::Time;
use proto::track::{Namespace, Part, Track};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use url::Url;

/// Objects, or announcements, that were read and not yet printed; behind them groups wait in the session.
const READY_MAX: usize = 64;
/// Groups of one track that are read at a time.
const GROUPS_MAX: usize = 64;
/// Bytes of an object that is not ours of which a dump is shown.
const DUMP_LEN_MAX: usize = 256;
/// How long a subscriber may take to read the last groups.
const LAST_TIME_MAX: Duration = Duration::from_secs(10);
/// Publisher priority of what is published by hand: MOQT's default.
const PRIORITY: u8 = 128;

/// A session by hand.
pub(crate) struct ByHand {
    link: Link,
    /// Whether it is with a node itself, which announces unasked.
    direct: bool,
    checks: Option<Signatures>,
    _run: JoinSet<()>,
}

/// An object as it came.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) group: u64,
    /// Its place in the group.
    pub(crate) object: u64,
    pub(crate) payload: Bytes,
}

impl ByHand {
    /// A session with a relay. Signatures are checked if there is a configuration, by its CA.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn with_relay(
        relay: &Relay,
        config: Option<&NodeConfig>,
    ) -> anyhow::Result<Self> {
        let checks =
            config.map(|config| Signatures::new(Arc::new(identity(config)?)).context("signatures"));
        let connection = relay.connection().await.map_err(anyhow::Error::msg)?;
        Self::open(connection, relay.url().clone(), false, checks.transpose()?).await
    }

    /// A session with a peer of the node of `config`, under that node's identity, from a UDP port of its own.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) async fn with_peer(config: &NodeConfig, peer: &AgentId) -> anyhow::Result<Self> {
        let listed = config.peers.iter().find(|listed| listed.id == *peer);
        let address = listed.and_then(|listed| listed.address.as_ref()).with_context(|| {
            format!("{peer} is no peer with an address in the configuration\n  hint: [[peers]] needs its id and address")
        })?;
        let dial = Dial::alone(config, identity(config)?)?;
        let checks = Signatures::new(dial.tls.clone()).context("signatures")?;
        let connection = dial.to(peer, address.as_str(), ALPN).await?;
        let url = Url::parse(&format!("moqt://{}/", address.as_str()))?;
        Self::open(connection, url, true, Some(checks)).await
    }

    async fn open(
        connection: quinn::Connection,
        url: Url,
        direct: bool,
        checks: Option<Signatures>,
    ) -> anyhow::Result<Self> {
        let (link, task) = Link::connect(connection, url, Vec::new()).await?;
        let mut run = JoinSet::new();
        run.spawn(async move { drop(task.await) });
        Ok(Self { link, direct, checks, _run: run })
    }

    /// Namespaces whose first fields are `prefix`, as they come and, with false, as they go.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn namespaces(
        &self,
        prefix: &[String],
    ) -> Result<mpsc::Receiver<(bool, Vec<String>)>, LinkError> {
        let (tx, rx) = mpsc::channel(READY_MAX);
        if self.direct {
            let (link, prefix) = (self.link.clone(), prefix.to_vec());
            tokio::spawn(async move {
                let mut kept = Vec::new(); // one that is dropped is refused
                while let Some(mut announced) = link.announced().await {
                    let fields = texts(&announced.info.namespace);
                    if announced.ok().is_ok()
                        && fields.starts_with(&prefix)
                        && tx.send((true, fields)).await.is_err()
                    {
                        return;
                    }
                    kept.push(announced);
                }
            });
            return Ok(rx);
        }
        let announcements = self.link.announcements(&namespace(prefix)).await?;
        tokio::spawn(async move {
            while let Ok(Some(event)) = announcements.of.next().await {
                let told = match &event {
                    NamespaceEvent::Added(of) => (true, texts(of)),
                    NamespaceEvent::Removed(of) => (false, texts(of)),
                };
                if tx.send(told).await.is_err() {
                    return;
                }
            }
        });
        Ok(rx)
    }

    /// The objects of a track, in whatever order they come.
    ///
    /// # Errors
    /// [`LinkError`]; what is sent is why the track ended, if not by its publisher.
    pub(crate) async fn objects(
        &self,
        fields: &[String],
        track: &str,
    ) -> Result<mpsc::Receiver<Result<Seen, TrackError>>, LinkError> {
        let mut incoming = self.link.subscribe(namespace(fields), track, FRAME_LEN_MAX).await?;
        let (tx, rx) = mpsc::channel(READY_MAX);
        tokio::spawn(async move {
            let mut groups = JoinSet::new();
            loop {
                let full = groups.len() >= GROUPS_MAX;
                let group = tokio::select! {
                    () = tx.closed() => return,
                    Some(_) = groups.join_next() => continue,
                    group = incoming.group(), if !full => group,
                };
                let mut group = match group {
                    Ok(Some(group)) => group,
                    Ok(None) => break,
                    Err(error) => {
                        let _ = tx.send(Err(error)).await;
                        break;
                    }
                };
                let tx = tx.clone();
                groups.spawn(async move {
                    let id = group.info.group_id;
                    for at in 0.. {
                        let seen = match object(&mut group, FRAME_LEN_MAX).await {
                            Ok(Some(payload)) => Ok(Seen { group: id, object: at, payload }),
                            Ok(None) => return,
                            Err(error) => Err(error),
                        };
                        let over = seen.is_err();
                        if tx.send(seen).await.is_err() || over {
                            return;
                        }
                    }
                });
            }
            while groups.join_next().await.is_some() {}
        });
        Ok(rx)
    }

    /// Publishes each payload as a group of one object, to whoever subscribes; nothing is taken from `payloads`
    /// before the first has. How many groups there were, at its end.
    ///
    /// # Errors
    /// [`LinkError`].
    pub(crate) async fn publish(
        &self,
        fields: &[String],
        track: &str,
        mut payloads: mpsc::Receiver<Bytes>,
    ) -> Result<u64, LinkError> {
        let of = namespace(fields);
        let mut requests = self.link.answer(of.clone());
        let _announced = self.link.announce(of).await?;
        let mut serving = JoinSet::new();
        let mut tracks: Vec<Outgoing> = Vec::new();
        let mut count = 0;
        loop {
            tokio::select! {
                Some(_) = serving.join_next() => {}
                payload = payloads.recv(), if !tracks.is_empty() => {
                    let Some(payload) = payload else { break };
                    let mut left = Vec::new();
                    for mut outgoing in tracks {
                        if outgoing.push_as(count, PRIORITY, payload.clone()).await.is_ok() {
                            left.push(outgoing);
                        }
                    }
                    tracks = left;
                    count += 1;
                }
                subscribed = requests.subscribed.recv() => {
                    let Some(subscribed) = subscribed else { break };
                    if subscribed.info.track_name.as_bytes() != track.as_bytes() {
                        let _ = subscribed.close(moq_transport::serve::ServeError::NotFound);
                        continue;
                    }
                    let (outgoing, serve) = Outgoing::accept(subscribed)?;
                    serving.spawn(async move { drop(serve.await) });
                    tracks.push(outgoing);
                }
                _ = self.link.connection().closed() => break,
            }
        }
        drop(tracks);
        let last = async { while serving.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_TIME_MAX, last).await;
        Ok(count)
    }

    /// What an object says: ours decoded, of others the beginning.
    pub(crate) fn tell(&self, seen: &Seen, now: Time) -> Value {
        let Seen { group, object, payload } = seen;
        let mut told = json!({ "group": group, "object": object, "bytes": payload.len() });
        let more = match (&self.checks, Batch::decode(payload)) {
            (_, Err(_)) => json!({ "payload": dump(payload) }),
            (None, Ok(batch)) => {
                let items: Vec<_> = batch.items.iter().map(|item| dump(item)).collect();
                json!({ "signature": "not checked: there is no configuration", "items": items })
            }
            (Some(checks), Ok(_)) => match checks.open(payload, now) {
                Err(error) => json!({ "signature": format!("not good: {error}") }),
                Ok(Opened { statement, items }) => {
                    let items: Vec<_> =
                        items.iter().map(|item| decoded(statement.content, item)).collect();
                    json!({
                        "signature": "good",
                        "issuer": statement.from.publisher,
                        "audience": statement.audience.to_string(),
                        "content": statement.content.as_str(),
                        "items": items,
                    })
                }
            },
        };
        if let (Value::Object(told), Value::Object(more)) = (&mut told, more) {
            told.extend(more);
        }
        told
    }
}

/// Whether a track of a node is in a namespace of its.
pub(crate) fn is_in(track: &str, fields: &[String]) -> bool {
    match (Namespace::parse(fields), Track::parse(track.as_bytes())) {
        (Ok(of), Ok(Track::To(_) | Track::Acks(_))) => of.part != Part::All,
        (Ok(of), Ok(_)) => of.part == Part::All,
        _ => false,
    }
}

fn identity(config: &NodeConfig) -> anyhow::Result<TlsIdentity> {
    let tls = TlsIdentity::load(&config.quic.cert, &config.quic.key, &config.quic.ca)?;
    tls.expect_node(&config.id)?;
    Ok(tls)
}

fn texts(of: &TrackNamespace) -> Vec<String> {
    of.fields.iter().map(|field| String::from_utf8_lossy(&field.value).into_owned()).collect()
}

/// The beginning of bytes that are none of ours: as text if they are, else in hex.
fn dump(bytes: &[u8]) -> Value {
    let begin = bytes.get(..DUMP_LEN_MAX).unwrap_or(bytes);
    match std::str::from_utf8(begin) {
        Ok(text) => text.into(),
        Err(_) => begin.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    }
}

fn decoded(content: Content, item: &Bytes) -> Value {
    let found = match content {
        Content::Offers | Content::BestEffort => {
            Obligation::decode(item).ok().and_then(|found| serde_json::to_value(found).ok())
        }
        Content::Acks => {
            CustodyAck::decode(item).ok().and_then(|found| serde_json::to_value(found).ok())
        }
        Content::Hello => Hello::decode(item).ok().map(|hello| format!("{hello:?}").into()),
        Content::GroupOffer => {
            Template::decode(item).ok().map(|template| format!("{template:?}").into())
        }
        Content::Escalations | Content::Status | Content::Events | Content::Policy => {
            serde_json::from_slice(item).ok()
        }
        Content::Metrics => std::str::from_utf8(item).ok().map(Value::from),
        Content::Refusals => None,
    };
    found.unwrap_or_else(|| dump(item))
}
