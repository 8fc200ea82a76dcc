//! The seams of a measured node: its store, which may leave fsyncs out and tells when effects are
//! there; and its socket, which counts.

use abhyasa::store::{FjallStore, Storage, StoreError};
use bytes::Bytes;
use proto::record::{Cell, Role, role_prefix};
use proto::store::{Read, ReadError, Table, Write};
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::Notify;

/// A store that syncs as told, or not at all.
pub(super) struct Disk {
    inner: FjallStore,
    skips: AtomicBool,
    syncs: AtomicU64,
    /// States that commits have set for peers, with the time at which each commit had returned.
    applied: Mutex<Vec<(Instant, Bytes)>>,
    bell: Notify,
}

impl Disk {
    pub(super) const fn new(inner: FjallStore) -> Self {
        Self {
            inner,
            skips: AtomicBool::new(false),
            syncs: AtomicU64::new(0),
            applied: Mutex::new(Vec::new()),
            bell: Notify::const_new(),
        }
    }

    /// Leaves fsyncs out from now on, or no longer.
    pub(super) fn skip_syncs(&self, skip: bool) {
        self.skips.store(skip, Ordering::SeqCst);
    }

    /// Fsyncs so far.
    pub(super) fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::SeqCst)
    }

    /// Ids of what was applied here since the last call, and when.
    pub(super) fn take_applied(&self) -> Vec<(Instant, String)> {
        let taken =
            std::mem::take(&mut *self.applied.lock().unwrap_or_else(PoisonError::into_inner));
        let id = |(at, cell): (Instant, Bytes)| {
            Some((at, Cell::decode(&cell).ok()?.obligation_id.as_str().to_owned()))
        };
        taken.into_iter().filter_map(id).collect()
    }

    /// Waits until something was applied.
    pub(super) async fn applies(&self) {
        self.bell.notified().await;
    }
}

impl Read for Disk {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        self.inner.get(table, key)
    }

    fn scan(
        &self,
        table: Table,
        from: &[u8],
        limit: usize,
    ) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
        self.inner.scan(table, from, limit)
    }

    fn last(&self, table: Table) -> Result<Option<(Bytes, Bytes)>, ReadError> {
        self.inner.last(table)
    }
}

impl Storage for Disk {
    fn commit(&self, writes: &[Write], sync: bool) -> Result<(), StoreError> {
        let sync = sync && !self.skips.load(Ordering::SeqCst);
        self.inner.commit(writes, sync)?;
        self.syncs.fetch_add(u64::from(sync), Ordering::SeqCst);
        let now = Instant::now();
        let ours = role_prefix(Role::Receiver).as_bytes();
        let cells = writes
            .iter()
            .filter(|write| write.table == Table::Cell && write.key.starts_with(ours))
            .filter_map(|write| Some((now, write.value.clone()?)));
        let mut applied = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let before = applied.len();
        applied.extend(cells);
        if applied.len() > before {
            self.bell.notify_one();
        }
        Ok(())
    }
}

/// A UDP socket that counts what it sends.
#[derive(Debug)]
pub(super) struct Wire {
    inner: Arc<dyn AsyncUdpSocket>,
    bytes: AtomicU64,
    datagrams: AtomicU64,
}

impl Wire {
    pub(super) const fn new(inner: Arc<dyn AsyncUdpSocket>) -> Self {
        Self { inner, bytes: AtomicU64::new(0), datagrams: AtomicU64::new(0) }
    }

    /// Bytes of payload and datagrams sent so far.
    pub(super) fn sent(&self) -> (u64, u64) {
        (self.bytes.load(Ordering::SeqCst), self.datagrams.load(Ordering::SeqCst))
    }
}

impl AsyncUdpSocket for Wire {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        self.inner.clone().create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.inner.try_send(transmit)?;
        let len = transmit.contents.len();
        let datagrams = transmit.segment_size.map_or(1, |size| len.div_ceil(size.max(1)));
        self.bytes.fetch_add(len as u64, Ordering::SeqCst);
        self.datagrams.fetch_add(datagrams as u64, Ordering::SeqCst);
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(cx, bufs, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments()
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}
