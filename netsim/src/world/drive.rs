//! The driver of a simulated node: inputs gather, steps are sealed, commits go to the disk in
//! order, and outputs leave when their commit is done and not before.

use super::{Event, World};
use crate::node::{Fate, Flight, Rotten};
use crate::options::Sabotage;
use crate::scenario::CrashPoint;
use proto::custody::Input;
use proto::frame::Frame;
use proto::limits::{BATCH_COUNT_MAX, FRAME_LEN_TARGET};
use proto::step::{Output, SessionId, Step};
use proto::store::{Read, ReadError, Table, Write};
use proto::time::Time;
use std::collections::BTreeMap;

impl World {
    /// Gives a node an input, if it is up.
    pub(crate) fn input(&mut self, n: usize, input: Input) {
        if let Input::AckEscalation { id, .. } = &input {
            self.checker.acknowledged(n, id);
        }
        if let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) {
            live.inbox.push_back(input);
            self.pump_soon(n);
        }
    }

    /// Gives a node a local call, if it is up. It waits until the pending set is loaded.
    pub(crate) fn call(&mut self, n: usize, input: Input) -> bool {
        if let Input::AckEscalation { id, .. } = &input {
            self.checker.acknowledged(n, id);
        }
        let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) else {
            return false;
        };
        live.calls.push_back(input);
        self.pump_soon(n);
        true
    }

    pub(super) fn pump_soon(&mut self, n: usize) {
        let Some(node) = self.nodes.get_mut(n) else { return };
        let life = node.life;
        if let Some(live) = &mut node.live
            && !live.pump_queued
        {
            live.pump_queued = true;
            self.schedule(self.now, Event::Pump { node: n, life });
        }
    }

    pub(super) fn alarm(&mut self, n: usize, at: u64) {
        let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) else { return };
        if live.alarm_at == Some(at) {
            live.alarm_at = None;
            live.tick_due = true;
            self.pump(n);
        }
    }

    /// Handles what came in, as far as commits in flight allow.
    pub(super) fn pump(&mut self, n: usize) {
        if let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) {
            live.pump_queued = false;
        }
        loop {
            match self.one_step(n) {
                Ok(Some((step, clock))) => self.launch(n, step, clock),
                Ok(None) => return self.set_alarm(n),
                Err(error) => return self.unreadable(n, &error),
            }
        }
    }

    /// The next step of a node, sealed; none if nothing came in or its commits are all in flight.
    fn one_step(&mut self, n: usize) -> Result<Option<(Step, Time)>, ReadError> {
        let Some(node) = self.nodes.get_mut(n) else { return Ok(None) };
        let clock = node.clock(self.now);
        let rotten = node.disk.rotten(self.now);
        let Some(live) = &mut node.live else { return Ok(None) };
        let writing = live.writing();
        let custody = &mut live.custody;
        let due = live.tick_due || custody.next_timeout().is_some_and(|at| at <= clock);
        let idle = !due && live.inbox.is_empty() && live.calls.is_empty();
        if writing >= self.options.commits_in_flight || (idle && custody.recovered()) {
            return Ok(None);
        }
        let damaged = rotten.map(|which| Rotten { store: &node.store, which });
        let store: &dyn Read = match &damaged {
            Some(damaged) => damaged,
            None => &node.store,
        };
        let mut step = Step::default();
        if !custody.recovered() {
            custody.recover(clock, store, &mut step)?;
        }
        // No queue holds up a deadline. In the node a call may still overtake it by a moment, so the
        // tick is first in one step and last in the next.
        live.tick_last = !live.tick_last;
        if due && !live.tick_last {
            custody.handle(clock, Input::Tick, store, &mut step)?;
        }
        for _ in 0..self.options.inputs_per_commit {
            let calls = custody.recovered().then_some(&mut live.calls);
            let next = live.inbox.pop_front().or_else(|| calls.and_then(|calls| calls.pop_front()));
            let Some(input) = next else { break };
            custody.handle(clock, input, store, &mut step)?;
        }
        if due && live.tick_last {
            custody.handle(clock, Input::Tick, store, &mut step)?;
        }
        live.tick_due = false;
        custody.seal(clock, store, &mut step);
        Ok(Some((step, clock)))
    }

    /// Sends a step on its way: to the disk, or at once if it has nothing to write and nothing is
    /// before it.
    fn launch(&mut self, n: usize, mut step: Step, clock: Time) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(n) else { return };
        let life = node.life;
        let (takes, fate) = if step.needs_commit() {
            node.disk.commit(now, step.needs_sync())
        } else {
            (0, Fate::Durable)
        };
        let Some(live) = &mut node.live else { return };
        for event in step.take_attested() {
            self.checker.attested(now, n, &event);
        }
        let alone = live.flights.is_empty();
        let at = live.disk_free_at.max(now) + takes;
        live.disk_free_at = at;
        live.flights.push_back(Flight { step, clock, fate });
        if alone && at == now {
            self.commit_done(n);
        } else {
            self.schedule(at, Event::Commit { node: n, life });
        }
    }

    /// The oldest commit in flight is done, or failed.
    pub(super) fn commit_done(&mut self, n: usize) {
        let flight = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()?.flights.pop_front());
        let Some(Flight { step, clock, fate }) = flight else { return };
        #[cfg(feature = "mutants")]
        if self.careless(n, fate) {
            return self.release_carelessly(n, step, clock, fate);
        }
        if fate != Fate::Durable {
            if fate == Fate::Kept {
                let sync = step.needs_sync();
                self.durable(n, clock, sync, step);
            }
            return self.commit_failed(n);
        }
        let armed = self
            .nodes
            .get_mut(n)
            .filter(|_| step.needs_commit())
            .and_then(|node| node.armed.take());
        if armed.is_some_and(|(point, _)| point == CrashPoint::BeforeCommit) {
            return self.crash_at(n, armed);
        }
        let (generation, sync) = (step.generation(), step.needs_sync());
        if sync {
            self.note(Some(n), || format!("commits {}", written(step.writes())));
        }
        let mut outputs = self.durable(n, clock, sync, step);
        if let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) {
            live.custody.committed(generation);
        }
        match armed {
            Some((CrashPoint::BetweenOutputs, _)) => {
                let count = outputs.len() as u64 + 1;
                let leave = self.nodes.get_mut(n).map_or(0, |node| node.disk.rng.below(count));
                outputs.truncate(usize::try_from(leave).unwrap_or(0));
            }
            Some(_) => outputs.clear(),
            None => {}
        }
        let mut offers = Vec::new();
        for output in outputs {
            self.checker.released(self.now, n, &output);
            match output {
                Output::Offers { .. } if self.fans_out() => offers.push(output),
                output => self.act(n, output),
            }
        }
        self.fan_out(n, offers);
        if armed.is_some() {
            self.crash_at(n, armed);
        }
    }

    /// A node that was armed is killed here. What was to follow a commit that never was is not
    /// written either.
    fn crash_at(&mut self, n: usize, armed: Option<(CrashPoint, u64)>) {
        let Some((point, down_ms)) = armed else { return };
        if point == CrashPoint::BeforeCommit
            && let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut())
        {
            live.flights.clear();
        }
        self.note(Some(n), || format!("is killed: {point:?}"));
        self.kill(n, Some(down_ms));
    }

    /// Makes a step's writes durable.
    pub(super) fn durable(&mut self, n: usize, clock: Time, sync: bool, step: Step) -> Vec<Output> {
        let (now, checker, sabotage) = (self.now, &mut self.checker, self.options.sabotage);
        let Some(node) = self.nodes.get_mut(n) else { return Vec::new() };
        let store = &mut node.store;
        let outputs = step.commit(|writes| {
            match sabotage {
                Sabotage::Honest => store.apply(writes, sync),
                Sabotage::LyingDisk => store.apply(writes, false),
                Sabotage::NoLedger => {
                    let kept = writes.iter().filter(|write| write.table != Table::Ledger);
                    store.apply(&kept.cloned().collect::<Vec<_>>(), sync);
                }
            }
            checker.committed(now, n, clock, writes);
            Ok::<(), std::convert::Infallible>(())
        });
        match outputs {
            Ok(outputs) => outputs,
            Err(never) => match never {},
        }
    }

    /// Does what an output asks for.
    pub(super) fn act(&mut self, n: usize, output: Output) {
        match output {
            Output::Offers { session, first_ref, items } => {
                let mut first = first_ref;
                let mut batch = Vec::new();
                let mut len = 0;
                let count_max = if self.options.singly { 1 } else { BATCH_COUNT_MAX };
                for item in items {
                    if batch.len() == count_max || (len > 0 && len + item.len() > FRAME_LEN_TARGET)
                    {
                        let items: Vec<_> = std::mem::take(&mut batch);
                        let first_ref = first;
                        first += items.len() as u64;
                        len = 0;
                        self.send(session, Frame::Offers { first_ref, items }, false);
                    }
                    len += item.len();
                    batch.push(item);
                }
                self.send(session, Frame::Offers { first_ref: first, items: batch }, false);
            }
            Output::AckRuns { session, runs } => self.send_acks(session, runs),
            Output::Acks { peer, acks } => {
                if let Some(session) = self.session_with(n, &peer) {
                    self.send(session, Frame::Acks(acks), false);
                }
            }
            Output::Refuse { session, refs, code, retry_after_ms, text } => {
                self.send(session, Frame::Refuse { refs, code, retry_after_ms, text }, false);
            }
            Output::Answer { session, query_ref, acks, unknown } => {
                self.send(session, Frame::Answer { query_ref, acks, unknown }, false);
            }
            Output::ProbeReply { session, nonce, at } => {
                self.send(session, Frame::ProbeReply { nonce, at }, false);
            }
            Output::BestEffort { peer, items } => {
                if let Some(session) = self.session_with(n, &peer) {
                    for item in items {
                        self.send(session, Frame::BestEffort { items: vec![item] }, true);
                    }
                }
            }
            Output::RetryDue { peer } => self.retry_due(n, &peer),
            Output::Decide { issuer, obligation, .. } => self.decide(n, issuer, &obligation),
            Output::Issued { ticket, results } => self.answered(n, ticket, &results),
            Output::Event(event) => self.told(n, event),
            Output::Inform { .. } | Output::Operated { .. } => {}
        }
    }

    fn send_acks(&mut self, session: SessionId, runs: Vec<proto::ack::AckRun>) {
        if !self.options.singly {
            return self.send(session, Frame::AckRuns(runs), false);
        }
        for run in runs {
            for first in run.refs.iter().flat_map(|range| range.iter()) {
                let refs = vec![proto::ack::RefRange { first, count: 1 }];
                let run = proto::ack::AckRun { refs, ..run.clone() };
                self.send(session, Frame::AckRuns(vec![run]), false);
            }
        }
    }

    /// Sees to it that the node's one alarm goes off.
    pub(super) fn set_alarm(&mut self, n: usize) {
        let Some(node) = self.nodes.get(n) else { return };
        let life = node.life;
        // What waits for the disk is taken up again when a commit is done.
        let due = node
            .live
            .as_ref()
            .filter(|live| live.writing() < self.options.commits_in_flight)
            .and_then(|live| live.custody.next_timeout());
        let Some(due) = due.filter(|due| *due != Time::NEVER) else { return };
        let at = node.clock.world(due).max(self.now);
        let Some(live) = self.nodes.get_mut(n).and_then(|node| node.live.as_mut()) else { return };
        if live.alarm_at.is_none_or(|set| at < set) {
            live.alarm_at = Some(at);
            self.schedule(at, Event::Alarm { node: n, life, at });
        }
    }
}

/// What a commit writes, for people: how many records of each table.
fn written(writes: &[Write]) -> String {
    let mut tables: BTreeMap<Table, (u32, u32)> = BTreeMap::new();
    for write in writes {
        let (set, gone) = tables.entry(write.table).or_default();
        *(if write.value.is_some() { set } else { gone }) += 1;
    }
    let told = tables.iter().map(|(table, (set, gone))| match gone {
        0 => format!("{} +{set}", table.name()),
        _ => format!("{} +{set} -{gone}", table.name()),
    });
    told.collect::<Vec<_>>().join(", ")
}
