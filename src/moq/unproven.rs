//! Streams of tracks at a relay whose publisher has not shown yet that it is whom its name says.
//!
//! Anybody at a relay can announce in a peer's name, and is heard for a while. What comes of that shares the streams
//! and the memory of one connection with what peers send: so it has little of both, and the oldest gives way.

use super::SHARE_REQUESTS_MAX;
use moq_transport::coding::Decode as _;
use proto::id::AgentId;
use proto::track::{Epoch, Namespace};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

/// Such streams of a connection at a time: one of each track that a session may hear, and some more. For a further one
/// the oldest is stopped of the track that has most.
pub(super) const UNPROVEN_MAX: usize = SHARE_REQUESTS_MAX + 32;
/// Bytes of one of them: a hello, with the certificates it is signed by, is a tenth of it.
pub(super) const UNPROVEN_LEN_MAX: usize = 64 * 1024;
/// How long one of them may be open.
pub(super) const UNPROVEN_TIME_MAX: Duration = Duration::from_secs(15);
/// Bytes of the type of a stream and the alias of its track.
const HEAD_LEN_MAX: usize = 18;
/// The type of a stream that answers a FETCH: we asked for it.
const FETCH: u64 = 0x05;

/// What is believed in one connection. All is, until [`Self::begin`].
#[derive(Debug, Default)]
pub(super) struct Doubts {
    begun: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Aliases of tracks whose publisher is the peer.
    proven: HashSet<u64>,
    /// Whom to tell that a stream of a track has had too much.
    bells: HashMap<u64, Arc<Notify>>,
    open: BTreeMap<u64, Open>,
    serial: u64,
}

#[derive(Debug)]
struct Open {
    /// The track that it is of, once it has said so.
    alias: Option<u64>,
    /// Dropped, it is stopped.
    _stop: oneshot::Sender<()>,
}

impl State {
    /// Makes room: who has most gives way.
    fn evict(&mut self) {
        let mut of: HashMap<Option<u64>, (usize, Reverse<u64>)> = HashMap::new();
        for (serial, open) in &self.open {
            of.entry(open.alias).or_insert((0, Reverse(*serial))).0 += 1; // the oldest comes first
        }
        if let Some((_, Reverse(oldest))) = of.into_values().max() {
            self.open.remove(&oldest);
        }
    }
}

impl Doubts {
    /// From now on streams are of unproven tracks until something else is said of them.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody hears the track with this alias.
    pub(super) fn suspect(self: &Arc<Self>, alias: u64) -> Suspect {
        let bell = Arc::new(Notify::new());
        self.state().bells.insert(alias, bell.clone());
        Suspect { doubts: self.clone(), alias, bell }
    }

    /// A stream comes.
    //= BD-1
    pub(super) fn stream(self: &Arc<Self>) -> Option<Unproven> {
        if !self.begun.load(Ordering::Acquire) {
            return None;
        }
        let (stop, stopped) = oneshot::channel();
        let mut state = self.state();
        if state.open.len() >= UNPROVEN_MAX {
            state.evict();
        }
        state.serial += 1;
        let serial = state.serial;
        state.open.insert(serial, Open { alias: None, _stop: stop });
        drop(state);
        let until = Instant::now() + UNPROVEN_TIME_MAX;
        let (doubts, head) = (self.clone(), Vec::new());
        Some(Unproven { doubts, serial, stopped, until, head, alias: None, len: 0 })
    }
}

/// A track that somebody hears.
#[derive(Debug)]
pub(crate) struct Suspect {
    doubts: Arc<Doubts>,
    alias: u64,
    bell: Arc<Notify>,
}

impl Suspect {
    /// It is its peer's.
    pub(crate) fn prove(&self) {
        self.doubts.state().proven.insert(self.alias);
    }

    /// Waits until a stream of it has had too much. The track is to be left then: a stopped stream takes its place
    /// until whoever sends it looks.
    pub(crate) async fn spoilt(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Suspect {
    fn drop(&mut self) {
        let mut state = self.doubts.state();
        state.proven.remove(&self.alias);
        if state.bells.get(&self.alias).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
            state.bells.remove(&self.alias);
        }
    }
}

/// A stream of which nothing good is known.
#[derive(Debug)]
pub(super) struct Unproven {
    doubts: Arc<Doubts>,
    serial: u64,
    stopped: oneshot::Receiver<()>,
    until: Instant,
    head: Vec<u8>,
    alias: Option<u64>,
    len: usize,
}

/// What is to become of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is good, and no further looked at.
    Good,
    /// Nothing is known yet.
    Open,
    /// It has had what it may have.
    Over,
}

