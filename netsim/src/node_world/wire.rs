//! The UDP network of a node world: sockets, and links between them on virtual time.

use super::hub::{Hub, lock};
use crate::options::Options;
use bytes::Bytes;
use link::{Fate, Link, LinkModel, Rng};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// The port nodes listen on.
const PORT: u16 = 4433;
/// The first port of a NAT.
const PORT_OF_NAT: u16 = 20_000;
/// Packets a socket holds that nobody has read; more are lost.
const INBOX_MAX: usize = 2_048;
/// Earlier packets to a node that noise may repeat.
const SEEN_MAX: usize = 32;
/// Bytes at the end of a packet that corruption may hit: the tag of its encryption. What the flip
/// of a protected bit makes of a packet would depend on its key, and a run would not repeat.
const CORRUPTIBLE: usize = 16;

/// What went over the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Packets sent.
    pub packets: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Packets that arrived, duplicates too.
    pub arrived: u64,
    /// Hash over time, way and size of each packet sent: equal for equal runs (DT-1).
    pub trace: u64,
}

/// The address of a node.
pub(super) fn address(node: usize) -> SocketAddr {
    let [_, _, high, low] = (u32::try_from(node).unwrap_or(0) + 1).to_be_bytes();
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), PORT)
}

fn node_at(address: SocketAddr) -> Option<usize> {
    let IpAddr::V4(ip) = address.ip() else { return None };
    let [10, 0, high, low] = ip.octets() else { return None };
    (usize::from(high) << 8 | usize::from(low)).checked_sub(1)
}

#[derive(Clone, Debug)]
struct Packet {
    to: usize,
    from: SocketAddr,
    ecn: Option<EcnCodepoint>,
    bytes: Bytes,
}

/// One direction of a link.
#[derive(Debug)]
struct Way {
    model: LinkModel,
    link: Link,
    /// Cuts under way.
    cuts: u32,
}

/// The network side of one node.
#[derive(Debug)]
struct Port {
    /// Counts the node's starts; none if it is down.
    life: Option<u64>,
    lives: u64,
    /// Where its packets come from.
    mapped: u16,
    inbox: VecDeque<Packet>,
    reader: Option<Waker>,
    seen: VecDeque<Packet>,
    /// The machine stands still until this time, in microseconds: nothing gets in or out.
    paused_until: u64,
}

#[derive(Debug)]
struct Net {
    nodes: usize,
    ways: Vec<Way>,
    ports: Vec<Port>,
    /// Packets under way, by arrival in microseconds and by order of sending.
    flying: BTreeMap<(u64, u64), Packet>,
    sent: u64,
    traffic: Traffic,
    noise: Rng,
}

/// The network.
#[derive(Debug)]
pub(super) struct Wire {
    hub: Arc<Hub>,
    net: Mutex<Net>,
    sooner: Notify,
}

impl Wire {
    pub(super) fn new(options: &Options, hub: Arc<Hub>) -> Arc<Self> {
        let nodes = options.nodes;
        let way = |n: usize| {
            let special = options.links.iter().find(|way| way.from * nodes + way.to == n);
            let model = special.map_or(&options.link, |way| &way.link).clone();
            Way { model, link: Link::new(options.seed, 100 + n as u64), cuts: 0 }
        };
        let port = |_| Port {
            life: None,
            lives: 0,
            mapped: PORT,
            inbox: VecDeque::new(),
            reader: None,
            seen: VecDeque::new(),
            paused_until: 0,
        };
        let net = Net {
            nodes,
            ways: (0..nodes * nodes).map(way).collect(),
            ports: (0..nodes).map(port).collect(),
            flying: BTreeMap::new(),
            sent: 0,
            traffic: Traffic::default(),
            noise: Rng::new(options.seed, 40_000),
        };
        Arc::new(Self { hub, net: Mutex::new(net), sooner: Notify::new() })
    }

    /// Carries packets for ever.
    pub(super) async fn run(self: Arc<Self>) {
        loop {
            let next = lock(&self.net).deliver(self.hub.micros());
            match next {
                Some(next) => {
                    let _ = tokio::time::timeout_at(self.hub.instant(next), self.sooner.notified())
                        .await;
                }
                None => self.sooner.notified().await,
            }
        }
    }

