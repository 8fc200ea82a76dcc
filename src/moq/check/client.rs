//! The sessions that checks are made of: one that announces and serves, one that subscribes.

use super::ANSWER_LIMIT;
use crate::moq::backend::Backend;
use crate::moq::{ALPN, PEER_REQUESTS_MAX};
use crate::tls::{self, TlsError};
use bytes::Bytes;
use moq_transport::coding::{KeyValuePairs, TrackNamespace, TrackNamespacePrefix, TupleField};
use moq_transport::serve::{
    self, ServeError, SubgroupReader, SubgroupWriter, SubgroupsWriter, TrackReader, TrackReaderMode,
};
use moq_transport::session::{
    NamespaceEvent, Publisher, Subscribe, SubscribeNamespace, Subscribed, Subscriber,
};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use url::Url;

/// Subscriptions that wait to be served.
const ASKED_WAITING_MAX: usize = 1024;

/// Streams of one kind that a relay may have open towards one session.
const STREAMS_MAX: u32 = 1_024;
/// How often a session is kept alive.
const KEEP_ALIVE: Duration = Duration::from_secs(4);
/// Pause after a session that ended, in which a relay forgets it.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// What a session begins with (draft-ietf-moq-transport-18 §9.3).
const SETUP: &str = "SETUP";
/// UDP port of a URL without one (draft-ietf-moq-transport-18, the moqt URI scheme).
const PORT: u16 = 443;

/// Why a relay cannot be asked at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RelayError {
    #[error("{0} is no address of a relay; one looks like moqt://relay.example.org:4443/scope")]
    Url(Url),
    #[error("cannot look up {host}: {why}")]
    Address { host: String, why: String },
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// A relay, and how to reach it.
pub(crate) struct Relay {
    url: Url,
    host: String,
    address: SocketAddr,
    tls: quinn::ClientConfig,
    run: String,
    nodes: AtomicU64,
}

impl Relay {
    /// The relay at `url`, whose certificate must be of a CA in the PEM file `ca`.
    pub(crate) async fn new(url: Url, ca: &Path) -> Result<Self, RelayError> {
        let (scheme, host) = (url.scheme(), url.host_str().unwrap_or_default());
        if scheme != "moqt" || host.is_empty() {
            return Err(RelayError::Url(url));
        }
        let host = host.trim_matches(['[', ']']).to_owned();
        let found = tokio::net::lookup_host((host.as_str(), url.port().unwrap_or(PORT))).await;
        let found = found.and_then(|mut found| {
            found.next().ok_or_else(|| std::io::Error::other("there is no address"))
        });
        let found = found.map_err(|error| (host.clone(), error.to_string()));
        let address = found.map_err(|(host, why)| RelayError::Address { host, why })?;
        let mut transport = quinn::TransportConfig::default();
        transport
            .max_concurrent_uni_streams(STREAMS_MAX.into())
            .max_concurrent_bidi_streams(PEER_REQUESTS_MAX.into())
            .keep_alive_interval(Some(KEEP_ALIVE));
        let tls = tls::relay_client(&[ALPN], ca, &Arc::new(transport), None)?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let run = format!("{:x}", since.as_micros());
        Ok(Self { url, host, address, tls, run, nodes: AtomicU64::new(0) })
    }

    pub(crate) const fn url(&self) -> &Url {
        &self.url
    }

    /// A node's name that nobody has had.
    pub(super) fn node(&self) -> String {
        let count = self.nodes.fetch_add(1, Ordering::Relaxed);
        format!("spiffe:%2F%2Fabhyasa%2Frelay-check%2F{}-{count}", self.run)
    }

    pub(super) async fn client(&self) -> Result<Client, String> {
        self.client_at(self.url.path()).await
    }

    /// A session, in the scope that `path` names. One that the relay ends in its setup is begun once more:
    /// aiomoqt 0.13.3 can take the last words of a connection that is over for the first of a new one.
    pub(super) async fn client_at(&self, path: &str) -> Result<Client, String> {
        let mut url = self.url.clone();
        url.set_path(path);
        let begun = async {
            match self.connect(url.clone()).await {
                Err(why) if why.starts_with(SETUP) => {
                    tokio::time::sleep(SETTLE).await;
                    self.connect(url).await.map_err(|again| format!("{again}; before: {why}"))
                }
                done => done,
            }
        };
        match tokio::time::timeout(ANSWER_LIMIT, begun).await {
            Ok(done) => done,
            Err(_) => Err(format!("no session within {ANSWER_LIMIT:?}")),
        }
    }