impl Unproven {
    /// These bytes came of it.
    pub(super) fn came(&mut self, bytes: &[u8]) -> Verdict {
        self.len += bytes.len();
        if self.alias.is_none() {
            let missing = HEAD_LEN_MAX - self.head.len();
            self.head.extend(bytes.iter().take(missing));
            let mut head = self.head.as_slice();
            match u64::decode(&mut head) {
                Ok(FETCH) => return Verdict::Good,
                Ok(_) => self.alias = u64::decode(&mut head).ok(),
                Err(_) => {}
            }
            if let Some(open) = self.doubts.state().open.get_mut(&self.serial) {
                open.alias = self.alias;
            }
        }
        match self.is_proven() {
            true => Verdict::Good,
            false if self.len > UNPROVEN_LEN_MAX => self.over(),
            false => Verdict::Open,
        }
    }

    /// Waits until its time is over, or its place is taken.
    pub(super) async fn ends(&mut self) -> Verdict {
        let _ = tokio::time::timeout_at(self.until, &mut self.stopped).await;
        if self.is_proven() { Verdict::Good } else { self.over() }
    }

    fn over(&self) -> Verdict {
        let state = self.doubts.state();
        if let Some(bell) = self.alias.and_then(|alias| state.bells.get(&alias)) {
            bell.notify_one();
        }
        Verdict::Over
    }

    fn is_proven(&self) -> bool {
        self.alias.is_some_and(|alias| self.doubts.state().proven.contains(&alias))
    }
}

impl Drop for Unproven {
    fn drop(&mut self) {
        self.doubts.state().open.remove(&self.serial);
    }
}

/// What the peers have shown at a relay. A peer meets its own peers there in as many sessions as are needed, and what
/// is for all of them it publishes in one of those, where nobody's hello is answered by itself.
#[derive(Debug, Default)]
pub(super) struct Proofs {
    peers: Mutex<HashMap<AgentId, Shown>>,
    /// Counts them, for who waits.
    count: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Shown {
    /// The session that has answered ours: what is signed for it was not signed before.
    answered: Option<Epoch>,
    /// The latest one in whose name something for all was signed.
    public: Option<Epoch>,
}

impl Proofs {
    fn show(&self, of: &Namespace, show: impl FnOnce(&mut Shown) -> bool) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if show(peers.entry(of.publisher.clone()).or_default()) {
            self.count.send_modify(|count| *count += 1);
        }
    }

    /// A session of a peer's has answered ours.
    pub(super) fn answered(&self, of: &Namespace) {
        self.show(of, |shown| shown.answered.replace(of.epoch) != Some(of.epoch));
    }

    /// Something for all of a peer's was signed in a session.
    pub(super) fn public(&self, of: &Namespace) {
        self.show(of, |shown| {
            let later = shown.public < Some(of.epoch);
            if later {
                shown.public = Some(of.epoch);
            }
            later
        });
    }

    /// Whether what is for all of a peer's is its own in this session: it is of the run that has answered us, and has
    /// said no later one. What was said in an earlier one anybody could say again.
    //= AC-1
    pub(super) fn hold(&self, of: &Namespace) -> bool {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.get(&of.publisher).is_some_and(|shown| {
            shown.answered.is_some_and(|answered| answered.boot == of.epoch.boot)
                && shown.public == Some(of.epoch)
        })
    }

    /// Tells of each that is new.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::track::Part;

