//! A real node, and a peer or relay before it that does as it likes.

use super::signed::{id, identity, signatures};
use super::*;
use crate::config::NodeConfig;
use crate::demo::stage::tune;
use crate::init::{InitOptions, init};
use crate::moq::sign::Signatures;
use crate::node::{Builder, Node};
use proto::ack::{AckStatus, CustodyAck};
use proto::batch::{Audience, Content, Hello};
use proto::custodian::Draft;
use proto::id::{Kind, ObligationId};
use proto::limits::FRAME_LEN_MAX;
use proto::obligation::Obligation;
use proto::store::Table;
use proto::time::Time;
use proto::track::{Epoch, Namespace, Part, Track as Name};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Bob, a node that knows Alice and Carol; we are Alice, with our own MOQT.
pub(super) struct Stage {
    pub(super) bob: Node,
    ca: DevCa,
    alice: Signatures,
    endpoint: quinn::Endpoint,
    _dir: tempfile::TempDir,
}

/// A session of ours with Bob that is up.
struct Open {
    offers: Outgoing,
    _acks: Outgoing,
    from_bob: Incoming,
    /// Bob's own session.
    epoch: Epoch,
    link: Link,
    tasks: JoinSet<()>,
}

impl Stage {
    async fn new() -> Self {
        Self::with("").await
    }

    /// The same, with more in Bob's configuration.
    pub(super) async fn with(more: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = DevCa::generate().unwrap();
        std::fs::create_dir(dir.path().join("ca")).unwrap();
        std::fs::write(dir.path().join("ca/ca.pem"), ca.cert_pem()).unwrap();
        std::fs::write(dir.path().join("ca/ca.key"), ca.key_pem()).unwrap();
        let ca_dir = Some(dir.path().join("ca"));
        let options =
            InitOptions { id: Some(id("bob").to_string()), ca: ca_dir, ..InitOptions::default() };
        let file = init(&dir.path().join("bob"), &options).unwrap().config;
        let peer = |name| {
            let may = "may_issue = [\"anumati.consent\"]\nmay_receive = [\"phala.belief_update\"]";
            format!("[[peers]]\nid = \"{}\"\n{may}\nbinding = \"moqt\"\n", id(name))
        };
        let head = "quic = { listen = \"127.0.0.1:0\", send_queue_bytes_max = 262144 }\n[moq]\nenabled = true\n";
        tune(&file, &format!("{head}{more}{}{}", peer("alice"), peer("carol"))).unwrap();
        let bob = Builder::new(NodeConfig::load(&file).unwrap()).start().await.unwrap();
        let endpoint = quinn::Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        Self { bob, alice: signatures(&ca, "alice"), ca, endpoint, _dir: dir }
    }

    pub(super) fn alice_tls(&self) -> TlsIdentity {
        identity(&self.ca, "alice")
    }

    pub(super) fn bob_tls(&self) -> TlsIdentity {
        identity(&self.ca, "bob")
    }

