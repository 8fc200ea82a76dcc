//! The custody core: custodian, receiver and principal state behind one door.
//!
//! The contract: one input, one step; commit the step; then act on its outputs.
//!
//! 1. [`Custody::handle`] takes the time and an input, and adds writes and locked outputs to a
//!    [`Step`]. Several inputs may share a step.
//! 2. [`Custody::seal`] closes the step.
//! 3. [`Step::commit`] makes the writes durable and gives the outputs out (PS-1).
//! 4. [`Custody::committed`] says so; until then later inputs see the writes as staged. Steps are
//!    committed, and their outputs released, in the order they were sealed, also those without
//!    writes: an ack may rest on a ledger entry of the step before.
//! 5. [`Custody::next_timeout`] is the one alarm: come back with [`Input::Tick`] by then.
//!
//! A read or commit that fails ends the process (CR-1); the next start recovers from the store.

mod housekeeping;
mod memory;
mod operator;

use crate::ack::{AckRun, CustodyAck, RefRange};
use crate::custodian::{Check, Custodian, Draft, IssueError, Issued};
use crate::event::{Event, Fault};
use crate::frame::RefuseCode;
use crate::id::{AgentId, ObligationId};
use crate::obligation::Obligation;
use crate::polarity::Registry;
use crate::receiver::{Decision, Receiver};
use crate::record::{Reconcile, num_key, to_json};
use crate::settings::Settings;
use crate::step::{Ctx, Output, SessionId, Staging, Step, Ticket};
use crate::store::{Read, ReadError, Table};
use crate::time::Time;
use bytes::Bytes;
use std::sync::Arc;

use housekeeping::Counters;
pub use memory::{DecidingMemory, Memory, PeerMemory, SessionMemory, TransferMemory};
pub use operator::{OperatorError, OperatorResult};

/// Result of one draft of an issue call.
pub type IssueResult = Result<Issued, IssueError>;

/// Something that happened outside.
#[derive(Clone, Debug)]
pub enum Input {
    /// A local agent issues obligations.
    Issue {
        /// Ties the answer to the call.
        ticket: Ticket,
        /// What to issue.
        drafts: Vec<Draft>,
    },
    /// A connection with an authenticated peer is up, both hellos done.
    SessionUp {
        /// Its number.
        session: SessionId,
        /// Who is there.
        peer: AgentId,
        /// How many offers it takes at once; 0 for a session we only receive on.
        window: usize,
    },
    /// A connection is gone.
    SessionDown {
        /// Its number.
        session: SessionId,
    },
    /// A peer offers obligations.
    Offers {
        /// Where.
        session: SessionId,
        /// Ref of the first.
        first_ref: u64,
        /// Encoded obligations.
        items: Vec<Bytes>,
    },
    /// A peer sends obligations without custody.
    BestEffort {
        /// Where.
        session: SessionId,
        /// Encoded obligations.
        items: Vec<Bytes>,
    },
    /// A peer acknowledges offers of a session.
    AckRuns {
        /// Where.
        session: SessionId,
        /// The acks.
        runs: Vec<AckRun>,
    },
    /// An authenticated peer acknowledges by id, on any binding.
    Acks {
        /// Who.
        peer: AgentId,
        /// The acks.
        acks: Vec<CustodyAck>,
    },
    /// A peer refused offers.
    Refused {
        /// Where.
        session: SessionId,
        /// Which.
        refs: Vec<RefRange>,
        /// Why.
        code: RefuseCode,
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
    },
    /// A peer asks what became of obligations it issued.
    Query {
        /// Where.
        session: SessionId,
        /// Its ref.
        query_ref: u64,
        /// Which.
        ids: Vec<ObligationId>,
    },
    /// A peer probes us: decode, authorization, ledger read and answer.
    Probe {
        /// Where.
        session: SessionId,
        /// Given back.
        nonce: u64,
        /// An id to look up.
        id: Option<ObligationId>,
    },
    /// An external handler decided.
    Decided {
        /// Who issued the obligation.
        issuer: AgentId,
        /// Which.
        id: ObligationId,
        /// What.
        decision: Decision,
    },
    /// The principal acknowledges an escalation.
    AckEscalation {
        /// Ties the answer to the call.
        ticket: Ticket,
        /// Which.
        id: ObligationId,
    },
    /// A person resolves a reconciliation item.
    Resolve {
        /// Ties the answer to the call.
        ticket: Ticket,
        /// The item's number.
        number: u64,
        /// How.
        resolution: crate::record::Resolution,
    },
    /// The webhook sink has taken an escalation.
    SinkDelivered {
        /// Its transfer number.
        num: u64,
    },
    /// Time has passed.
    Tick,
}

