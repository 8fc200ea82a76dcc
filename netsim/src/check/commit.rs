//! Rules of what becomes durable, one commit at a time.

use super::batch::Batch;
use super::protect::unprotected;
use super::{Checker, Class};
use proto::ack::AckStatus;
use proto::polarity::Change;
use proto::record::{ReconcileKind, Role, Terminal, split_issued_key};
use proto::store::Write;
use proto::time::Time;

impl Checker {
    /// One commit of `node` became durable at world time `at`; its inputs were handled when the
    /// node's clock said `clock`.
    pub fn committed(&mut self, at: u64, node: usize, clock: Time, writes: &[Write]) {
        for write in writes {
            self.mix(at, node, &write.key);
            self.mix(at, node, write.value.as_deref().unwrap_or_default());
        }
        let batch = match Batch::read(writes) {
            Ok(batch) => batch,
            Err(why) => return self.breach("WR-1", Class::Safety, at, node, why),
        };
        let mut broken = Vec::new();
        self.custodian_rules(at, node, &batch, &mut broken);
        self.receiver_rules(node, clock, &batch, &mut broken);
        self.cell_rules(node, clock, &batch, &mut broken);
        for (rule, class, detail) in broken {
            self.breach(rule, class, at, node, detail);
        }
        self.observe(at, node, &batch);
    }

