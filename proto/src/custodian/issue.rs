//! Issue: the door into custody (AC-1, AB-1).

use super::Custodian;
use crate::id::{AgentId, GovernedKey, Kind, ObligationId};
use crate::limits::OBLIGATION_LEN_MAX;
use crate::obligation::{Obligation, ObligationError};
use crate::payload::Payload;
use crate::polarity::{Change, Judgement, PolarityError, Registry};
use crate::profile::{Profile, ProfileError};
use crate::record::{Cell, CellValue, Outcome, Pending, Role, Terminal, cell_key};
use crate::safe_action::SafeAction;
use crate::settings::Settings;
use crate::step::Ctx;
use crate::store::{ReadError, Table};
use crate::time::Time;
use crate::transfer::Transfer;
use bytes::Bytes;
use std::sync::Arc;

/// An obligation to issue. What is left out comes from the kind's profile and the governed key.
#[derive(Clone, Debug, PartialEq)]
pub struct Draft {
    /// Its id, the key of idempotent issue and application.
    pub id: ObligationId,
    /// Its kind.
    pub kind: Kind,
    /// The agent that must honour it.
    pub target: AgentId,
    /// Its payload.
    pub payload: Payload,
    /// Its own deadline, in seconds from issue.
    pub deadline_seconds: Option<u64>,
    /// Its own retry budget.
    pub max_retries: Option<u32>,
    /// Its own sequence, above that of its governed key.
    pub sequence: Option<u64>,
}

/// An obligation that was taken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Issued {
    /// Its id.
    pub obligation_id: ObligationId,
    /// Whether it is under custody. `false`: inadmissible (AC-1), sent best-effort.
    pub custody: bool,
    /// Its absolute deadline, unix milliseconds.
    pub deadline_at_ms: u64,
    /// Its sequence, for set-semantic kinds.
    pub sequence: Option<u64>,
    /// Whether the same obligation had been issued before; nothing was done again.
    pub existing: bool,
}

/// Why an obligation was not taken. Nothing of it was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// The target is no configured peer.
    #[error("{target} is no peer of this node")]
    UnknownTarget {
        /// The target.
        target: AgentId,
    },
    /// An obligation to oneself.
    #[error("{target} is this node itself")]
    Oneself {
        /// The target.
        target: AgentId,
    },
    /// The configuration does not let this kind go to that peer.
    #[error("{kind} may not be issued to {target}: its may_receive does not list it")]
    NotAllowed {
        /// The kind.
        kind: Kind,
        /// The target.
        target: AgentId,
    },
    /// No profile for an admissible kind.
    #[error("no delivery profile for kind {kind}")]
    NoProfile {
        /// The kind.
        kind: Kind,
    },
    /// The payload cannot be judged.
    #[error(transparent)]
    Polarity(#[from] PolarityError),
    /// Deadline and retries do not fit together.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The id was issued before, with other content.
    #[error("obligation {id} was issued before with other content")]
    IdTaken {
        /// The id.
        id: ObligationId,
    },
    /// The sequence is not above that of the governed key.
    #[error("sequence {given} of {key} is not above {latest}, its latest")]
    Superseded {
        /// The governed key.
        key: String,
        /// Given.
        given: u64,
        /// Latest.
        latest: u64,
    },
    /// A member is out of range.
    #[error(transparent)]
    Obligation(#[from] ObligationError),
    /// The encoded obligation is over the limit.
    #[error("obligation of {len} bytes is over the limit of {max}")]
    TooLarge {
        /// Encoded bytes.
        len: usize,
        /// Limit.
        max: usize,
    },
    /// The pending set is full.
    #[error(
        "{pending} obligations are pending {scope}, the limit; try again in {retry_after_ms} ms"
    )]
    Full {
        /// Pending now.
        pending: usize,
        /// `in all` or `to` a peer.
        scope: String,
        /// When to come back, in milliseconds.
        retry_after_ms: u64,
    },
}

/// What issuing a draft would come to, without having done it.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Whether it would be under custody. `false`: inadmissible (AC-1), it would go best-effort.
    pub custody: bool,
    /// What its polarity rule says of it.
    pub judgement: Judgement,
    /// `safe(O)`, for an admissible one.
    pub safe_action: Option<SafeAction>,
    /// Seconds from issue to its deadline; none if it was issued before.
    pub deadline_seconds: Option<u64>,
    /// Offers after the first; none if it was issued before.
    pub max_retries: Option<u32>,
    /// Its sequence, for set-semantic kinds.
    pub sequence: Option<u64>,
    /// Whether the same obligation was issued before: issuing it again does nothing.
    pub existing: bool,
}