    #[test]
    fn ac1_what_is_for_all_is_a_peers_own_in_the_latest_session_of_the_run_that_answers() {
        let proofs = Proofs::default();
        let of = |boot, session, part| {
            let publisher = AgentId::new("spiffe://example.org/a").unwrap();
            Namespace { publisher, epoch: Epoch { boot, session }, part }
        };
        let part = Part::Peers { index: 3, count: 4 };
        let news = proofs.news();
        let counted = |n| assert_eq!(*news.borrow(), n);
        proofs.public(&of(2, 5, Part::All));
        assert!(!proofs.hold(&of(2, 5, Part::All)), "nobody has answered");
        counted(1);
        proofs.answered(&of(1, 7, part));
        assert!(!proofs.hold(&of(2, 5, Part::All)), "another run of it has");
        proofs.answered(&of(2, 8, part));
        assert!(proofs.hold(&of(2, 5, Part::All)), "it need not be the same session");
        assert!(!proofs.hold(&of(2, 6, Part::All)), "nothing was signed in that");
        counted(3);
        // Said again, it is no news, and what is older counts for nothing.
        proofs.answered(&of(2, 8, part));
        proofs.public(&of(2, 5, Part::All));
        proofs.public(&of(2, 4, Part::All));
        counted(3);
        assert!(!proofs.hold(&of(2, 4, Part::All)));
        proofs.public(&of(2, 6, Part::All));
        assert!(proofs.hold(&of(2, 6, Part::All)) && !proofs.hold(&of(2, 5, Part::All)));
    }

    #[tokio::test(start_paused = true)]
    async fn bd1_of_unproven_streams_who_has_most_gives_way() {
        let doubts = Arc::new(Doubts::default());
        doubts.begin();
        // One of a peer, which is the oldest, and as many as may be of two strangers.
        let mut peer = doubts.stream().unwrap();
        assert_eq!(peer.came(&[0x10, 1]), Verdict::Open);
        let mut strangers: Vec<_> = (1..UNPROVEN_MAX).map(|_| doubts.stream().unwrap()).collect();
        for (n, stream) in strangers.iter_mut().enumerate() {
            let alias = if n % 3 == 0 { 2 } else { 3 };
            assert_eq!(stream.came(&[0x10, alias]), Verdict::Open);
        }
        let begun = Instant::now();
        let _further = doubts.stream().unwrap();
        let mut evicted = strangers.remove(1);
        assert_eq!(evicted.ends().await, Verdict::Over, "the oldest of the one that has most");
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let others = strangers.iter_mut().chain([&mut peer]).map(|other| Box::pin(other.ends()));
        let first = futures_util::future::select_all(others);
        assert!(tokio::time::timeout(UNPROVEN_TIME_MAX / 2, first).await.is_err(), "they are open");
        assert_eq!(doubts.state().open.len(), UNPROVEN_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn bd1_an_unproven_stream_has_little_room_and_time_and_the_oldest_gives_way() {
        let doubts = Arc::new(Doubts::default());
        assert!(doubts.stream().is_none(), "a peer itself is there");
        doubts.begin();
        let mut first = doubts.stream().unwrap();
        let mut others: Vec<_> = (1..UNPROVEN_MAX).map(|_| doubts.stream().unwrap()).collect();
        let begun = Instant::now();
        let further = doubts.stream().unwrap();
        assert_eq!(first.ends().await, Verdict::Over);
        assert_eq!(begun.elapsed(), Duration::ZERO, "its place is taken");
        drop((first, further));
        // Room came free.
        let mut last = doubts.stream().unwrap();
        let mut oldest = others.remove(0);
        assert_eq!(oldest.ends().await, Verdict::Over);
        assert_eq!(begun.elapsed(), UNPROVEN_TIME_MAX);
        // Type, alias 7, and whatever.
        assert_eq!(last.came(&[0x10, 7]), Verdict::Open);
        assert_eq!(last.came(&vec![0; UNPROVEN_LEN_MAX - 2]), Verdict::Open);
        assert_eq!(last.came(&[0]), Verdict::Over);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_proven_has_no_such_limits_and_a_fetch_never() {
        let doubts = Arc::new(Doubts::default());
        doubts.begin();
        let proven = doubts.suspect(300);
        proven.prove();
        // The alias in two bytes, one of which comes late; another track's.
        let mut stream = doubts.stream().unwrap();
        assert_eq!(stream.came(&[0x10, 0x81]), Verdict::Open);
        assert_eq!(stream.came(&[0x2c]), Verdict::Good);
        let mut stream = doubts.stream().unwrap();
        assert_eq!(stream.came(&[0x10, 0x81, 0x2d, 1, 2, 3]), Verdict::Open);
        // It is proven while it is open.
        let late = doubts.suspect(301);
        late.prove();
        assert_eq!(stream.ends().await, Verdict::Good);
        drop((proven, late));
        let other = doubts.suspect(301);
        assert_eq!(stream.ends().await, Verdict::Over);
        other.spoilt().await;
        let mut fetch = doubts.stream().unwrap();
        assert_eq!(fetch.came(&[5]), Verdict::Good);
    }
}
