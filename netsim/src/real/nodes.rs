//! The two processes and the link between them, as the timeline treats them.

use super::book::{Shared, ms, unix_ms};
use super::plan::{Action, link_of};
use crate::check::Class;
use crate::options::Options;
use abhyasa::demo::api::Api;
use abhyasa::demo::stage::{NodeProcess, Stage};
use abhyasa::proxy::{Direction, Faults};
use anyhow::Context as _;
use link::{LinkModel, Rng};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

/// How long a node may take from its start until it is ready.
const READY_WITHIN: Duration = Duration::from_secs(20);
/// How long a node may take to stop when it is asked to.
const STOPPED_WITHIN: Duration = Duration::from_secs(20);
/// Kills, in thousandths, that ask first: SIGTERM.
const ASKS_PERMILLE: u32 = 200;
/// Junk packets at a time.
const NOISE_PACKETS: u64 = 20;

/// One process.
#[derive(Debug, Default)]
struct Slot {
    /// Faults that want it down.
    down: u32,
    /// Faults that want it to stand still.
    paused: u32,
    /// The failure its store is armed with.
    armed: Option<(u64, u64)>,
    /// When it was asked to stop.
    asked: Option<Instant>,
    /// When to start it, if it is to be.
    start_at: Option<Instant>,
    started: Option<Instant>,
    ready: Option<JoinHandle<()>>,
    /// Since when it cannot work, in unix milliseconds.
    out_since: Option<u64>,
    /// Times it could not.
    outages: Vec<(u64, u64)>,
}

/// What was done to the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Deeds {
    /// Processes killed.
    pub kills: u64,
    /// Processes asked to stop.
    pub stops: u64,
    /// Processes that ended by a failure of their store, on purpose.
    pub store_failures: u64,
    /// Times a process stood still.
    pub pauses: u64,
    /// Processes started.
    pub starts: u64,
}

/// Both nodes and the link.
pub(super) struct Nodes {
    pub(super) stage: Stage,
    pub(super) deeds: Deeds,
    slots: [Slot; 2],
    cuts: [u32; 2],
    links: [LinkModel; 2],
    book: Shared,
    rng: Rng,
    begun: Instant,
}

impl Nodes {
    /// Starts both and waits until they are connected, over a perfect link.
    pub(super) async fn start(
        mut stage: Stage,
        options: &Options,
        book: Shared,
    ) -> anyhow::Result<Self> {
        stage.start().await?;
        let links = [link_of(options, 0, 1), link_of(options, 1, 0)];
        let nodes = Self {
            stage,
            deeds: Deeds { starts: 2, ..Deeds::default() },
            slots: [Slot::default(), Slot::default()],
            cuts: [0, 0],
            links,
            book,
            rng: Rng::new(options.seed, 64),
            begun: Instant::now(),
        };
        nodes.set_link();
        Ok(nodes)
    }

    pub(super) fn api(&self, node: usize) -> Api {
        if node == 0 { self.stage.alice.api.clone() } else { self.stage.bob.api.clone() }
    }

    pub(super) const fn process(&mut self, node: usize) -> &mut NodeProcess {
        if node == 0 { &mut self.stage.alice } else { &mut self.stage.bob }
    }

    fn slot(&mut self, node: usize) -> &mut Slot {
        let [alice, bob] = &mut self.slots;
        if node == 0 { alice } else { bob }
    }

    pub(super) async fn act(&mut self, action: Action) -> anyhow::Result<()> {
        match action {
            Action::Kill(node) => {
                self.slot(node).down += 1;
                let slot = self.slot(node);
                let can = slot.armed.is_none() && slot.paused == 0 && slot.ready.is_none();
                if self.rng.chance(ASKS_PERMILLE) && can && self.process(node).runs() {
                    self.stop(node)?;
                } else {
                    self.kill(node);
                }
            }
            Action::Start(node) => {
                let slot = self.slot(node);
                slot.down = slot.down.saturating_sub(1);
                slot.start_at = Some(Instant::now());
            }
            Action::Arm { node, plan, restart_ms, full_until_ms } => {
                if self.slot(node).down == 0 {
                    self.kill(node);
                    self.launch(node, Some(&plan))?;
                    self.slot(node).armed = Some((restart_ms, full_until_ms));
                }
            }
            Action::Stop(node) => {
                self.slot(node).paused += 1;
                self.pause(node)?;
            }
            Action::Continue(node) => {
                let slot = self.slot(node);
                slot.paused = slot.paused.saturating_sub(1);
                if slot.paused == 0 {
                    self.go_on(node)?;
                }
            }
            Action::Cut(from, _) => self.cut(from, true),
            Action::Mend(from, _) => self.cut(from, false),
            Action::Link(from, _, link) => {
                let [out, back] = &mut self.links;
                *(if from == 0 { out } else { back }) = *link;
                self.set_link();
            }
            Action::Rebind(0) => self.stage.link.out.rebind(),
            Action::Rebind(_) => self.stage.link.back.rebind(),
            Action::Noise(node) => self.noise(node).await?,
        }
        Ok(())
    }