/// A draft that every rule lets through.
struct Admission {
    obligation: Obligation,
    judged: Judgement,
    /// None: best-effort.
    profile: Option<Profile>,
    /// The transfer that set the governed key before, if any.
    superseded: Option<u64>,
    existing: bool,
    /// Encoded, behind the room of its record if it is under custody.
    bytes: Vec<u8>,
    /// It was issued before, and this was said.
    before: Option<Issued>,
}

impl Custodian {
    /// Whether an obligation may be taken, and as what. Writes nothing.
    //= AC-1
    fn admit(
        &self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        draft: Draft,
    ) -> Result<Result<Admission, IssueError>, ReadError> {
        if draft.target == settings.me {
            return Ok(Err(IssueError::Oneself { target: draft.target }));
        }
        let Some(rules) = settings.peers.get(&draft.target) else {
            return Ok(Err(IssueError::UnknownTarget { target: draft.target }));
        };
        if !rules.may_receive.contains(&draft.kind) {
            return Ok(Err(IssueError::NotAllowed { kind: draft.kind, target: draft.target }));
        }
        let Draft { id, kind, target, payload, deadline_seconds, max_retries, sequence } = draft;
        let mut obligation = Obligation {
            id,
            kind,
            target,
            payload,
            deadline_seconds: deadline_seconds.unwrap_or(1),
            max_retries: max_retries.unwrap_or(0),
            created_at: ctx.now,
            sequence,
        };
        let judged = match registry.judge(&obligation) {
            Ok(judged) => judged,
            Err(error) => return Ok(Err(error.into())),
        };
        if let Some(result) = self.issued_before(ctx, &obligation)? {
            return Ok(result.map(|issued| {
                let (bytes, superseded) = (Vec::new(), None);
                let (profile, existing, before) = (None, true, Some(issued));
                Admission { obligation, judged, profile, superseded, existing, bytes, before }
            }));
        }
        let admissible = judged.admissible();
        #[cfg(feature = "mutants")]
        let admissible = admissible || ctx.is(crate::mutant::Mutant::TakesInadmissible);
        let profile =
            match profile_of(settings, &obligation, admissible, deadline_seconds, max_retries) {
                Ok(profile) => profile,
                Err(error) => return Ok(Err(error)),
            };
        if let Some(profile) = &profile {
            obligation.deadline_seconds = profile.deadline_ms().div_ceil(1000);
            obligation.max_retries = profile.max_retries();
        } else if deadline_seconds.is_none() {
            obligation.deadline_seconds = 60; // best effort: how long it is worth applying
        }
        if let Err(error) = obligation.check() {
            return Ok(Err(error.into()));
        }
        let mut superseded = None;
        let mut existing = false;
        if judged.change.is_set() {
            let cell = match ctx.cell(&principal_cell(&obligation, &judged.key))? {
                Some(bytes) => {
                    Some(Cell::decode(&bytes).map_err(|e| ReadError::damaged(Table::Cell, e))?)
                }
                None => None,
            };
            let latest = cell.as_ref().and_then(|cell| cell.sequence).unwrap_or(0);
            if let (None, Change::Authorization { granted }) = (&profile, judged.change)
                && let Some(before) = self.decided(&obligation, cell.as_ref(), granted)
            {
                match before {
                    Ok(sequence) => (existing, obligation.sequence) = (true, sequence),
                    Err(error) => return Ok(Err(error)),
                }
            }
            match obligation.sequence {
                _ if existing => {}
                Some(given) if given <= latest => {
                    let key = judged.key.clone().into();
                    return Ok(Err(IssueError::Superseded { key, given, latest }));
                }
                Some(_) => {}
                None => obligation.sequence = Some(latest.saturating_add(1)),
            }
            superseded = cell.map(|cell| cell.num);
        }
        let room = if profile.is_some() { Pending::ROOM } else { 0 };
        let bytes = obligation.encode_after(room);
        let len = bytes.len() - room;
        if len > OBLIGATION_LEN_MAX {
            return Ok(Err(IssueError::TooLarge { len, max: OBLIGATION_LEN_MAX }));
        }
        let full = profile.and_then(|_| self.full(settings, &obligation.target));
        #[cfg(feature = "mutants")]
        let full = full.filter(|_| !ctx.is(crate::mutant::Mutant::IgnoresFull));
        if let Some(error) = full {
            return Ok(Err(error));
        }
        let before = None;
        Ok(Ok(Admission { obligation, judged, profile, superseded, existing, bytes, before }))
    }