    /// A session with Bob in which nothing has happened, and its task.
    pub(super) async fn link(&self) -> (Link, JoinSet<()>) {
        let tls = identity(&self.ca, "alice");
        let transport = Arc::new(quinn::TransportConfig::default());
        let config = tls.client(&[ALPN], &id("bob"), transport).unwrap();
        let bob = self.bob.handle().quic_address();
        let connection = self.endpoint.connect_with(config, bob, tls::SERVER_NAME).unwrap();
        let url = "moqt://127.0.0.1/".parse().unwrap();
        let (link, run) = Link::connect(connection.await.unwrap(), url, Vec::new()).await.unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(run.await) });
        (link, tasks)
    }

    /// Alice's `session`-th session with Bob, brought up by hand.
    async fn open(&self, session: u64) -> Open {
        let (link, mut tasks) = self.link().await;
        let (epoch, part) = at(session);
        let ns = namespace(&Namespace { publisher: id("alice"), epoch, part }.fields());
        let mut requests = link.answer(ns.clone());
        let theirs = link.clone();
        let heard = async move {
            loop {
                let mut announced = theirs.announced().await.unwrap();
                announced.ok().unwrap();
                let fields: Vec<_> = announced
                    .info
                    .namespace
                    .fields
                    .iter()
                    .map(|field| field.value.clone())
                    .collect();
                let bobs = Namespace::parse(&fields).unwrap();
                if bobs.part == part {
                    return (announced, bobs);
                }
                std::mem::forget(announced); // dropped, it would be withdrawn
            }
        };
        let (announced, (theirs, bobs)) = tokio::join!(link.announce(ns), heard);
        let announced = announced.unwrap();
        let of = namespace(&bobs.fields());
        let to_us = Name::To(id("alice")).name();
        let acks_to_us = Name::Acks(id("alice")).name();
        let mut from_bob = link.subscribe(of.clone(), to_us, FRAME_LEN_MAX).await.unwrap();
        let acks = link.subscribe(of, acks_to_us, FRAME_LEN_MAX).await.unwrap();
        let mut served = [None, None];
        for _ in 0..2 {
            let subscribed = requests.subscribed.recv().await.unwrap();
            let name = Name::parse(subscribed.info.track_name.as_bytes()).unwrap();
            let (outgoing, serve) = Outgoing::accept(subscribed).unwrap();
            tasks.spawn(async move { drop(serve.await) });
            served[usize::from(name == Name::Acks(id("bob")))] = Some(outgoing);
        }
        let [offers, ours] = served.map(Option::unwrap);
        let mut open = Open {
            offers,
            _acks: ours,
            from_bob: acks,
            epoch: bobs.epoch,
            link: link.clone(),
            tasks,
        };
        // Hellos both ways, and an answer.
        from_bob.next().await.unwrap().unwrap();
        open.from_bob.next().await.unwrap().unwrap();
        let (answers, groups) = (Some(bobs.epoch), std::collections::BTreeSet::new());
        let hello =
            Hello { in_flight_max: 100, seal_key: None, answers, up: false, groups }.encode();
        for outgoing in [&mut open.offers, &mut open._acks] {
            let object = self.object(session, Content::Hello, vec![hello.clone()]);
            outgoing.push(8, object).await.unwrap();
        }
        loop {
            let (_, object) = open.from_bob.next().await.unwrap().unwrap();
            let opened = self.alice.open(&object, now()).unwrap();
            let hello = Hello::decode(&opened.items[0]).unwrap();
            if hello.answers == Some(epoch) {
                break;
            }
        }
        open.tasks.spawn(async move {
            let _keep = (announced, theirs, from_bob, link);
            std::future::pending::<()>().await;
        });
        open
    }

    /// An object of Alice's for Bob, in a session of hers.
    fn object(&self, session: u64, content: Content, items: Vec<Bytes>) -> Bytes {
        self.alice.seal(at(session), Audience::agent(id("bob")).unwrap(), content, items).unwrap().1
    }

    fn dropped(&self) -> u64 {
        self.bob.handle().metrics().moqt_dropped.get()
    }
}

impl Open {
    /// The next acks of Bob's.
    async fn acks(&mut self, stage: &Stage) -> Vec<CustodyAck> {
        let next = tokio::time::timeout(Duration::from_secs(20), async {
            loop {
                let (_, object) = self.from_bob.next().await.unwrap().unwrap();
                let opened = stage.alice.open(&object, now()).unwrap();
                assert_eq!(opened.statement.from.publisher, id("bob"));
                assert_eq!(opened.statement.audience, Audience::agent(id("alice")).unwrap());
                if opened.statement.content == Content::Acks {
                    return opened.items;
                }
            }
        });
        next.await.unwrap().iter().map(|item| CustodyAck::decode(item).unwrap()).collect()
    }
}

/// Session and part of Alice's.
const fn at(session: u64) -> (Epoch, Part) {
    (Epoch { boot: 1, session }, Part::Peers { index: 0, count: 1 })
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time::from_ms(since.as_millis() as u64)
}