/// The custody core of one node.
#[derive(Clone, Debug)]
pub struct Custody {
    settings: Arc<Settings>,
    registry: Arc<Registry>,
    custodian: Custodian,
    receiver: Receiver,
    staging: Staging,
    counters: Counters,
}

/// Pending transfers loaded by one call of [`Custody::recover`].
pub const RECOVER_PER_CALL: usize = 8192;

impl Custody {
    /// The core over an existing or empty store. Call [`Custody::recover`] until it says so before
    /// the first issue.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot be read, or has another format version.
    pub fn open(
        settings: Settings,
        registry: Registry,
        store: &dyn Read,
    ) -> Result<Self, ReadError> {
        let counters = Counters::load(store)?;
        let mut custodian = Custodian::default();
        custodian.next_num = counters.next_num;
        custodian.begin_recovery();
        Ok(Self {
            settings: Arc::new(settings),
            registry: Arc::new(registry),
            custodian,
            receiver: Receiver::default(),
            staging: Staging::default(),
            counters,
        })
    }

    /// Loads more of the pending set and lets due timers run. Returns whether all is loaded.
    ///
    /// # Errors
    /// [`ReadError`] ends the process.
    pub fn recover(
        &mut self,
        now: Time,
        store: &dyn Read,
        step: &mut Step,
    ) -> Result<bool, ReadError> {
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        self.custodian.recover(&mut ctx, &self.settings, RECOVER_PER_CALL)?;
        if self.custodian.recovered() {
            self.receiver.settle_intents(&mut ctx, &self.settings)?;
        }
        self.tick(now, store, step)?;
        Ok(self.custodian.recovered())
    }

