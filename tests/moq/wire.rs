//! What a node writes, read by a codec that is not ours: moqtap-codec. The test is a relay of bare QUIC streams.

use crate::common::*;
use abhyasa::init::ca::valid_days;
use bytes::{Buf as _, Bytes, BytesMut};
use moqtap_codec::draft18::data_stream::{SubgroupHeader, SubgroupObjectReader};
use moqtap_codec::draft18::message::{
    ControlMessage, Namespace as NamespaceMessage, RequestOk, Setup, Subscribe, SubscribeOk,
};
use moqtap_codec::kvp::{KeyValuePair, KvpValue};
use moqtap_codec::types::TrackNamespace;
use moqtap_codec::varint::VarInt;
use proto::batch::{Batch, Hello, root};
use proto::track::{Epoch, Namespace, Part, Track};
use quinn::{Connection, RecvStream, SendStream};
use rcgen::SanType;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// Setup options (draft-ietf-moq-transport-18 §10.3.1).
const PATH: u64 = 0x1;
const AUTHORITY: u64 = 0x5;

fn number(value: u64) -> VarInt {
    VarInt::from_u64_moqt(value)
}

/// A listener with a certificate of the test's CA.
pub fn endpoint(world: &World) -> (quinn::Endpoint, SocketAddr) {
    let names = vec![SanType::IpAddress([127, 0, 0, 1].into())];
    let issued = world.ca.issue_for(names, valid_days(1)).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert], issued.key)
        .unwrap();
    tls.alpn_protocols = vec![b"moqt-18".to_vec()];
    let tls = quinn::crypto::rustls::QuicServerConfig::try_from(tls).unwrap();
    let config = quinn::ServerConfig::with_crypto(Arc::new(tls));
    let endpoint = quinn::Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address)
}

/// A stream, and what was read of it and not taken yet.
struct Reading {
    stream: RecvStream,
    bytes: BytesMut,
}

impl Reading {
    fn new(stream: RecvStream) -> Self {
        Self { stream, bytes: BytesMut::new() }
    }

    /// Reads more; whether there was any.
    async fn more(&mut self) -> bool {
        let chunk = tokio::time::timeout(PATIENCE, self.stream.read_chunk(usize::MAX, true));
        let chunk = chunk.await.expect("bytes in time").unwrap();
        self.bytes.extend(chunk.iter().map(|chunk| chunk.bytes.clone()));
        chunk.is_some()
    }

    /// The next message, which must take exactly the bytes that it says.
    async fn message(&mut self) -> ControlMessage {
        loop {
            let mut rest = self.bytes.as_ref();
            if let Ok(message) = ControlMessage::decode(&mut rest) {
                let taken = self.bytes.len() - rest.len();
                let mut again = Vec::new();
                message.encode(&mut again).unwrap();
                assert_eq!(again, self.bytes[..taken], "it has another spelling");
                self.bytes.advance(taken);
                return message;
            }
            assert!(self.more().await, "the stream ended within {:?}", self.bytes);
        }
    }
}

async fn write(stream: &mut SendStream, message: ControlMessage) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes).unwrap();
    stream.write_all(&bytes).await.unwrap();
}

async fn request(connection: &Connection) -> (SendStream, Reading) {
    let accepted = tokio::time::timeout(PATIENCE, connection.accept_bi());
    let (send, recv) = accepted.await.expect("a request in time").unwrap();
    (send, Reading::new(recv))
}

async fn stream(connection: &Connection) -> Reading {
    let accepted = tokio::time::timeout(PATIENCE, connection.accept_uni());
    Reading::new(accepted.await.expect("a stream in time").unwrap())
}

fn fields(namespace: &TrackNamespace) -> Namespace {
    Namespace::parse(&namespace.0).unwrap()
}

