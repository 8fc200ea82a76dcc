//! A UDP link that misbehaves on demand, for the demo and the tests.
//!
//! It stands between a client and a target as a NAT does: each client gets a socket of its own
//! towards the target. Each direction is a [`Link`] of its own with the simulator's [`LinkModel`],
//! or cut, and may be changed while packets flow. It knows nothing of QUIC.

mod count;

pub use count::Count;
pub use link::{Bursts, Chance, Delay, LinkModel, Micros};

use bytes::Bytes;
use count::LinkCounters;
use link::{Fate, Link};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::Instant;

/// Clients at a time. Packets of further ones are dropped until one is idle for [`CLIENT_IDLE`].
pub const CLIENTS_MAX: usize = 64;
/// A client that sent nothing for so long is forgotten, and its socket closed.
pub const CLIENT_IDLE: Duration = Duration::from_secs(60);
/// Packets held back by a delay, both directions together. Further ones are dropped.
pub const HELD_MAX: usize = 16_384;
/// Answers of the target that wait to be looked at. The reader waits, and the kernel drops.
const ANSWERS_MAX: usize = 1_024;
/// The largest UDP payload.
const PACKET_LEN_MAX: usize = 65_535;

/// What one direction does to packets. The default is a perfect link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Direction {
    /// What becomes of a packet.
    pub model: LinkModel,
    /// Whether nothing gets through.
    pub cut: bool,
}

impl From<LinkModel> for Direction {
    fn from(model: LinkModel) -> Self {
        Self { model, cut: false }
    }
}

/// What both directions do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// From clients to the target.
    pub to_target: Direction,
    /// From the target back.
    pub to_client: Direction,
}

impl Faults {
    /// The same both ways.
    #[must_use]
    pub fn both(model: LinkModel) -> Self {
        Self { to_target: model.clone().into(), to_client: model.into() }
    }

    /// The same, seen from the other end.
    #[must_use]
    pub fn turned(self) -> Self {
        Self { to_target: self.to_client, to_client: self.to_target }
    }

    const fn of(&mut self, way: Way) -> &mut Direction {
        match way {
            Way::ToTarget => &mut self.to_target,
            Way::ToClient => &mut self.to_client,
        }
    }
}

/// A direction of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From clients to the target.
    ToTarget,
    /// From the target to clients.
    ToClient,
}

/// What a proxy has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// From clients to the target.
    pub to_target: Count,
    /// From the target back.
    pub to_client: Count,
}

impl Counters {
    /// Both directions together.
    #[must_use]
    pub const fn total(&self) -> Count {
        self.to_target.plus(self.to_client)
    }
}

#[derive(Debug, Default)]
struct Shared {
    faults: Mutex<Faults>,
    to_target: LinkCounters,
    to_client: LinkCounters,
}

impl Shared {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running proxy. It ends, and closes its sockets, when this is dropped.
#[derive(Debug)]
pub struct ProxyHandle {
    address: SocketAddr,
    shared: Arc<Shared>,
    rebind: watch::Sender<u64>,
    task: JoinHandle<()>,
}

/// Starts a proxy to `target` on a free loopback port, with no faults yet. The same `seed` draws
/// the same faults for the same packets.
///
/// # Errors
/// When no socket can be had.
pub async fn start(target: SocketAddr, seed: u64) -> io::Result<ProxyHandle> {
    let front = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = front.local_addr()?;
    front.writable().await?; // until the runtime has seen it so, `try_send` fails
    let shared = Arc::new(Shared::default());
    let (rebind, rebound) = watch::channel(0);
    let (answers_tx, answers) = mpsc::channel(ANSWERS_MAX);
    let relay = Relay {
        front,
        target,
        shared: shared.clone(),
        clients: BTreeMap::new(),
        held: BTreeMap::new(),
        to_target: Link::new(seed, 0),
        to_client: Link::new(seed, 1),
        begun: Instant::now(),
        count: 0,
        answers: answers_tx,
    };
    let task = tokio::spawn(relay.run(answers, rebound));
    Ok(ProxyHandle { address, shared, rebind, task })
}

impl ProxyHandle {
    /// Where clients send to.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Replaces all faults.
    pub fn set(&self, faults: Faults) {
        *self.shared.faults() = faults;
    }