    /// A socket for the next life of a node.
    pub(super) fn open(self: &Arc<Self>, node: usize) -> Arc<SimSocket> {
        let mut net = lock(&self.net);
        let life = net.ports.get_mut(node).map_or(0, |port| {
            port.lives += 1;
            port.life = Some(port.lives);
            port.lives
        });
        Arc::new(SimSocket { wire: self.clone(), node, life })
    }

    /// A node is dead: nothing leaves it any more, and what was not read is gone.
    pub(super) fn close(&self, node: usize) {
        if let Some(port) = lock(&self.net).ports.get_mut(node) {
            (port.life, port.reader, port.paused_until) = (None, None, 0);
            port.inbox.clear();
        }
    }

    /// One cut of a direction more, or less.
    pub(super) fn cut(&self, from: usize, to: usize, begins: bool) {
        lock(&self.net).change(from, to, |way| {
            way.cuts = if begins { way.cuts + 1 } else { way.cuts.saturating_sub(1) };
        });
    }

    /// Replaces what a direction does to packets, and tells what it did.
    pub(super) fn set(&self, from: usize, to: usize, model: LinkModel) -> Option<LinkModel> {
        lock(&self.net).change(from, to, |way| std::mem::replace(&mut way.model, model))
    }

    /// From now on a node's packets come from another port. Its own port still leads to it, that of
    /// before does not.
    pub(super) fn rebind(&self, node: usize) {
        if let Some(port) = lock(&self.net).ports.get_mut(node) {
            port.mapped = port.mapped.max(PORT_OF_NAT) + 1;
        }
    }

    /// Nothing gets into a node or out of it before this world time.
    pub(super) fn pause(&self, node: usize, for_ms: u64) {
        let until = self.hub.micros() + for_ms * 1_000;
        if let Some(port) = lock(&self.net).ports.get_mut(node) {
            port.paused_until = port.paused_until.max(until);
        }
    }

    /// Something no peer has just sent reaches a node: garbage, or a packet of before.
    pub(super) fn noise(&self, node: usize) {
        let now = self.hub.micros();
        let mut net = lock(&self.net);
        let Some(packet) = net.noise(node) else { return };
        net.fly(now, packet);
        drop(net);
        self.sooner.notify_one();
    }

    /// No more loss, duplication, corruption, cuts; delays and bandwidth stay, and so do addresses.
    pub(super) fn heal(&self) {
        for way in &mut lock(&self.net).ways {
            let LinkModel { delay, bytes_per_second, queue, mtu, .. } = way.model.clone();
            way.model = LinkModel { delay, bytes_per_second, queue, mtu, ..LinkModel::default() };
            way.cuts = 0;
        }
    }

    /// What went over the wire so far.
    pub(super) fn traffic(&self) -> Traffic {
        lock(&self.net).traffic
    }

    fn send(&self, node: usize, life: u64, transmit: &Transmit<'_>) {
        let now = self.hub.micros();
        let mut net = lock(&self.net);
        let first = net.flying.first_key_value().map(|(key, _)| key.0);
        net.send(now, node, life, transmit);
        let next = net.flying.first_key_value().map(|(key, _)| key.0);
        drop(net);
        if next != first {
            self.sooner.notify_one();
        }
    }
}

impl Net {
    fn change<T>(&mut self, from: usize, to: usize, how: impl FnOnce(&mut Way) -> T) -> Option<T> {
        self.ways.get_mut(from * self.nodes + to).map(how)
    }

    fn fly(&mut self, at: u64, packet: Packet) {
        self.flying.insert((at, self.sent), packet);
        self.sent += 1;
    }