    /// Handles one input at `now`; adds what must be written and what may then be sent to `step`.
    ///
    /// # Errors
    /// [`ReadError`] ends the process. What a peer or a caller does wrong is an output, not an
    /// error.
    pub fn handle(
        &mut self,
        now: Time,
        input: Input,
        store: &dyn Read,
        step: &mut Step,
    ) -> Result<(), ReadError> {
        let settings = &self.settings;
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        let mut filed = Vec::new();
        match input {
            Input::Issue { ticket, drafts } => {
                let mut results = Vec::with_capacity(drafts.len());
                for draft in drafts {
                    results.push(self.custodian.issue(
                        &mut ctx,
                        settings,
                        &self.registry,
                        draft,
                    )?);
                }
                ctx.step.output(Output::Issued { ticket, results });
            }
            Input::SessionUp { session, peer, window } => {
                ctx.step.event(Event::SessionUp { peer: peer.clone() });
                self.custodian.session_up(&mut ctx, settings, session, &peer, window)?;
            }
            Input::SessionDown { session } => {
                if let Some(peer) = self.custodian.session_peer(session).cloned() {
                    ctx.step.event(Event::SessionDown { peer });
                }
                self.custodian.session_down(&mut ctx, settings, session)?;
            }
            Input::Offers { session, first_ref, items } => {
                if let Some(peer) = self.custodian.session_peer(session) {
                    let peer = peer.clone();
                    self.receiver.on_offers(
                        &mut ctx,
                        settings,
                        &self.registry,
                        &peer,
                        (session, first_ref),
                        &items,
                    )?;
                }
            }
            Input::BestEffort { session, items } => {
                if let Some(peer) = self.custodian.session_peer(session).cloned() {
                    let applied = self.receiver.on_best_effort(
                        &mut ctx,
                        settings,
                        &self.registry,
                        &peer,
                        &items,
                    )?;
                    self.counters.best_effort_applied += applied;
                }
            }
            Input::AckRuns { session, runs } => {
                for run in runs {
                    let verdict = crate::custodian::Verdict {
                        status: run.status,
                        reason: run.reason.as_ref(),
                    };
                    let mut matched = 0;
                    for range in &run.refs {
                        for reference in
                            self.custodian.offers_in(session, range.first, range.last())
                        {
                            matched += 1;
                            filed.extend(self.custodian.ack_offer(
                                &mut ctx,
                                settings,
                                &self.registry,
                                session,
                                reference,
                                &verdict,
                            )?);
                        }
                    }
                    if matched == 0
                        && let Some(peer) = self.custodian.session_peer(session)
                    {
                        let detail = "ack of offers this session does not carry".to_owned();
                        ctx.step.event(Event::PeerFault {
                            peer: peer.clone(),
                            fault: Fault::ForeignAck,
                            detail,
                        });
                    }
                }
            }
            Input::Acks { peer, acks } => {
                for ack in acks {
                    match self.custodian.ack_id(&mut ctx, settings, &self.registry, &peer, &ack)? {
                        Some(item) => filed.extend(item),
                        None => {
                            let detail = format!(
                                "ack for {}, which it is not the target of",
                                ack.obligation_id
                            );
                            ctx.step.event(Event::PeerFault {
                                peer: peer.clone(),
                                fault: Fault::ForeignAck,
                                detail,
                            });
                        }
                    }
                }
            }
            Input::Refused { session, refs, code, retry_after_ms } => {
                let ranges = refs.iter().map(|range| (range.first, range.last()));
                let count = self.custodian.refused(&ctx, session, ranges, code, retry_after_ms);
                if let Some(peer) = self.custodian.session_peer(session) {
                    let detail = format!("refused {count} offers: {code}");
                    ctx.step.event(Event::PeerFault {
                        peer: peer.clone(),
                        fault: Fault::RefusedUs,
                        detail,
                    });
                }
            }
            Input::Query { session, query_ref, ids } => {
                if let Some(peer) = self.custodian.session_peer(session) {
                    let (mut acks, mut unknown) = (Vec::new(), Vec::new());
                    for id in ids {
                        match self.receiver.status(&ctx, settings, peer, &id)? {
                            Some(ack) => acks.push(ack),
                            None => unknown.push(id),
                        }
                    }
                    ctx.step.output(Output::Answer { session, query_ref, acks, unknown });
                }
            }
            Input::Probe { session, nonce, id } => {
                if let Some(peer) = self.custodian.session_peer(session) {
                    if let Some(id) = id {
                        self.receiver.status(&ctx, settings, peer, &id)?;
                    }
                    ctx.step.output(Output::ProbeReply { session, nonce, at: now });
                }
            }
            Input::Decided { issuer, id, decision } => {
                filed.extend(self.receiver.decided(
                    &mut ctx,
                    settings,
                    &self.registry,
                    &issuer,
                    &id,
                    decision,
                )?);
            }
            Input::AckEscalation { ticket, id } => {
                let result = operator::ack_escalation(&mut ctx, &id)?;
                ctx.step.output(Output::Operated { ticket, result });
            }
            Input::Resolve { ticket, number, resolution } => {
                let result = self.resolve(now, store, step, number, resolution)?;
                step.output(Output::Operated { ticket, result });
            }
            Input::SinkDelivered { num } => operator::delivered(&mut ctx, num)?,
            Input::Tick => self.tick(now, store, step)?,
        }
        for item in filed {
            self.file(now, store, step, item);
        }
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        self.custodian.feed(&mut ctx, &self.settings)
    }