    /// The faults now.
    #[must_use]
    pub fn faults(&self) -> Faults {
        self.shared.faults().clone()
    }

    /// Cuts or heals both directions; the other faults stay.
    pub fn partition(&self, cut: bool) {
        self.cut(Way::ToTarget, cut);
        self.cut(Way::ToClient, cut);
    }

    /// Cuts or heals one direction.
    pub fn cut(&self, way: Way, cut: bool) {
        self.shared.faults().of(way).cut = cut;
    }

    /// Gives every client a new socket, as a NAT that lost its table: the target sees the same
    /// connection come from another port.
    pub fn rebind(&self) {
        self.rebind.send_modify(|count| *count += 1);
    }

    /// What has happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            to_target: self.shared.to_target.read(),
            to_client: self.shared.to_client.read(),
        }
    }
}

impl Drop for ProxyHandle {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A client's socket towards the target, and the task that reads its answers.
struct Client {
    socket: Arc<UdpSocket>,
    reader: AbortHandle,
    last: Instant,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

struct Relay {
    front: UdpSocket,
    target: SocketAddr,
    shared: Arc<Shared>,
    clients: BTreeMap<SocketAddr, Client>,
    held: BTreeMap<(Instant, u64), (Way, SocketAddr, Bytes)>,
    to_target: Link,
    to_client: Link,
    begun: Instant,
    count: u64,
    answers: mpsc::Sender<(SocketAddr, Bytes)>,
}

impl Relay {
    async fn run(
        mut self,
        mut answers: mpsc::Receiver<(SocketAddr, Bytes)>,
        mut rebound: watch::Receiver<u64>,
    ) {
        let mut buffer = vec![0; PACKET_LEN_MAX];
        let mut tidy = tokio::time::interval(CLIENT_IDLE / 4);
        loop {
            let due = self.held.first_key_value().map(|((at, _), _)| *at);
            tokio::select! {
                got = self.front.recv_from(&mut buffer) => {
                    // An error here is an ICMP answer to an earlier packet, no more.
                    let Ok((len, client)) = got else { continue };
                    let packet = Bytes::copy_from_slice(buffer.get(..len).unwrap_or_default());
                    if self.admit(client).await {
                        self.take(Way::ToTarget, client, packet);
                    }
                }
                Some((client, packet)) = answers.recv() => self.take(Way::ToClient, client, packet),
                () = sleep_until(due) => self.release(),
                Ok(()) = rebound.changed() => self.clients.clear(),
                _ = tidy.tick() => self.clients.retain(|_, client| client.last.elapsed() < CLIENT_IDLE),
            }
        }
    }

    /// Whether `client` has a socket, or gets one now.
    async fn admit(&mut self, client: SocketAddr) -> bool {
        if let Some(known) = self.clients.get_mut(&client) {
            known.last = Instant::now();
            return true;
        }
        let full = self.clients.len() >= CLIENTS_MAX;
        let socket = if full { None } else { self.connect().await.ok() };
        let Some(socket) = socket else {
            self.shared.to_target.overflowed();
            return false;
        };
        let (reader, answers) = (socket.clone(), self.answers.clone());
        let reader = tokio::spawn(read(reader, client, answers)).abort_handle();
        self.clients.insert(client, Client { socket, reader, last: Instant::now() });
        true
    }

    async fn connect(&self) -> io::Result<Arc<UdpSocket>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        socket.connect(self.target).await?;
        socket.writable().await?;
        Ok(Arc::new(socket))
    }