    fn send(&mut self, now: u64, node: usize, life: u64, transmit: &Transmit<'_>) {
        let Some(port) = self.ports.get(node).filter(|port| port.life == Some(life)) else {
            return;
        };
        let (mapped, leaves) = (port.mapped, port.paused_until.max(now));
        let (bytes, len) = (transmit.contents, transmit.contents.len());
        let Some(to) = node_at(transmit.destination) else { return };
        self.traffic.count(now, node, to, len as u64);
        let reaches = |port: &Port| [PORT, port.mapped].contains(&transmit.destination.port());
        if !self.ports.get(to).is_some_and(reaches) {
            return;
        }
        let Some(way) = self.ways.get_mut(node * self.nodes + to) else { return };
        let fate = way.link.pass(leaves, len, &way.model);
        let Fate::Arrives { after, again, corrupt } = fate else { return };
        if way.cuts > 0 {
            return;
        }
        let mut from = address(node);
        from.set_port(mapped);
        let bytes = Bytes::copy_from_slice(bytes);
        let packet = Packet { to, from, ecn: transmit.ecn, bytes };
        if let Some(again) = again {
            self.fly(leaves + again.0, packet.clone());
        }
        let packet = match corrupt {
            Some(bits) => packet.corrupted(bits),
            None => packet,
        };
        self.fly(leaves + after.0, packet);
    }

    /// Puts what is due where it belongs; when the next packet arrives.
    fn deliver(&mut self, now: u64) -> Option<u64> {
        while let Some(entry) = self.flying.first_entry() {
            let due = entry.key().0;
            if due > now {
                return Some(due);
            }
            let packet = entry.remove();
            let Some(port) = self.ports.get_mut(packet.to) else { continue };
            if port.life.is_none() || port.inbox.len() >= INBOX_MAX {
                continue;
            }
            let until = port.paused_until;
            if until > now {
                self.fly(until, packet); // it waits in the socket's buffer
                continue;
            }
            self.traffic.arrived += 1;
            port.seen.push_back(packet.clone());
            if port.seen.len() > SEEN_MAX {
                port.seen.pop_front();
            }
            port.inbox.push_back(packet);
            if let Some(reader) = port.reader.take() {
                reader.wake();
            }
        }
        None
    }

    fn noise(&mut self, node: usize) -> Option<Packet> {
        let rng = &mut self.noise;
        let peer = usize::try_from(rng.below(self.nodes as u64)).ok()?;
        let seen = &self.ports.get(node)?.seen;
        let old = usize::try_from(rng.below(2 * SEEN_MAX as u64)).ok()?;
        if let Some(packet) = seen.get(old) {
            return Some(packet.clone());
        }
        let len = rng.range(1, 1_400);
        let bytes: Vec<u8> = (0..len).map(|_| rng.draw().to_be_bytes()[0]).collect();
        Some(Packet { to: node, from: address(peer), ecn: None, bytes: bytes.into() })
    }
}

impl Traffic {
    fn count(&mut self, now: u64, from: usize, to: usize, len: u64) {
        self.packets += 1;
        self.bytes += len;
        for part in [now, (from as u64) << 32 | to as u64, len] {
            self.trace = proto::backoff::mix(self.trace ^ part);
        }
    }
}

impl Packet {
    fn corrupted(self, bits: u64) -> Self {
        let mut bytes = self.bytes.to_vec();
        let from = bytes.len().saturating_sub(CORRUPTIBLE);
        let tail = bytes.split_at_mut(from).1;
        let at = usize::try_from(bits).unwrap_or(0) % tail.len().max(1);
        if let Some(byte) = tail.get_mut(at) {
            *byte ^= 1 << (bits >> 32 & 7);
        }
        Self { bytes: bytes.into(), ..self }
    }
}

/// A UDP socket of one life of a node.
#[derive(Debug)]
pub(super) struct SimSocket {
    wire: Arc<Wire>,
    node: usize,
    life: u64,
}

/// A socket that can always be written to.
#[derive(Debug)]
struct Writable;

impl UdpPoller for Writable {
    fn poll_writable(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for SimSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Writable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.wire.send(self.node, self.life, transmit);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut net = lock(&self.wire.net);
        let port = net.ports.get_mut(self.node).filter(|port| port.life == Some(self.life));
        let Some(port) = port else { return Poll::Pending };
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some(packet) = port.inbox.pop_front() else { break };
            let len = packet.bytes.len().min(buf.len());
            if let (Some(to), Some(from)) = (buf.get_mut(..len), packet.bytes.get(..len)) {
                to.copy_from_slice(from);
            }
            let dst_ip = Some(address(self.node).ip());
            *meta = RecvMeta { addr: packet.from, len, stride: len, ecn: packet.ecn, dst_ip };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        port.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.node))
    }

    fn may_fragment(&self) -> bool {
        false // as on Linux: path MTU discovery is on
    }
}
