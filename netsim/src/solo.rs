//! One core by itself, its inputs given by hand: for stories in which the peer is the test.

use crate::disk::SimStore;
use crate::node::EPOCH_MS;
use proto::custody::{Custody, Input};
use proto::polarity::Registry;
use proto::settings::Settings;
use proto::step::{Output, Step};
use proto::time::Time;

/// A core, its store and a clock that stands still until told.
#[derive(Debug)]
pub struct Solo {
    settings: Settings,
    /// The machine.
    pub custody: Custody,
    /// Its durable store.
    pub store: SimStore,
    /// What its clock says, in unix milliseconds.
    pub now: u64,
}

impl Solo {
    /// A fresh core with an empty store, recovered.
    ///
    /// # Panics
    /// If an empty store cannot be opened.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self::over(settings, SimStore::default(), EPOCH_MS).recovered().0
    }

    /// A core over a store, its pending set not loaded yet.
    ///
    /// # Panics
    /// If the store cannot be opened.
    #[must_use]
    pub fn over(settings: Settings, store: SimStore, now: u64) -> Self {
        let custody = Custody::open(settings.clone(), Registry::default(), &store);
        let custody = custody.unwrap_or_else(|error| panic!("{error}"));
        Self { settings, custody, store, now }
    }

    /// Loads the whole pending set; with what came out meanwhile.
    #[must_use]
    pub fn recovered(mut self) -> (Self, Vec<Output>) {
        let mut outputs = Vec::new();
        while !self.custody.recovered() {
            outputs.extend(self.recover_once());
        }
        (self, outputs)
    }

    /// One call of recovery, committed.
    ///
    /// # Panics
    /// If the store is damaged.
    pub fn recover_once(&mut self) -> Vec<Output> {
        let mut step = Step::default();
        let result = self.custody.recover(Time::from_ms(self.now), &self.store, &mut step);
        result.unwrap_or_else(|error| panic!("{error}"));
        self.commit(step)
    }

    /// Kills the core and starts it again over what is durable, `down_ms` later.
    #[must_use]
    pub fn restarted(self, down_ms: u64) -> (Self, Vec<Output>) {
        let mut store = self.store;
        store.crash(0);
        Self::over(self.settings, store, self.now + down_ms).recovered()
    }

    /// One input, committed at once.
    pub fn input(&mut self, input: Input) -> Vec<Output> {
        let step = self.step([input]);
        self.commit(step)
    }

    /// Inputs in one step, sealed and not committed.
    ///
    /// # Panics
    /// If the store is damaged.
    pub fn step(&mut self, inputs: impl IntoIterator<Item = Input>) -> Step {
        let mut step = Step::default();
        let now = Time::from_ms(self.now);
        for input in inputs {
            let result = self.custody.handle(now, input, &self.store, &mut step);
            result.unwrap_or_else(|error| panic!("{error}"));
        }
        self.custody.seal(now, &self.store, &mut step);
        step
    }

    /// Commits a step and gives its outputs out.
    pub fn commit(&mut self, step: Step) -> Vec<Output> {
        let (generation, sync) = (step.generation(), step.needs_sync());
        let store = &mut self.store;
        let outputs = step.commit(|writes| {
            store.apply(writes, sync);
            Ok::<(), std::convert::Infallible>(())
        });
        self.custody.committed(generation);
        outputs.unwrap_or_default()
    }

    /// Lets time pass, with every alarm on the way.
    pub fn pass(&mut self, ms: u64) -> Vec<Output> {
        let until = self.now + ms;
        let mut outputs = Vec::new();
        while let Some(due) =
            self.custody.next_timeout().map(Time::as_ms).filter(|due| *due <= until)
        {
            self.now = self.now.max(due);
            outputs.extend(self.input(Input::Tick));
        }
        self.now = until;
        outputs
    }
}