    /// A connection, from a UDP port of its own.
    pub(crate) async fn connection(&self) -> Result<quinn::Connection, String> {
        self.dial().await.map(|(_, connection)| connection)
    }

    async fn dial(&self) -> Result<(quinn::Endpoint, quinn::Connection), String> {
        let local: SocketAddr = match self.address.is_ipv4() {
            true => (Ipv4Addr::UNSPECIFIED, 0).into(),
            false => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let endpoint = quinn::Endpoint::client(local).map_err(|error| error.to_string())?;
        let connecting = endpoint
            .connect_with(self.tls.clone(), self.address, &self.host)
            .map_err(|error| error.to_string())?;
        let connection = tokio::time::timeout(ANSWER_LIMIT, connecting)
            .await
            .map_err(|_| format!("{} does not answer within {ANSWER_LIMIT:?}", self.address))?
            .map_err(|error| format!("QUIC: {error}"))?;
        Ok((endpoint, connection))
    }

    async fn connect(&self, url: Url) -> Result<Client, String> {
        let (endpoint, connection) = self.dial().await?;
        let (session, publisher, subscriber) = moq_transport::session::Session::connect(
            moq_transport::session::transport::Session::new(Backend::new(connection.clone()), url),
            None,
            moq_transport::session::Transport::RawQuic,
        )
        .await
        .map_err(|error| format!("{SETUP}: {error}"))?;
        publisher.accept_fetch();
        let ended = Arc::new(OnceLock::new());
        let run = tokio::spawn({
            let (ended, connection) = (Arc::clone(&ended), connection.clone());
            async move {
                let why = match session.run().await {
                    Ok(()) => "ended".to_owned(),
                    Err(error) => error.to_string(),
                };
                let _ = ended.set(why);
                connection.close(0u32.into(), b"");
            }
        });
        Ok(Client { endpoint, connection, publisher, subscriber, ended, run })
    }
}

/// One MOQT session.
pub(super) struct Client {
    pub(super) endpoint: quinn::Endpoint,
    pub(super) connection: quinn::Connection,
    pub(super) publisher: Publisher,
    pub(super) subscriber: Subscriber,
    ended: Arc<OnceLock<String>>,
    run: JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.connection.close(0u32.into(), b"done");
        self.run.abort();
    }
}

impl Client {
    /// `no`, and whether the session outlived it.
    fn told(&self, no: No) -> No {
        match self.ended.get() {
            Some(why) => No::Said(format!("{}; the session ended: {why}", String::from(no))),
            None => no,
        }
    }

    /// Why the session ended, if it did.
    pub(super) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Announces a namespace, and is told who subscribes to what in it.
    pub(super) async fn announce(&self, namespace: &TrackNamespace) -> Result<Announced, String> {
        let mut publisher = self.publisher.clone();
        let asked = within("PUBLISH_NAMESPACE", async {
            let handle = publisher
                .publish_namespace_start(namespace.clone())
                .await
                .map_err(|error| error.to_string())?;
            handle.ok().await.map_err(|error| refusal(&error))?;
            Ok(handle)
        })
        .await;
        let handle = asked.map_err(|no| self.told(no))?;
        if let Some(why) = self.ended.get() {
            return Err(format!("PUBLISH_NAMESPACE: the session ended: {why}"));
        }
        let (tell, asked) = mpsc::channel(ASKED_WAITING_MAX);
        let pump = tokio::spawn(async move {
            while let Ok(Some(subscribed)) = handle.subscribed().await {
                if tell.send(subscribed).await.is_err() {
                    break;
                }
            }
        });
        Ok(Announced { asked, pump })
    }

    /// Asks for the namespaces below a prefix.
    pub(super) async fn watch(&self, prefix: &[&str]) -> Result<SubscribeNamespace, String> {
        let mut subscriber = self.subscriber.clone();
        let fields = prefix.iter().map(|field| TupleField::from_utf8(field)).collect();
        let prefix = TrackNamespacePrefix { fields };
        let asked = within("SUBSCRIBE_NAMESPACE", async {
            let handle = subscriber
                .subscribe_namespace(prefix, KeyValuePairs::default())
                .await
                .map_err(|error| error.to_string())?;
            handle.ok().await.map_err(|error| refusal(&error))?;
            Ok(handle)
        })
        .await;
        Ok(asked.map_err(|no| self.told(no))?)
    }

    pub(super) async fn subscribe(
        &self,
        namespace: &TrackNamespace,
        name: &str,
    ) -> Result<Listener, No> {
        self.subscribe_with(namespace, name, KeyValuePairs::default(), ANSWER_LIMIT).await
    }