    /// What [`Self::issue`] would say of a draft now.
    pub(crate) fn check(
        &self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        draft: Draft,
    ) -> Result<Result<Check, IssueError>, ReadError> {
        let admitted = self.admit(ctx, settings, registry, draft)?;
        Ok(admitted.map(|Admission { obligation, judged, profile, existing, before, .. }| {
            let fresh = before.is_none();
            let rationale = format!("not confirmed applied by {}", obligation.target);
            Check {
                custody: before.as_ref().map_or(profile.is_some(), |issued| issued.custody),
                safe_action: judged.safe_action(&obligation, &rationale),
                deadline_seconds: fresh.then_some(obligation.deadline_seconds),
                max_retries: fresh.then_some(obligation.max_retries),
                sequence: before.map_or(obligation.sequence, |issued| issued.sequence),
                judgement: judged,
                existing,
            }
        }))
    }

    /// Takes one obligation. The outer error is the store's and ends the process.
    //= AC-1 AB-1
    pub(crate) fn issue(
        &mut self,
        ctx: &mut Ctx<'_>,
        settings: &Settings,
        registry: &Registry,
        draft: Draft,
    ) -> Result<Result<Issued, IssueError>, ReadError> {
        let admission = match self.admit(ctx, settings, registry, draft)? {
            Ok(admission) => admission,
            Err(error) => return Ok(Err(error)),
        };
        let Admission { obligation, judged, profile, superseded, existing, bytes, before } =
            admission;
        if let Some(issued) = before {
            return Ok(Ok(issued));
        }
        let num = if profile.is_some() { self.next_num } else { 0 };
        if let Change::Authorization { granted } = judged.change
            && !existing
        {
            // The principal's own decision: it holds here at once, in the same commit, whatever
            // the network does.
            let cell = Cell {
                value: CellValue::Authorization { granted },
                sequence: obligation.sequence,
                obligation_id: obligation.id.clone(),
                num,
                at: ctx.now,
            };
            ctx.put(Table::Cell, principal_cell(&obligation, &judged.key), cell.encode());
        }
        let issued = Issued {
            obligation_id: obligation.id.clone(),
            custody: profile.is_some(),
            deadline_at_ms: obligation.deadline_at().as_ms(),
            sequence: obligation.sequence,
            existing,
        };
        let Some(profile) = profile else {
            if judged.change.is_set() && !existing {
                self.remember_decision(&obligation, settings.best_effort_window);
            }
            #[cfg(feature = "mutants")]
            if ctx.is(crate::mutant::Mutant::EscalatesBestEffort) {
                ctx.escalate_best_effort(&obligation, &judged);
            }
            ctx.step.best_effort.entry(obligation.target).or_default().push(bytes.into());
            return Ok(Ok(issued));
        };
        self.next_num += 1;
        let (key, record, bytes) =
            Pending::around(num, profile.backoff(), profile.on_decline, bytes);
        ctx.put(Table::Pending, key, record);
        let peer = self.peer_of(&obligation.target);
        let schedule = self.schedule_of(profile.backoff(), profile.on_decline);
        let deadline_at = obligation.deadline_at();
        let delay = profile.backoff().delay_ms(0, settings.seed ^ num);
        let queues = self.is_full(settings, peer, bytes.len());
        let transfer = Transfer {
            deadline_at,
            retry_at: if queues { Time::NEVER } else { ctx.now.after_ms(delay) },
            warn_at: ctx.now.after_ms(deadline_at.ms_since(ctx.now) / 2),
            sent: None,
            retries: 0,
            repeat: false,
            queued: false,
            max_retries: profile.max_retries(),
            peer,
            schedule,
            deferred: false,
            refused: None,
        };
        self.insert(num, &obligation.id, transfer);
        if settings.coalesce
            && let Some(older) = superseded.filter(|older| *older > 0)
            && self.is_away(peer)
        {
            self.coalesce(ctx, older, &obligation.id)?;
        }
        self.offer(ctx, settings, num, Some((Arc::new(obligation), bytes)))?;
        Ok(Ok(issued))
    }