    fn cut(&mut self, from: usize, begins: bool) {
        let [out, back] = &mut self.cuts;
        let cuts = if from == 0 { out } else { back };
        *cuts = if begins { *cuts + 1 } else { cuts.saturating_sub(1) };
        self.set_link();
    }

    fn set_link(&self) {
        let ([out, back], [cut_out, cut_back]) = (&self.links, &self.cuts);
        let way =
            |model: &LinkModel, cuts: &u32| Direction { model: model.clone(), cut: *cuts > 0 };
        self.stage
            .link
            .set(Faults { to_target: way(out, cut_out), to_client: way(back, cut_back) });
    }

    /// Packets that may look like QUIC at the first byte, to the node's own port.
    async fn noise(&mut self, node: usize) -> anyhow::Result<()> {
        let at = abhyasa::config::NodeConfig::load(self.process(node).config())?.quic.listen;
        let socket = UdpSocket::bind("127.0.0.1:0").await?;
        for _ in 0..NOISE_PACKETS {
            let len = self.rng.range(1, 1_400);
            let packet: Vec<u8> = (0..len).map(|_| self.rng.draw().to_le_bytes()[0]).collect();
            socket.send_to(&packet, at).await?;
        }
        Ok(())
    }

    /// Asks it to end.
    fn stop(&mut self, node: usize) -> anyhow::Result<()> {
        self.deeds.stops += 1;
        self.out(node);
        let slot = self.slot(node);
        (slot.asked, slot.started) = (Some(Instant::now()), None);
        self.signal(node, Signal::TERM)
    }

    fn kill(&mut self, node: usize) {
        if self.process(node).runs() {
            self.deeds.kills += 1;
        }
        self.process(node).kill();
        self.out(node);
        let slot = self.slot(node);
        (slot.armed, slot.started, slot.asked) = (None, None, None);
        if let Some(ready) = slot.ready.take() {
            ready.abort();
        }
    }