    pub(super) async fn subscribe_with(
        &self,
        namespace: &TrackNamespace,
        name: &str,
        params: KeyValuePairs,
        limit: Duration,
    ) -> Result<Listener, No> {
        let mut subscriber = self.subscriber.clone();
        let (writer, reader) = serve::Track::new(namespace.clone(), name.to_owned()).produce();
        let (tell, groups) = mpsc::channel(GROUPS_WAITING_MAX);
        let reading = tokio::spawn(read(reader, tell));
        let asked = within_limit("SUBSCRIBE", limit, async {
            let handle = subscriber
                .subscribe_start_with_params(writer, params)
                .await
                .map_err(|error| error.to_string())?;
            match handle.ok().await {
                Ok(()) => Ok(handle),
                Err(error) => Err(refusal(&error)),
            }
        })
        .await;
        match asked {
            Ok(handle) => Ok(Listener { handle, groups, reading }),
            Err(no) => {
                reading.abort();
                Err(self.told(no))
            }
        }
    }
}

/// A refusal in words (codes of draft-ietf-moq-transport-18 §15.10.2).
pub(super) fn refusal(error: &ServeError) -> String {
    let code = match error {
        ServeError::NotFound | ServeError::NotFoundWithId(..) => 0x10,
        ServeError::Timeout => 0x2,
        ServeError::Duplicate => 0x19,
        ServeError::NotImplemented(_) | ServeError::NotImplementedWithId(..) => 0x3,
        ServeError::Internal(_) | ServeError::InternalWithId(..) => 0x0,
        ServeError::Closed(code) => *code,
        ServeError::Cancel | ServeError::Done => return "ended without an answer".to_owned(),
        ServeError::Mode | ServeError::Size => return format!("refused: {error}"),
    };
    let name = match code {
        0x0 => "internal error",
        0x1 => "unauthorized",
        0x2 => "timed out",
        0x3 => "not supported",
        0x6 => "going away",
        0x9 => "excessive load",
        0x10 => "does not exist",
        0x11 => "invalid range",
        0x19 => "duplicate subscription",
        0x20 => "uninterested",
        0x30 => "prefix overlap",
        _ => "a code that is not known here",
    };
    format!("refused with {code:#x}, {name}")
}

/// Why something did not come about.
#[derive(Debug)]
pub(super) enum No {
    /// Nothing was heard in time.
    Silent(String),
    /// The other side said so, or ended the session.
    Said(String),
}

impl From<No> for String {
    fn from(no: No) -> Self {
        match no {
            No::Silent(what) | No::Said(what) => what,
        }
    }
}

pub(super) async fn within<T>(
    what: &str,
    asked: impl Future<Output = Result<T, String>>,
) -> Result<T, No> {
    within_limit(what, ANSWER_LIMIT, asked).await
}

pub(super) async fn within_limit<T>(
    what: &str,
    limit: Duration,
    asked: impl Future<Output = Result<T, String>>,
) -> Result<T, No> {
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(why)) => Err(No::Said(format!("{what}: {why}"))),
        Err(_) => Err(No::Silent(format!("{what}: silent for {} s", limit.as_secs_f32()))),
    }
}

/// A namespace that stays announced until this is dropped.
pub(super) struct Announced {
    asked: mpsc::Receiver<Subscribed>,
    pump: JoinHandle<()>,
}

impl Drop for Announced {
    fn drop(&mut self) {
        self.pump.abort();
    }
}

impl Announced {
    /// The next subscription that the relay sends us, not answered yet.
    pub(super) async fn asked(&mut self) -> Result<Subscribed, String> {
        let asked = within("SUBSCRIBE at the publisher", async {
            self.asked.recv().await.ok_or_else(|| "the announcement ended".to_owned())
        });
        Ok(asked.await?)
    }

    /// As [`Self::asked`], and answers it.
    pub(super) async fn serve(&mut self) -> Result<Origin, String> {
        Origin::serve(self.asked().await?)
    }

    /// Whether another subscription came within a time.
    pub(super) async fn asked_again(&mut self, within: Duration) -> bool {
        matches!(tokio::time::timeout(within, self.asked.recv()).await, Ok(Some(_)))
    }
}

/// A track being served.
pub(super) struct Origin {
    pub(super) name: String,
    pub(super) groups: SubgroupsWriter,
}

impl Origin {
    pub(super) fn serve(subscribed: Subscribed) -> Result<Self, String> {
        let name = subscribed.info.track_name.to_string_lossy().into_owned();
        let namespace = subscribed.info.track_namespace.clone();
        let (writer, reader) = serve::Track::new(namespace, name.clone()).produce();
        let groups = writer.subgroups().map_err(|error| error.to_string())?;
        tokio::spawn(subscribed.serve(reader));
        Ok(Self { name, groups })
    }