    /// The result for an id that was issued before, if it was.
    fn issued_before(
        &self,
        ctx: &Ctx<'_>,
        obligation: &Obligation,
    ) -> Result<Option<Result<Issued, IssueError>>, ReadError> {
        #[cfg(feature = "mutants")]
        if ctx.is(crate::mutant::Mutant::IssuesTwice) {
            return Ok(None);
        }
        let taken = || Err(IssueError::IdTaken { id: obligation.id.clone() });
        let same = |deadline_at: Time, sequence| {
            Ok(Issued {
                obligation_id: obligation.id.clone(),
                custody: true,
                deadline_at_ms: deadline_at.as_ms(),
                sequence,
                existing: true,
            })
        };
        // A draft without a sequence got one at its first issue.
        let given = |sequence| obligation.sequence.is_none() || obligation.sequence == sequence;
        if let Some((_, pending)) = self.find(ctx, &obligation.id)? {
            let equal = pending.digest() == obligation.digest() && given(pending.sequence);
            let result =
                if equal { same(pending.deadline_at(), pending.sequence) } else { taken() };
            return Ok(Some(result));
        }
        if self.ended.rules_out(super::id_hash(&obligation.id)) {
            return Ok(None);
        }
        let Some(bytes) =
            ctx.get(Table::Outcome, &Bytes::copy_from_slice(obligation.id.as_str().as_bytes()))?
        else {
            return Ok(None);
        };
        let outcome =
            Outcome::decode(&bytes).map_err(|error| ReadError::damaged(Table::Outcome, error))?;
        let equal = outcome.digest == obligation.digest() && given(outcome.sequence);
        Ok(Some(if equal { same(outcome.deadline_at, outcome.sequence) } else { taken() }))
    }

    //= BD-1
    fn full(&self, settings: &Settings, target: &AgentId) -> Option<IssueError> {
        let retry_after_ms = settings.refuse_retry_after_ms;
        if self.pending() >= settings.pending_max {
            let scope = "in all".to_owned();
            return Some(IssueError::Full { pending: self.pending(), scope, retry_after_ms });
        }
        let pending = self.pending_to(target);
        (pending >= settings.pending_per_peer_max).then(|| IssueError::Full {
            pending,
            scope: format!("to {target}"),
            retry_after_ms,
        })
    }

    /// Ends an older transfer of the same governed key, whose peer is away: when it came back it
    /// would decline it as superseded anyway.
    fn coalesce(
        &mut self,
        ctx: &mut Ctx<'_>,
        older: u64,
        by: &ObligationId,
    ) -> Result<(), ReadError> {
        if !self.transfers.contains_key(&older) {
            return Ok(());
        }
        let obligation = self.load(ctx, older)?;
        let reason = crate::ack::Reason::new(format!("superseded by {by}"));
        self.end(ctx, older, &obligation, Terminal::Declined, Some(reason));
        Ok(())
    }
}

fn principal_cell(obligation: &Obligation, key: &GovernedKey) -> Bytes {
    cell_key(Role::Principal, &obligation.target, &obligation.kind, key)
}

fn profile_of(
    settings: &Settings,
    obligation: &Obligation,
    admissible: bool,
    deadline_seconds: Option<u64>,
    max_retries: Option<u32>,
) -> Result<Option<Profile>, IssueError> {
    if !admissible {
        return Ok(None);
    }
    let profile = settings
        .profiles
        .get(&obligation.kind)
        .ok_or_else(|| IssueError::NoProfile { kind: obligation.kind.clone() })?;
    // The wire counts whole seconds, and the budget must span what the wire says.
    let whole = profile.deadline_ms() % 1000 == 0;
    let seconds =
        deadline_seconds.or_else(|| (!whole).then(|| profile.deadline_ms().div_ceil(1000)));
    let deadline_ms = seconds.map(|seconds| seconds.saturating_mul(1000));
    Ok(Some(profile.with(deadline_ms, max_retries)?))
}