    /// Decides what becomes of a packet.
    fn take(&mut self, way: Way, client: SocketAddr, packet: Bytes) {
        let now = Instant::now();
        let micros = u64::try_from((now - self.begun).as_micros()).unwrap_or(u64::MAX);
        let link = match way {
            Way::ToTarget => &mut self.to_target,
            Way::ToClient => &mut self.to_client,
        };
        let fate = {
            let mut faults = self.shared.faults();
            let Direction { model, cut } = faults.of(way);
            // Drawn also while cut, so that a cut does not shift the fate of what comes after it.
            let fate = link.pass(micros, packet.len(), model);
            if *cut { None } else { Some(fate) }
        };
        let Some(Fate::Arrives { after, again, corrupt }) = fate else {
            return self.counters(way).dropped();
        };
        if let Some(again) = again {
            self.counters(way).duplicated();
            self.hold(now + Duration::from_micros(again.0), way, client, packet.clone());
        }
        let packet = match corrupt {
            None => packet,
            Some(draw) => {
                self.counters(way).corrupted();
                let mut bytes = packet.to_vec();
                link::flip(&mut bytes, draw);
                bytes.into()
            }
        };
        if after == Micros(0) {
            self.send(way, client, &packet);
        } else {
            self.hold(now + Duration::from_micros(after.0), way, client, packet);
        }
    }

    fn hold(&mut self, at: Instant, way: Way, client: SocketAddr, packet: Bytes) {
        if self.held.len() >= HELD_MAX {
            self.counters(way).overflowed();
            return;
        }
        self.count += 1;
        self.held.insert((at, self.count), (way, client, packet));
    }

    /// Sends what has been held back long enough.
    fn release(&mut self) {
        let now = Instant::now();
        while let Some(entry) = self.held.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let (way, client, packet) = entry.remove();
            self.send(way, client, &packet);
        }
    }

    fn send(&self, way: Way, client: SocketAddr, packet: &[u8]) {
        let sent = match way {
            Way::ToTarget => self.clients.get(&client).map(|client| client.socket.try_send(packet)),
            Way::ToClient => Some(self.front.try_send_to(packet, client)),
        };
        match sent {
            Some(Ok(len)) => self.counters(way).forwarded(len),
            // A full buffer, or nobody there: a link drops it and says nothing.
            _ => self.counters(way).overflowed(),
        }
    }

    fn counters(&self, way: Way) -> &LinkCounters {
        match way {
            Way::ToTarget => &self.shared.to_target,
            Way::ToClient => &self.shared.to_client,
        }
    }
}