    /// Begins a group.
    pub(super) fn open(&mut self, group_id: u64, priority: u8) -> Result<SubgroupWriter, String> {
        let subgroup = serve::Subgroup { group_id, subgroup_id: 0, priority };
        self.groups.create(subgroup).map_err(|error| format!("group {group_id}: {error}"))
    }

    /// Writes one group of one object.
    pub(super) fn write(
        &mut self,
        group_id: u64,
        priority: u8,
        payload: Bytes,
    ) -> Result<(), String> {
        let mut group = self.open(group_id, priority)?;
        group.write(payload).map_err(|error| format!("group {group_id}: {error}"))?;
        group.finish().map_err(|error| format!("group {group_id}: {error}"))
    }
}

/// A group as it arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) id: u64,
    pub(super) subgroup: u64,
    pub(super) priority: u8,
    pub(super) objects: Vec<(u64, Bytes)>,
}

/// Groups that wait to be looked at.
const GROUPS_WAITING_MAX: usize = 1024;

/// A subscription that was accepted.
///
/// moq-transport keeps the last 8 groups only until the first is read, so a task reads from the beginning.
pub(super) struct Listener {
    pub(super) handle: Subscribe,
    groups: mpsc::Receiver<Result<Group, String>>,
    reading: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Listener {
    /// The next group, whole; `None` at the end of the track.
    pub(super) async fn next(&mut self) -> Result<Option<Group>, String> {
        self.next_within(ANSWER_LIMIT).await
    }

    pub(super) async fn next_within(&mut self, limit: Duration) -> Result<Option<Group>, String> {
        Ok(within_limit("objects", limit, async { self.groups.recv().await.transpose() }).await?)
    }
}

async fn read(track: TrackReader, tell: mpsc::Sender<Result<Group, String>>) {
    if let Err(why) = read_all(track, &tell).await {
        let _ = tell.send(Err(why)).await;
    }
}

async fn read_all(
    track: TrackReader,
    tell: &mpsc::Sender<Result<Group, String>>,
) -> Result<(), String> {
    let mut groups = match track.mode().await {
        Ok(TrackReaderMode::Subgroups(groups)) => groups,
        Ok(_) => return Err("came as datagrams".to_owned()),
        Err(ServeError::Done) => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    drop(track);
    let mut reading = JoinSet::new();
    loop {
        tokio::select! {
            Some(group) = reading.join_next() => {
                let group = group.unwrap_or_else(|error| Err(error.to_string()));
                if tell.send(group).await.is_err() {
                    return Ok(());
                }
            }
            group = groups.next() => match group {
                Ok(Some(group)) => drop(reading.spawn(whole(group))),
                Ok(None) => break,
                Err(error) => {
                    while let Some(Ok(group)) = reading.join_next().await {
                        let _ = tell.send(group).await;
                    }
                    return Err(error.to_string());
                }
            },
        }
    }
    while let Some(Ok(group)) = reading.join_next().await {
        let _ = tell.send(group).await;
    }
    Ok(())
}

async fn whole(mut group: SubgroupReader) -> Result<Group, String> {
    let mut objects = Vec::new();
    let cut = |error: ServeError| format!("a group was cut: {error}");
    while let Some(mut object) = group.next().await.map_err(cut)? {
        objects.push((object.object_id, object.read_all().await.map_err(cut)?));
    }
    Ok(Group { id: group.group_id, subgroup: group.subgroup_id, priority: group.priority, objects })
}

/// The next event of a watch.
pub(super) async fn event(
    watch: &SubscribeNamespace,
    limit: Duration,
) -> Result<NamespaceEvent, String> {
    let event = within_limit("NAMESPACE events", limit, async {
        match watch.next().await {
            Ok(Some(event)) => Ok(event),
            Ok(None) => Err("the request ended".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    });
    Ok(event.await?)
}

/// A namespace of the form that abhyasa announces.
pub(super) fn namespace(node: &str, epoch: &str) -> TrackNamespace {
    let fields = ["abhyasa", "1", node, epoch, "all"].map(TupleField::from_utf8).to_vec();
    TrackNamespace { fields }
}

/// Bytes that say which group they are.
pub(super) fn payload(group: u64, len: usize) -> Bytes {
    let mut seed = group.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let bytes = std::iter::repeat_with(|| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed.to_le_bytes()
    });
    bytes.flatten().take(len).collect()
}