    fn launch(&mut self, node: usize, plan: Option<&str>) -> anyhow::Result<()> {
        self.process(node).start(plan)?;
        self.deeds.starts += 1;
        let api = self.api(node);
        let ready = tokio::spawn(async move {
            while api.get("/readyz", &[]).await.is_err() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        let slot = self.slot(node);
        (slot.start_at, slot.started, slot.ready) = (None, Some(Instant::now()), Some(ready));
        if slot.paused > 0 {
            self.pause(node)?;
        }
        Ok(())
    }

    /// It cannot work from now on.
    fn out(&mut self, node: usize) {
        self.slot(node).out_since.get_or_insert_with(unix_ms);
    }

    /// It can, unless something else is the matter.
    fn back(&mut self, node: usize) {
        let slot = self.slot(node);
        let well = slot.paused == 0 && slot.ready.is_none() && slot.started.is_some();
        if let Some(since) = slot.out_since.take_if(|_| well) {
            slot.outages.push((since, unix_ms()));
        }
    }

    fn pause(&mut self, node: usize) -> anyhow::Result<()> {
        self.deeds.pauses += 1;
        self.out(node);
        self.signal(node, Signal::STOP)
    }

    fn go_on(&mut self, node: usize) -> anyhow::Result<()> {
        self.signal(node, Signal::CONT)?;
        self.back(node);
        Ok(())
    }

    fn signal(&mut self, node: usize, signal: Signal) -> anyhow::Result<()> {
        if !self.process(node).runs() {
            return Ok(());
        }
        let pid = self.process(node).pid().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).context("a running process has a number")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Looks after the processes: starts what is due, and sees what ended by itself.
    pub(super) fn tend(&mut self) -> anyhow::Result<()> {
        for node in [0, 1] {
            self.see_end(node)?;
            let slot = self.slot(node);
            if slot.ready.as_ref().is_some_and(JoinHandle::is_finished) {
                slot.ready = None;
                self.back(node);
            }
            let slot = self.slot(node);
            let late = slot.started.is_some_and(|at| at.elapsed() > READY_WITHIN);
            if slot.ready.is_some() && slot.paused == 0 && late {
                slot.started = Some(Instant::now());
                let detail = format!("not ready within {} s of its start", READY_WITHIN.as_secs());
                self.book.open().breach("starts", Class::Liveness, node, detail);
            }
            let slot = self.slot(node);
            if slot.asked.is_some_and(|at| at.elapsed() > STOPPED_WITHIN) {
                let detail = format!("not stopped within {} s", STOPPED_WITHIN.as_secs());
                self.book.open().breach("stops", Class::Liveness, node, detail);
                self.kill(node);
            }
            let slot = self.slot(node);
            let due = slot.start_at.is_some_and(|at| at <= Instant::now());
            if slot.down == 0 && slot.asked.is_none() && due {
                slot.start_at = None;
                if !self.process(node).runs() {
                    let full = self.still_full(node);
                    self.launch(node, full.map(|_| "full@1"))?;
                    self.slot(node).armed = full;
                }
            }
        }
        Ok(())
    }

    /// The failure it is still armed with, if its disk is still full.
    fn still_full(&mut self, node: usize) -> Option<(u64, u64)> {
        let now = ms(self.begun.elapsed());
        self.slot(node).armed.filter(|(_, full_until)| *full_until > now)
    }

    fn see_end(&mut self, node: usize) -> anyhow::Result<()> {
        let Some(status) = self.process(node).exited()? else { return Ok(()) };
        self.process(node).kill(); // only forgets it
        self.out(node);
        let slot = self.slot(node);
        if slot.asked.take().is_some() {
            if !status.success() {
                let detail = format!("asked to stop, the node ended so: {status}");
                self.book.open().breach("stops", Class::Crash, node, detail);
            }
            return Ok(());
        }
        slot.started = None;
        if let Some(ready) = slot.ready.take() {
            ready.abort();
        }
        let after = match slot.armed {
            Some((restart_ms, _)) => restart_ms,
            None => {
                let detail = format!("the node ended by itself: {status}");
                self.book.open().breach("ends", Class::Crash, node, detail);
                500
            }
        };
        self.deeds.store_failures += u64::from(self.slot(node).armed.is_some());
        self.slot(node).start_at = Some(Instant::now() + Duration::from_millis(after));
        Ok(())
    }

    /// No more faults: both run, on honest disks, over a link that only delays.
    pub(super) fn heal(&mut self) -> anyhow::Result<()> {
        self.cuts = [0, 0];
        for link in &mut self.links {
            let LinkModel { delay, bytes_per_second, queue, .. } = link.clone();
            *link = LinkModel { delay, bytes_per_second, queue, ..LinkModel::default() };
        }
        self.set_link();
        for node in [0, 1] {
            let slot = self.slot(node);
            (slot.down, slot.paused) = (0, 0);
            self.go_on(node)?;
            let wrong = self.slot(node).armed.is_some() || self.slot(node).asked.is_some();
            if wrong || !self.process(node).runs() {
                self.kill(node);
                self.launch(node, None)?;
            }
        }
        Ok(())
    }

    /// Ends both.
    pub(super) fn end(&mut self) {
        for node in [0, 1] {
            self.process(node).kill();
            if let Some(ready) = self.slot(node).ready.take() {
                ready.abort();
            }
            let slot = self.slot(node);
            if let Some(since) = slot.out_since.take() {
                slot.outages.push((since, unix_ms()));
            }
        }
    }

    /// For how much of a time, in unix milliseconds, a node could work.
    pub(super) fn able_ms(&self, node: usize, from: u64, to: u64) -> u64 {
        let [alice, bob] = &self.slots;
        let slot = if node == 0 { alice } else { bob };
        let out = slot
            .outages
            .iter()
            .map(|(since, until)| (*until).min(to).saturating_sub((*since).max(from)));
        to.saturating_sub(from).saturating_sub(out.sum())
    }
}