    fn custodian_rules(
        &mut self,
        at: u64,
        node: usize,
        batch: &Batch,
        broken: &mut Vec<(&'static str, Class, String)>,
    ) {
        let Some(view) = self.nodes.get_mut(node) else { return };
        let mut breach = |rule, detail| broken.push((rule, Class::Safety, detail));
        view.commits += 1;
        // Before its id is issued anew.
        for num in &batch.escalations_gone {
            let unseen = view
                .inbox
                .remove(num)
                .filter(|id| view.entries.get(id.as_str()).is_some_and(|entry| !entry.witnessed));
            if let Some(id) = unseen {
                breach("AB-4", format!("the escalation of {id} went, and nobody has seen it"));
            }
        }
        for id in &batch.outcomes_gone {
            if let Some(entry) = view.entries.get_mut(id.as_str()) {
                entry.forgotten = true;
                view.unfiled.remove(id);
            }
        }
        for (num, obligation) in &batch.pending {
            let id = &obligation.id;
            let Some(entry) = view.entries.get_mut(id.as_str()) else {
                breach("AB-1", format!("{id} is pending, and nobody asked for it"));
                continue;
            };
            if !entry.spec.admissible {
                breach("AC-1", format!("{id} is inadmissible and under custody"));
            }
            if std::mem::take(&mut entry.forgotten) {
                entry.forget();
            }
            if entry.terminal.is_some() {
                breach("TS-1", format!("{id} is pending after it ended"));
            }
            if let Some(other) = entry.pending.filter(|other| other != num) {
                breach("AB-1", format!("{id} has two transfers, {other} and {num}"));
            }
            if entry.deadline_at.is_some_and(|deadline| deadline != obligation.deadline_at()) {
                breach("AB-2", format!("the deadline of {id} moved"));
            }
            if matches!(entry.spec.change, Change::Authorization { .. })
                && !batch.withheld.contains_key(id)
            {
                breach("AB-1", format!("{id} was issued and not withheld here in the same commit"));
            }
            // Sessions told of while the issue was on its way to the disk may have repeated it.
            let since = at.saturating_sub(self.bounds.late_ms_max);
            let met = |met: &&(u64, usize)| met.0 >= since && met.1 == entry.spec.target;
            entry.repeats =
                u32::try_from(view.sessions.iter().filter(met).count()).unwrap_or(u32::MAX);
            view.pending_to.entry(entry.spec.target).or_default().insert(*num);
            entry.pending = Some(*num);
            entry.issued_at = at;
            entry.deadline_at = Some(obligation.deadline_at());
            entry.max_retries = obligation.max_retries;
            view.nums.insert(*num, id.clone());
        }
        for (num, attempt) in &batch.attempts {
            let Some(entry) = view.nums.get(num).and_then(|id| view.entries.get_mut(id.as_str()))
            else {
                breach("AB-2", format!("an attempt of transfer {num}, which does not exist"));
                continue;
            };
            if attempt.retries > entry.max_retries || attempt.retries < entry.retries {
                let (was, max) = (entry.retries, entry.max_retries);
                breach(
                    "AB-2",
                    format!("{} retries after {was}, of {max}: {}", attempt.retries, entry.spec.id),
                );
            }
            entry.retries = attempt.retries;
            entry.flies_unseen |= attempt.deferred;
            entry.attempted_in = view.commits;
            entry.lands(&mut view.flights);
        }
        for num in &batch.unpending {
            match view.nums.remove(num) {
                Some(id) if batch.outcomes.contains_key(&id) => {}
                Some(id) => breach(
                    "deliver-or-report",
                    format!("{id} is no longer pending, without an outcome"),
                ),
                None => breach("TS-1", format!("transfer {num} ended, which is not pending")),
            }
        }
        let up_since = view.up_since;
        let mut ended = Vec::with_capacity(batch.outcomes.len());
        for (id, outcome) in &batch.outcomes {
            let Some(entry) = view.entries.get_mut(id.as_str()) else {
                breach("TS-1", format!("an outcome of {id}, which nobody asked for"));
                continue;
            };
            if let Some(terminal) = entry.terminal {
                if terminal != outcome.terminal {
                    breach(
                        "TS-1",
                        format!("{id} was {terminal:?} and is {:?} now", outcome.terminal),
                    );
                }
                continue;
            }
            let num = entry.pending.take();
            if num.is_none() {
                breach("TS-1", format!("{id} ended without having been pending"));
            }
            entry.lands(&mut view.flights);
            if let (Some(nums), Some(num)) = (view.pending_to.get_mut(&entry.spec.target), num) {
                nums.remove(&num);
            }
            entry.terminal = Some(outcome.terminal);
            entry.ended_at = at;
            ended.push((id, outcome));
            let coalesced =
                outcome.reason.as_ref().is_some_and(|r| r.as_str().starts_with("superseded by"));
            match outcome.terminal {
                Terminal::Applied if entry.ledger != Some(AckStatus::Applied) => {
                    breach(
                        "AB-3",
                        format!(
                            "{id} is applied here, its receiver's ledger says {:?}",
                            entry.ledger
                        ),
                    );
                }
                Terminal::Declined if entry.applied_now() && !coalesced => {
                    breach(
                        "DC-1",
                        format!(
                            "{id} is declined here and applied at its receiver: {:?}",
                            outcome.reason
                        ),
                    );
                }
                Terminal::Escalated => {
                    if !batch.escalations.contains_key(id) {
                        breach(
                            "AB-4",
                            format!("{id} escalated without an escalation in the same commit"),
                        );
                    }
                    if outcome.at < outcome.deadline_at && outcome.retries < entry.max_retries {
                        breach(
                            "AB-4",
                            format!("{id} escalated before its deadline and with retries left"),
                        );
                    }
                }
                _ => {}
            }
            let late = outcome.at.ms_since(outcome.deadline_at);
            let up_for = at.saturating_sub(up_since);
            if late.min(up_for) > self.bounds.late_ms_max {
                broken.push((
                    "AB-4",
                    Class::Liveness,
                    format!("{id} ended {late} ms after its deadline, the node up for {up_for} ms"),
                ));
                return;
            }
        }
        for (id, outcome) in ended {
            if let Some((rule, detail)) = unprotected(view, batch, id, outcome) {
                breach(rule, detail);
            }
        }
        for id in &batch.escalations_twice {
            breach("AB-4", format!("two escalations of {id} in one commit"));
        }
        for (id, (num, item)) in &batch.escalations {
            let Some(entry) = view.entries.get_mut(id.as_str()) else {
                breach("AB-4", format!("an escalation of {id}, which nobody asked for"));
                continue;
            };
            if !entry.spec.admissible {
                breach("AC-1", format!("best effort escalated: {id}"));
            }
            view.inbox.insert(*num, id.clone());
            let noted = item.acknowledged_at_ms.is_some() || item.delivered_at_ms.is_some();
            if (noted || item.outlived) && entry.escalations == 1 {
                entry.witnessed |= item.acknowledged_at_ms.is_some();
                continue;
            }
            entry.escalations += 1;
            if entry.escalations > 1 {
                breach("AB-4", format!("{} escalations of {id}", entry.escalations));
            }
            if entry.terminal != Some(Terminal::Escalated) {
                breach("AB-4", format!("an escalation of {id}, which ended {:?}", entry.terminal));
            }
            let safe_here = batch
                .cells
                .iter()
                .any(|(_, role, _, cell)| *role == Role::Principal && cell.obligation_id == *id);
            if item.safe_action_applied != safe_here {
                breach(
                    "AB-4",
                    format!(
                        "escalation of {id} says safe(O) applied: {}, seen: {safe_here}",
                        item.safe_action_applied
                    ),
                );
            }
        }
        if !batch.pending.is_empty() {
            let pending = view.nums.len();
            if pending > self.bounds.pending_max {
                let max = self.bounds.pending_max;
                breach("BD-1", format!("{pending} obligations are pending, {max} allowed"));
            }
            let max = self.bounds.pending_per_peer_max;
            for (peer, nums) in view.pending_to.iter().filter(|(_, nums)| nums.len() > max) {
                let count = nums.len();
                breach("BD-1", format!("{count} obligations are pending to {peer}, {max} allowed"));
            }
        }
        for item in &batch.reconcile {
            let Some(entry) = view.entries.get_mut(item.obligation_id.as_str()) else { continue };
            if item.kind == ReconcileKind::LateApplied && item.resolution.is_none() {
                entry.late_items += 1;
                view.unfiled.remove(&item.obligation_id);
                if entry.late_items > 1 || entry.terminal != Some(Terminal::Escalated) {
                    let (id, times) = (&item.obligation_id, entry.late_items);
                    breach(
                        "TS-1",
                        format!(
                            "late applied of {id} filed {times} times, ended {:?}",
                            entry.terminal
                        ),
                    );
                }
            }
        }
    }

    fn receiver_rules(
        &mut self,
        node: usize,
        clock: Time,
        batch: &Batch,
        broken: &mut Vec<(&'static str, Class, String)>,
    ) {
        let skew_ms = self.bounds.skew_ms;
        let mut breach = |rule, detail| broken.push((rule, Class::Safety, detail));
        for ((issuer, id), ledger) in &batch.ledger {
            let entry = self
                .by_name
                .get(issuer)
                .and_then(|n| self.nodes.get_mut(*n)?.entries.get_mut(id.as_str()));
            let Some(entry) = entry.filter(|entry| entry.spec.target == node) else {
                breach(
                    "LE-1",
                    format!("a ledger entry for {id} of {issuer}, which is not for this node"),
                );
                continue;
            };
            // An id issued anew after its issuer and its receiver forgot it is another obligation.
            let anew = std::mem::take(&mut entry.ledger_gone) && entry.lives > 1;
            if let Some(old) = entry.ledger.filter(|_| !anew) {
                breach(
                    "AB-3",
                    format!("{id} was {old} in the ledger, and is {} again", ledger.status),
                );
            }
            entry.ledger = Some(ledger.status);
            entry.ledger_until = Some(ledger.deadline_at.after_ms(skew_ms));
            let effect = batch.effects.contains_key(&(issuer.clone(), id.clone()));
            match (ledger.status, entry.spec.external) {
                (AckStatus::Applied, false) if !effect => {
                    breach(
                        "LE-1",
                        format!(
                            "{id} is applied in the ledger without its effect in the same commit"
                        ),
                    );
                }
                (AckStatus::Applied, true) if entry.calls == 0 => {
                    breach(
                        "AB-3",
                        format!(
                            "{id} is applied in the ledger, its external effect never happened"
                        ),
                    );
                }
                (AckStatus::Declined, true) if entry.calls > entry.calls_before => {
                    breach(
                        "DC-1",
                        format!("{id} is declined in the ledger, its external effect happened"),
                    );
                }
                _ => {}
            }
            if entry.late_effect
                && ledger.status == AckStatus::Applied
                && !batch.files(ReconcileKind::AppliedPastDeadline, id)
                && !batch.files(ReconcileKind::InDoubt, id)
            {
                breach(
                    "DL-1",
                    format!("{id} had its external effect after the deadline, and nobody is told"),
                );
            }
        }
        for (issuer, id) in &batch.ledger_gone {
            let entry = self
                .by_name
                .get(issuer)
                .and_then(|n| self.nodes.get_mut(*n)?.entries.get_mut(id.as_str()));
            let early = entry.is_none_or(|entry| {
                entry.ledger_gone = true;
                // Of an id issued anew it may be what was deferred before that goes.
                let once = entry.lives <= 1;
                let until = entry.ledger_until.or(entry.deadline_at.filter(|_| once));
                until.map_or(once, |until| clock < until)
            });
            if early {
                breach(
                    "LE-1",
                    format!("the ledger forgot {id} of {issuer} before its deadline and the skew"),
                );
            }
        }
        let Some(view) = self.nodes.get_mut(node) else { return };
        view.intents.extend(batch.intents.iter().map(|key| (key.clone(), ())));
        for key in &batch.intents_gone {
            view.intents.remove(key);
            let settled =
                split_issued_key(key).is_some_and(|named| batch.ledger.contains_key(&named));
            if !settled
                && !batch
                    .ledger_gone
                    .iter()
                    .any(|named| Some(named) == split_issued_key(key).as_ref())
            {
                // An intent may also be forgotten, once its obligation has long expired.
                let entry = split_issued_key(key).and_then(|(issuer, id)| {
                    self.nodes.get(*self.by_name.get(&issuer)?)?.entries.get(id.as_str())
                });
                let expired =
                    entry.and_then(|entry| entry.deadline_at).is_some_and(|at| clock >= at);
                if !expired {
                    breach(
                        "LE-1",
                        "an intent went without a ledger entry before its deadline".to_owned(),
                    );
                }
                return;
            }
        }
    }
}