fn revoke(name: &str, target: &str) -> Bytes {
    let payload = format!("{{\"decision\": \"revoke\", \"scope\": \"{name}\"}}");
    Obligation {
        id: ObligationId::new(name).unwrap(),
        kind: Kind::new("anumati.consent").unwrap(),
        target: id(target),
        payload: serde_json::from_str(&payload).unwrap(),
        deadline_seconds: 600,
        max_retries: 10,
        created_at: now(),
        sequence: Some(1),
    }
    .encode()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_groups_that_come_twice_or_out_of_order_are_applied_once_each() {
    let stage = Stage::new().await;
    let mut open = stage.open(1).await;
    let batch = |n: u64| stage.object(1, Content::Offers, vec![revoke(&format!("r{n}"), "bob")]);
    let batches: Vec<Bytes> = (0..4).map(batch).collect();
    // As a relay may deliver them: the last first, each twice, the copy as another group.
    for (group, n) in [(20, 3), (12, 1), (11, 0), (13, 1), (21, 3), (10, 2), (9, 2), (14, 0)] {
        open.offers.push_as(group, 16, batches[n].clone()).await.unwrap();
    }
    let mut acked = Vec::new();
    while acked.len() < 8 {
        for ack in open.acks(&stage).await {
            assert_eq!(ack.status, AckStatus::Applied);
            acked.push(ack.obligation_id.to_string());
        }
    }
    acked.sort();
    assert_eq!(acked, ["r0", "r0", "r1", "r1", "r2", "r2", "r3", "r3"]);
    assert_eq!(stage.bob.handle().store().scan(Table::Ledger, &[], 100).unwrap().len(), 4);
    assert_eq!(stage.dropped(), 0);
    stage.bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ac1_what_is_not_signed_by_the_peer_for_us_is_dropped_and_never_acknowledged() {
    let stage = Stage::new().await;
    let mut open = stage.open(1).await;
    let good = stage.object(1, Content::Offers, vec![revoke("good", "bob")]);
    let mut altered = good.to_vec();
    let last = altered.len() - 1;
    altered[last] ^= 1;
    let to = |agent: &str| Audience::agent(id(agent)).unwrap();
    let seal = |by: &Signatures, audience, content| {
        by.seal(at(1), audience, content, vec![revoke("bad", "bob")]).unwrap().1
    };
    let carol = signatures(&stage.ca, "carol");
    let stranger = signatures(&DevCa::generate().unwrap(), "alice");
    let bad: [(&str, Bytes); 9] = [
        ("altered on its way", altered.into()),
        ("not a batch", Bytes::from_static(b"obligation")),
        ("an obligation without a signature", revoke("bad", "bob")),
        ("for another target", seal(&stage.alice, to("carol"), Content::Offers)),
        ("for everybody", seal(&stage.alice, Audience::Everyone, Content::Offers)),
        ("of another peer", seal(&carol, to("bob"), Content::Offers)),
        ("of another CA", seal(&stranger, to("bob"), Content::Offers)),
        ("of another session", stage.object(0, Content::Offers, vec![revoke("bad", "bob")])),
        ("acks, where offers go", seal(&stage.alice, to("bob"), Content::Acks)),
    ];
    let count = bad.len() as u64;
    for (why, object) in bad {
        let before = stage.dropped();
        open.offers.push(16, object).await.unwrap();
        let seen = async {
            while stage.dropped() == before {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), seen).await.expect(why);
    }
    // The session goes on, and what is good is applied.
    open.offers.push(16, good).await.unwrap();
    let acks = open.acks(&stage).await;
    assert_eq!(acks.len(), 1);
    assert_eq!(acks[0].obligation_id.as_str(), "good");
    assert_eq!(stage.dropped(), count);
    assert_eq!(stage.bob.handle().store().scan(Table::Ledger, &[], 100).unwrap().len(), 1);
    stage.bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab3_a_new_epoch_takes_over_and_what_was_applied_before_is_acknowledged_again() {
    let stage = Stage::new().await;
    let mut first = stage.open(1).await;
    let item = revoke("r", "bob");
    let offer = stage.object(1, Content::Offers, vec![item.clone()]);
    first.offers.push(16, offer.clone()).await.unwrap();
    assert_eq!(first.acks(&stage).await.len(), 1);
    drop(first);
    let mut second = stage.open(2).await;
    // The same object said again is of the session that is over.
    second.offers.push(16, offer).await.unwrap();
    let again = stage.object(2, Content::Offers, vec![item]);
    second.offers.push(16, again).await.unwrap();
    let acks = second.acks(&stage).await;
    assert_eq!((acks.len(), acks[0].status), (1, AckStatus::Applied));
    assert_eq!(stage.dropped(), 1);
    assert_eq!(stage.bob.handle().store().scan(Table::Ledger, &[], 100).unwrap().len(), 1);
    stage.bob.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bd1_what_a_peer_does_not_take_stays_in_its_bounded_queue() {
    let stage = Stage::new().await;
    let mut open = stage.open(1).await;
    let bob = stage.bob.handle();
    let held = open.link.hold_back();
    let dropped = || bob.metrics().best_effort_dropped.get();
    // More than fits in streams, in what is taken out to be published, and in the queue.
    let mut issued = 0;
    while dropped() == 0 {
        assert!(issued < 60_000, "all of them are somewhere in memory");
        let drafts = (issued..issued + 100).map(|n| Draft {
            id: ObligationId::new(&format!("b{n}")).unwrap(),
            kind: Kind::new("phala.belief_update").unwrap(),
            target: id("alice"),
            payload: serde_json::from_str(r#"{"weight_delta": 0.001, "weight_key": "route"}"#)
                .unwrap(),
            deadline_seconds: Some(600),
            max_retries: None,
            sequence: None,
        });
        let results = bob.issue(drafts.collect()).await.unwrap();
        assert!(results.iter().all(|result| result.as_ref().is_ok_and(|issued| !issued.custody)));
        issued += 100;
        // Time for the session to take them out of the queue, or it would only be full for a moment.
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    // And the session goes on.
    drop(held);
    let offer = stage.object(1, Content::Offers, vec![revoke("r", "bob")]);
    open.offers.push(16, offer).await.unwrap();
    assert_eq!(open.acks(&stage).await[0].status, AckStatus::Applied);
    stage.bob.stop().await.unwrap();
}

/// Who wants custody, and does not answer in time what the node announces, is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_announcement_without_an_answer_is_made_again() {
    let stage = Stage::new().await;
    let (link, _tasks) = stage.link().await;
    let (epoch, part) = at(1);
    let ns = namespace(&Namespace { publisher: id("alice"), epoch, part }.fields());
    let _requests = link.answer(ns.clone());
    let _announced = link.announce(ns).await.unwrap();
    let mut unanswered = Vec::new();
    for _ in 0..2 {
        let next = tokio::time::timeout(Duration::from_secs(30), link.announced());
        unanswered.push(next.await.expect("in time").unwrap());
    }
    let [first, again] = &unanswered[..] else { unreachable!() };
    assert_eq!(first.info.namespace, again.info.namespace);
    stage.bob.stop().await.unwrap();
}

/// An ack that is lost costs a retry; a track of which nothing comes any more would lose them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ab1_a_peer_that_answers_no_offer_is_asked_and_one_that_says_nothing_is_met_anew() {
    let stage = Stage::with("answer_ms = 300\n").await;
    let mut open = stage.open(1).await;
    let bob = stage.bob.handle();
    let draft = Draft {
        id: ObligationId::new("w").unwrap(),
        kind: Kind::new("phala.belief_update").unwrap(),
        target: id("alice"),
        payload: serde_json::from_str(r#"{"weight_delta": -0.25, "weight_key": "route"}"#).unwrap(),
        deadline_seconds: Some(600),
        max_retries: None,
        sequence: None,
    };
    assert!(bob.issue(vec![draft]).await.unwrap()[0].as_ref().unwrap().custody);
    // Bob's hellos in which he asks. Who answers them may take its time for the offer.
    let asked = async |from_bob: &mut Incoming| {
        loop {
            let (_, object) = from_bob.next().await.ok()??;
            let opened = stage.alice.open(&object, now()).unwrap();
            let hello = Hello::decode(&opened.items[0]).unwrap();
            if opened.statement.content == Content::Hello && !hello.up {
                return Some(hello);
            }
        }
    };
    let groups = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let hello = tokio::time::timeout(Duration::from_secs(30), asked(&mut open.from_bob)).await;
        assert!(hello.expect("in time").is_some(), "the session goes on");
        let (answers, groups) = (Some(open.epoch), groups.clone());
        let hello = Hello { in_flight_max: 100, seal_key: None, answers, up: true, groups };
        let object = stage.object(1, Content::Hello, vec![hello.encode()]);
        open.offers.push(8, object).await.unwrap();
    }
    // Who does not is not heard for some reason, and to be met in another session.
    let closed = open.link.connection().closed();
    // Which side is the first to close depends on whether the subscriptions or the session are seen to end first.
    tokio::time::timeout(Duration::from_secs(30), closed).await.expect("in time");
    assert!(bob.outcome(&ObligationId::new("w").unwrap()).unwrap().is_none(), "it is in custody");
    let _again = stage.open(2).await;
    stage.bob.stop().await.unwrap();
}