    fn tick(&mut self, now: Time, store: &dyn Read, step: &mut Step) -> Result<(), ReadError> {
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        for (num, due) in self.custodian.on_timeout(&mut ctx, &self.settings)? {
            self.custodian.escalate(&mut ctx, &self.settings, &self.registry, num, due)?;
        }
        if !self.custodian.recovered() {
            return Ok(()); // what is not loaded yet may still be needed
        }
        let forgotten = self.counters.prune(&mut ctx, &self.settings, &self.receiver)?;
        self.custodian.forget(&forgotten);
        Ok(())
    }

    fn file(&mut self, now: Time, store: &dyn Read, step: &mut Step, item: Reconcile) {
        let number = self.counters.next_reconcile();
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        ctx.put(Table::Reconcile, num_key(number), to_json(&item));
        ctx.step.event(Event::Reconcile(Box::new(item)));
    }

    /// Closes a step: adds the records that one commit shares, and numbers it.
    pub fn seal(&mut self, now: Time, store: &dyn Read, step: &mut Step) {
        self.counters.next_num = self.custodian.next_num;
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step };
        self.counters.seal(&mut ctx);
        let generation = self.staging.close();
        step.set_generation(generation);
    }

    /// The step of this generation, and all before it, are durable.
    pub fn committed(&mut self, generation: u64) {
        self.staging.committed(generation);
        self.counters.committed(generation);
    }

    /// When to come back with [`Input::Tick`] at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Time> {
        let housekeeping = self.counters.next_prune();
        self.custodian.next_timeout().into_iter().chain(housekeeping).min()
    }

    /// Breaks a rule from now on.
    #[cfg(feature = "mutants")]
    pub const fn mutate(&mut self, mutant: crate::mutant::Mutant) {
        self.staging.mutant = Some(mutant);
    }

    /// Writes that are handled and not durable yet.
    #[must_use]
    pub fn staged(&self) -> usize {
        self.staging.len()
    }

    /// Pending transfers.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.custodian.pending()
    }

    /// Offers that await an ack, on all sessions.
    #[must_use]
    pub const fn in_flight(&self) -> usize {
        self.custodian.in_flight()
    }

    /// A pending obligation by id, its retries, and whether its receiver deferred it.
    ///
    /// # Errors
    /// [`ReadError`] if the store cannot be read.
    pub fn find_pending(
        &mut self,
        now: Time,
        store: &dyn Read,
        id: &ObligationId,
    ) -> Result<Option<(Obligation, u32, bool)>, ReadError> {
        let ctx = Ctx { now, store, staging: &mut self.staging, step: &mut Step::default() };
        self.custodian.find_view(&ctx, id)
    }

    /// What issuing `draft` would come to now. Nothing of it is kept.
    ///
    /// # Errors
    /// [`ReadError`] ends the process; the inner one is the rule that refuses.
    //= AC-1
    pub fn check(
        &mut self,
        now: Time,
        store: &dyn Read,
        draft: Draft,
    ) -> Result<Result<Check, IssueError>, ReadError> {
        let mut ctx = Ctx { now, store, staging: &mut self.staging, step: &mut Step::default() };
        self.custodian.check(&mut ctx, &self.settings, &self.registry, draft)
    }

    /// The polarity rules.
    #[must_use]
    pub const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Pending transfers to one peer.
    #[must_use]
    pub fn pending_to(&self, peer: &AgentId) -> usize {
        self.custodian.pending_to(peer)
    }

    /// The latest time the store has seen; a clock must not start before it.
    #[must_use]
    pub const fn last_time(&self) -> Time {
        self.counters.last_time()
    }

    /// Whether the whole pending set is loaded.
    #[must_use]
    pub const fn recovered(&self) -> bool {
        self.custodian.recovered()
    }

    /// Best-effort obligations applied since start.
    #[must_use]
    pub const fn best_effort_applied(&self) -> u64 {
        self.counters.best_effort_applied
    }

    /// The newest session with a peer, if any.
    #[must_use]
    pub fn current_session(&self, peer: &AgentId) -> Option<SessionId> {
        self.custodian.current_session(peer)
    }
}
