//! One side: the real core, its disk, and the commits on their way there.

use crate::disk::SimStore;
use proto::custody::{Custody, Input};
use proto::polarity::Registry;
use proto::settings::Settings;
use proto::step::{Output, Step};
use proto::store::{ReadError, Write};
use proto::time::Time;
use std::sync::Arc;

/// A node, up or down. Copies share what they have not changed.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) store: Arc<SimStore>,
    pub(super) live: Option<Arc<Live>>,
}

/// What a running node has in memory.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) custody: Custody,
    /// Sealed steps that are not durable yet, oldest first.
    pub(super) flights: Vec<Flight>,
}

/// A sealed step: its writes, and the outputs that wait for them.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    generation: u64,
    pub(super) sync: bool,
    /// The tick at which its input was handled.
    pub(super) tick: u8,
    pub(super) writes: Vec<Write>,
    pub(super) outputs: Vec<Output>,
}

/// What a node does next.
pub(super) enum Work {
    /// One call of recovery.
    Recover,
    /// Inputs of one step.
    Inputs(Vec<Input>),
}

impl Machine {
    /// A node that never ran.
    pub(super) fn fresh() -> Self {
        Self { store: Arc::default(), live: None }
    }

    /// Starts the process over what is durable.
    pub(super) fn start(&mut self, settings: Settings) -> Result<(), ReadError> {
        let custody = Custody::open(settings, Registry::default(), &*self.store)?;
        self.live = Some(Arc::new(Live { custody, flights: Vec::new() }));
        Ok(())
    }

    /// Breaks a rule from now on.
    #[cfg(feature = "mutants")]
    pub(super) fn mutate(&mut self, mutant: Option<proto::mutant::Mutant>) {
        if let (Some(live), Some(mutant)) = (&mut self.live, mutant) {
            Arc::make_mut(live).custody.mutate(mutant);
        }
    }

    pub(super) fn custody(&self) -> Option<&Custody> {
        self.live.as_deref().map(|live| &live.custody)
    }

    pub(super) fn flights(&self) -> &[Flight] {
        self.live.as_deref().map_or(&[], |live| &live.flights)
    }

    /// Whether it is up and has loaded all that is pending.
    pub(super) fn ready(&self) -> bool {
        self.custody().is_some_and(Custody::recovered)
    }

    /// Whether its alarm is due.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.custody().and_then(Custody::next_timeout).is_some_and(|at| at <= now)
    }

    /// What it does of itself, if there is something: it recovers, or its alarm is due.
    pub(super) fn next_work(&self, now: Time) -> Option<Work> {
        if self.live.is_some() && !self.ready() {
            return Some(Work::Recover);
        }
        self.is_due(now).then(|| Work::Inputs(vec![Input::Tick]))
    }

    /// Handles one piece of work and seals the step, which waits for [`Machine::commit`].
    pub(super) fn handle(&mut self, now: Time, tick: u8, work: Work) -> Result<(), ReadError> {
        let Some(live) = self.live.as_mut() else { return Ok(()) };
        let live = Arc::make_mut(live);
        let mut step = Step::default();
        match work {
            Work::Recover => {
                live.custody.recover(now, &*self.store, &mut step)?;
            }
            Work::Inputs(inputs) => {
                for input in inputs {
                    live.custody.handle(now, input, &*self.store, &mut step)?;
                }
            }
        }
        live.custody.seal(now, &*self.store, &mut step);
        let (generation, sync) = (step.generation(), step.needs_sync());
        let mut writes = Vec::new();
        let outputs = step.commit(|to_write| {
            writes.extend_from_slice(to_write);
            Ok::<(), std::convert::Infallible>(())
        });
        let outputs = outputs.unwrap_or_default();
        live.flights.push(Flight { generation, sync, tick, writes, outputs });
        Ok(())
    }

    /// Makes the oldest sealed step durable and gives it back, its outputs free to go.
    pub(super) fn commit(&mut self) -> Option<Flight> {
        let flight = self.write()?;
        let live = Arc::make_mut(self.live.as_mut()?);
        live.custody.committed(flight.generation);
        Some(flight)
    }

    fn write(&mut self) -> Option<Flight> {
        let live = Arc::make_mut(self.live.as_mut()?);
        if live.flights.is_empty() {
            return None;
        }
        let flight = live.flights.remove(0);
        if !flight.writes.is_empty() {
            let store = Arc::make_mut(&mut self.store);
            store.apply(&flight.writes, flight.sync);
        }
        Some(flight)
    }

    /// Ends the process. Of its sealed steps the first `durable` have reached the disk, and what
    /// was written behind too with `keep_behind`. Gives the steps that are durable.
    pub(super) fn crash(&mut self, durable: usize, keep_behind: bool) -> Vec<Flight> {
        let reached = (0..durable).filter_map(|_| self.write()).collect();
        Arc::make_mut(&mut self.store).crash(if keep_behind { usize::MAX } else { 0 });
        self.live = None;
        reached
    }
}