async fn read(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    answers: mpsc::Sender<(SocketAddr, Bytes)>,
) {
    let mut buffer = vec![0; PACKET_LEN_MAX];
    loop {
        match socket.recv(&mut buffer).await {
            Ok(len) => {
                let packet = Bytes::copy_from_slice(buffer.get(..len).unwrap_or_default());
                if answers.send((client, packet)).await.is_err() {
                    return;
                }
            }
            // Nobody listens at the target now; it may again.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A target that answers each packet with itself.
    async fn echo() -> (SocketAddr, JoinHandle<()>) {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut buffer = [0; 2048];
            while let Ok((len, from)) = socket.recv_from(&mut buffer).await {
                let mut answer = from.port().to_be_bytes().to_vec();
                answer.extend_from_slice(&buffer[..len]);
                let _ = socket.send_to(&answer, from).await;
            }
        });
        (address, task)
    }

    async fn client(proxy: &ProxyHandle) -> UdpSocket {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        socket.connect(proxy.address()).await.unwrap();
        socket
    }

    /// Answers that come in until nothing does for a while: port at the target, and payload.
    async fn drain(socket: &UdpSocket) -> Vec<(u16, u8)> {
        let mut answers = Vec::new();
        let mut buffer = [0; 2048];
        while let Ok(Ok(len)) =
            tokio::time::timeout(Duration::from_millis(150), socket.recv(&mut buffer)).await
        {
            assert_eq!(len, 3);
            answers.push((u16::from_be_bytes([buffer[0], buffer[1]]), buffer[2]));
        }
        answers
    }

    #[tokio::test]
    async fn packets_go_both_ways_and_each_client_has_its_own_port() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 1).await.unwrap();
        let (one, two) = (client(&proxy).await, client(&proxy).await);
        one.send(&[1]).await.unwrap();
        two.send(&[2]).await.unwrap();
        let (first, second) = (drain(&one).await, drain(&two).await);
        assert_eq!((first.len(), second.len()), (1, 1));
        assert_eq!((first[0].1, second[0].1), (1, 2));
        assert_ne!(first[0].0, second[0].0);
        proxy.rebind();
        tokio::time::sleep(Duration::from_millis(20)).await;
        one.send(&[3]).await.unwrap();
        assert_ne!(drain(&one).await[0].0, first[0].0, "a new port after the rebind");
    }

    #[tokio::test]
    async fn a_cut_is_per_direction_and_heals() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 1).await.unwrap();
        let socket = client(&proxy).await;
        proxy.cut(Way::ToClient, true);
        socket.send(&[1]).await.unwrap();
        assert_eq!(drain(&socket).await, []);
        let counters = proxy.counters();
        assert_eq!((counters.to_target.forwarded, counters.to_client.dropped), (1, 1));
        proxy.partition(true);
        socket.send(&[2]).await.unwrap();
        assert_eq!(drain(&socket).await, []);
        assert_eq!(proxy.counters().to_target.dropped, 1);
        proxy.partition(false);
        socket.send(&[3]).await.unwrap();
        assert_eq!(drain(&socket).await.len(), 1);
    }

    #[tokio::test]
    async fn duplicates_and_delay_reach_the_other_end() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 7).await.unwrap();
        let socket = client(&proxy).await;
        let link = LinkModel {
            delay: Delay::Uniform(Micros::from_ms(5), Micros::from_ms(45)),
            duplicate: Chance::ALWAYS,
            ..LinkModel::default()
        };
        proxy.set(Faults { to_client: link.into(), ..Faults::default() });
        for n in 0..20 {
            socket.send(&[n]).await.unwrap();
        }
        let answers: Vec<u8> = drain(&socket).await.into_iter().map(|(_, n)| n).collect();
        assert_eq!(answers.len(), 40);
        assert!(!answers.is_sorted(), "jitter reorders: {answers:?}");
        assert_eq!(proxy.counters().total().duplicated, 20);
    }

    #[tokio::test]
    async fn bits_flip_and_what_is_too_large_vanishes() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 7).await.unwrap();
        let socket = client(&proxy).await;
        let link = LinkModel { corrupt: Chance::ALWAYS, mtu: 1, ..LinkModel::default() };
        proxy.set(Faults { to_target: link.into(), ..Faults::default() });
        for n in 0..20 {
            socket.send(&[n]).await.unwrap();
            socket.send(&[n, n]).await.unwrap();
        }
        let answers = drain(&socket).await;
        assert_eq!(answers.len(), 20, "those of two bytes are too large");
        assert!((0..20).zip(answers).all(|(sent, (_, got))| sent != got));
        let counters = proxy.counters().to_target;
        assert_eq!((counters.corrupted, counters.dropped, counters.forwarded_bytes), (20, 20, 20));
    }

    #[tokio::test]
    async fn clients_beyond_the_limit_are_dropped() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 7).await.unwrap();
        let mut sockets = Vec::new();
        for _ in 0..=CLIENTS_MAX {
            let socket = client(&proxy).await;
            socket.send(&[0]).await.unwrap();
            sockets.push(socket);
        }
        drain(&sockets[CLIENTS_MAX]).await;
        assert_eq!(proxy.counters().to_target.forwarded, CLIENTS_MAX as u64);
        assert_eq!(proxy.counters().to_target.overflowed, 1);
    }

    #[tokio::test]
    async fn a_dropped_handle_frees_the_port() {
        let (target, _echo) = echo().await;
        let proxy = start(target, 7).await.unwrap();
        let address = proxy.address();
        drop(proxy);
        for _ in 0..100 {
            if UdpSocket::bind(address).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{address} is still taken");
    }
}