fn bytes_of(texts: &[String]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wr1_another_codec_reads_what_a_node_writes_to_a_relay() {
    let world = World::new();
    let (endpoint, address) = endpoint(&world);
    let relay = format!(
        "[[relays]]\nname = \"r\"\nurl = \"moqt://{address}/tenant\"\nca = \"{}\"\n{}relay = \"r\"\n",
        world.path().join("ca/ca.pem").display(),
        peer_toml("bob", None)
    );
    let alice = start(world.config("alice", &relay)).await;
    let connection = endpoint.accept().await.unwrap().await.unwrap();

    // SETUP, both ways.
    let mut control = connection.open_uni().await.unwrap();
    write(&mut control, ControlMessage::Setup(Setup { options: Vec::new() })).await;
    let mut theirs = stream(&connection).await;
    let ControlMessage::Setup(setup) = theirs.message().await else { panic!("no SETUP") };
    let option = |key: u64, value: &str| KeyValuePair {
        key: number(key),
        value: KvpValue::Bytes(value.as_bytes().to_vec()),
    };
    assert!(setup.options.contains(&option(PATH, "/tenant")), "{setup:?}");
    assert!(setup.options.contains(&option(AUTHORITY, &address.to_string())), "{setup:?}");

    // Its two namespaces, and the watch for Bob's.
    let (mut ids, mut announced, mut open) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut watch = None;
    while announced.len() < 2 || watch.is_none() {
        let (mut send, mut recv) = request(&connection).await;
        let id = match recv.message().await {
            ControlMessage::PublishNamespace(message) => {
                assert_eq!(message.parameters, []);
                announced.push(fields(&message.track_namespace));
                message.request_id
            }
            ControlMessage::SubscribeNamespace(message) => {
                let prefix = bytes_of(&Namespace::prefix_of(&id("bob")));
                assert_eq!(message.namespace_prefix.0, prefix);
                watch = Some(open.len());
                message.request_id
            }
            other => panic!("{other:?}"),
        };
        ids.insert(id.into_inner());
        let ok = RequestOk { parameters: Vec::new(), track_properties: Vec::new() };
        write(&mut send, ControlMessage::RequestOk(ok)).await;
        open.push((send, recv));
    }
    assert_eq!(ids, BTreeSet::from([0, 2, 4]), "a client's request ids are even, from 0");
    announced.sort();
    let epoch = announced[0].epoch;
    let own = |part| Namespace { publisher: id("alice"), epoch, part };
    let parts = [Part::Peers { index: 0, count: 1 }, Part::All];
    assert_eq!(announced, parts.map(own));

    // Bob is there: it subscribes to what he has for it.
    let bobs = Namespace {
        publisher: id("bob"),
        epoch: Epoch { boot: 7, session: 1 },
        part: Part::Peers { index: 0, count: 1 },
    };
    let suffix = TrackNamespace(bytes_of(&bobs.fields()[3..]));
    let news = ControlMessage::Namespace(NamespaceMessage { namespace_suffix: suffix });
    write(&mut open[watch.unwrap()].0, news).await;
    let mut names = BTreeSet::new();
    for alias in 0..2 {
        let (mut send, mut recv) = request(&connection).await;
        let ControlMessage::Subscribe(message) = recv.message().await else {
            panic!("no SUBSCRIBE")
        };
        assert_eq!(fields(&message.track_namespace), bobs);
        assert_eq!(message.request_id.into_inner() % 2, 0);
        names.insert(message.track_name);
        let ok = SubscribeOk {
            track_alias: number(alias),
            parameters: Vec::new(),
            track_properties: Vec::new(),
        };
        write(&mut send, ControlMessage::SubscribeOk(ok)).await;
        open.push((send, recv));
    }
    let tracks = [Track::To(id("alice")), Track::Acks(id("alice"))];
    assert_eq!(names, tracks.map(|track| track.name().into_bytes()).into());

    // Bob asks for what it has for him: SUBSCRIBE_OK, and the first group is a hello.
    let (mut send, recv) = connection.open_bi().await.unwrap();
    let subscribe = Subscribe {
        request_id: number(1),
        track_namespace: TrackNamespace(bytes_of(&own(parts[0]).fields())),
        track_name: Track::To(id("bob")).name().into_bytes(),
        parameters: Vec::new(),
    };
    write(&mut send, ControlMessage::Subscribe(subscribe)).await;
    let mut recv = Reading::new(recv);
    let ControlMessage::SubscribeOk(ok) = recv.message().await else { panic!("no SUBSCRIBE_OK") };
    assert_eq!((ok.parameters, ok.track_properties), (Vec::new(), Vec::new()));

    let mut group = stream(&connection).await;
    while group.more().await {}
    let mut bytes = group.bytes.freeze();
    let header = SubgroupHeader::decode(&mut bytes).unwrap();
    assert_eq!(header.track_alias, ok.track_alias);
    assert_eq!((header.group_id.into_inner(), header.subgroup_id.into_inner()), (0, 0));
    assert_eq!(header.publisher_priority, Some(8));
    let object = SubgroupObjectReader::new(&header).read_object(&mut bytes).unwrap();
    assert_eq!((object.object_id.into_inner(), object.object_status), (0, None));
    assert!(!bytes.has_remaining(), "one object is the group");
    let batch = Batch::decode(&Bytes::from(object.payload)).unwrap();
    let [hello] = &batch.items[..] else { panic!("{batch:?}") };
    assert_eq!(Hello::decode(hello).unwrap().answers, None);
    // The statement is in the signed bytes as it is.
    assert!(batch.signed.windows(32).any(|bytes| bytes == root(&batch.items)));

    drop((control, open));
    alice.stop().await.unwrap();
}
