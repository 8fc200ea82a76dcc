//! Obligations inside of A2A messages: one comes in a message's metadata, under the URI of the
//! extension, and becomes a task whose artifact is the custody ack.
//!
//! `applied` is COMPLETED, `declined` is REJECTED, and until then the task is WORKING; a webhook of
//! the task is the way of later acks. The task is beside custody and not part of it: the custodian
//! counts the ack, whose words are those of our ledger, and an offer is repeated harmlessly, by the
//! custodian and, after a restart, by us.

use super::backend::fail;
use super::fault::{Fault, Kind};
use super::record::{Carried, Edit, Record, Work};
use super::tasks::{Live, Tasks};
use super::types::{Artifact, Message, Part, TaskState, whole_numbers};
use crate::binding::http::{HttpPeer, HttpPeers, OfferReply};
use crate::clock::Clock;
use proto::ack::{AckStatus, CustodyAck};
use proto::frame::RefuseCode;
use proto::id::AgentId;
use proto::obligation::Obligation;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

pub(crate) use crate::binding::a2a::URI;

/// Id of the artifact that is the ack.
const ACK_ARTIFACT: &str = "custody-ack";
/// Id of an obligation's webhook when the peer gives none.
pub(crate) const WEBHOOK: &str = "custody-ack";
/// How long a call waits for the core before the task goes on without it.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// How often the core is asked again for what it has not settled, at first and at most.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// The obligation in a message, if there is one.
pub(crate) fn find(message: &Message, active: bool) -> Result<Option<(Value, Obligation)>, Fault> {
    let Some(value) = message.metadata.as_ref().and_then(|metadata| metadata.get(URI)) else {
        return Ok(None);
    };
    let field = format!("message.metadata[{URI}]");
    if !active && !message.extensions.iter().any(|uri| uri == URI) {
        // To go on without it would answer success for something that was never looked at.
        let what = "there is an obligation, but the extension is not activated: name it in A2A-Extensions or in message.extensions";
        return Err(Fault::params(field, what));
    }
    if !message.task_id.is_empty() {
        return Err(Fault::params("message.taskId", "an obligation makes a task of its own"));
    }
    let value = whole_numbers(value.clone());
    let obligation = serde_json::from_value(value.clone())
        .map_err(|error| Fault::params(field, error.to_string()))?;
    Ok(Some((value, obligation)))
}

/// Takes obligations on behalf of peers.
#[derive(Debug)]
pub(crate) struct Obligations {
    tasks: Tasks,
    peers: Arc<HttpPeers>,
    clock: Arc<dyn Clock>,
    /// Those that are being taken, so that two copies at once make one task.
    taking: Mutex<BTreeSet<(String, String)>>,
}

/// One that is being taken.
struct Taking<'a>(&'a Obligations, (String, String));

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.taking.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

/// What came of one.
#[derive(Debug)]
enum Settled {
    Ack(CustodyAck),
    NotYet,
}

impl Obligations {
    pub(crate) fn new(tasks: Tasks, peers: Arc<HttpPeers>, clock: Arc<dyn Clock>) -> Self {
        Self { tasks, peers, clock, taking: Mutex::default() }
    }

    /// Gives an obligation of `peer` to the core, and makes its task; or finds the one it has, and says
    /// that it was not begun by this.
    /// `begin` adds to the commit that makes it.
    pub(crate) async fn take(
        &self,
        scope: &str,
        peer: &AgentId,
        mut message: Message,
        (value, obligation): (Value, Obligation),
        begin: impl FnOnce(&mut Edit),
    ) -> Result<(Record, bool), Fault> {
        let digest = digest(&obligation);
        let key = (scope.to_owned(), obligation.id.as_str().to_owned());
        if !self.taking.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone()) {
            return Err(Fault::overloaded("a copy of this obligation is being taken"));
        }
        let _taking = Taking(self, key);
        if let Some(known) = self.tasks.of_obligation(scope, obligation.id.as_str())? {
            let same = known.carried.as_ref().is_some_and(|carried| carried.digest == digest);
            // One that failed acknowledged nothing, and custody may go on: that is no answer.
            if same && known.state() != TaskState::Failed {
                return Ok((known, false));
            }
            // An id whose task ended may be issued anew: whether it was applied the core knows.
            if !known.state().is_terminal() {
                let what = "this id is in use for an obligation of other content";
                return Err(Fault::params(format!("message.metadata[{URI}].obligation_id"), what));
            }
        }
        let Some(http) = self.peers.of(peer).await else {
            return Err(Fault::new(
                Kind::PermissionDenied,
                "not a peer that may have obligations here",
            ));
        };
        let carried = Carried { peer: peer.clone(), obligation: value, digest };
        let mut draft = self.tasks.draft(scope, &message.context_id).await?;
        let edit = &mut draft.edit;
        edit.record.carried = Some(carried);
        edit.record.work = Work::Obligation;
        message.task_id.clone_from(&edit.record.task.id);
        message.context_id.clone_from(&edit.record.task.context_id);
        edit.history([message]);
        begin(edit);
        // Whatever can be refused is refused before: after an ack there is no refusal.
        self.tasks.check(&draft)?;
        let answer = http.begin(&obligation).await.ok_or_else(stopping)?;
        let settled = match tokio::time::timeout(FIRST_WAIT, answer).await {
            Ok(Ok(OfferReply::Ack(ack))) => Settled::Ack(ack),
            Ok(Ok(OfferReply::Refused { code, retry_after_ms, text })) => {
                return Err(refused(code, retry_after_ms, text.as_str()));
            }
            Ok(Ok(OfferReply::Later)) | Err(_) => Settled::NotYet,
            Ok(Err(_)) => return Err(stopping()),
        };
        let record = self
            .tasks
            .make(draft, |edit| {
                edit.reserved();
                match settled {
                    Settled::Ack(ack) => {
                        let state = state(&ack);
                        edit.artifact_untold(artifact(&ack));
                        edit.enter(state, None);
                    }
                    Settled::NotYet => edit.enter(TaskState::Working, None),
                }
            })
            .await?;
        Ok((record, true))
    }

    /// Asks the core until the obligation of a task is settled.
    pub(crate) async fn settle(&self, live: &Arc<Live>) -> Result<(), Fault> {
        let record = self.tasks.record(live)?;
        let Some(carried) = &record.carried else { return Ok(()) };
        let (Some(http), Ok(obligation)) = (
            self.peers.of(&carried.peer).await,
            serde_json::from_value::<Obligation>(carried.obligation.clone()),
        ) else {
            return self.give_up(live, "its issuer is no peer of this node any more").await;
        };
        let (mut wait, longest) = ASK_AGAIN;
        loop {
            match self.ask(http, &obligation, wait).await {
                Some(OfferReply::Ack(ack)) if ack.status.is_final() => {
                    let edit = |edit: &mut Edit| {
                        edit.reserved();
                        edit.artifact(artifact(&ack), false, true);
                        let state = state(&ack);
                        edit.status(state, None);
                        Ok(())
                    };
                    return self.tasks.change(live, edit).await;
                }
                Some(OfferReply::Ack(ack)) => self.defer(live, &ack).await?,
                Some(OfferReply::Refused { code, text, .. })
                    if !matches!(code, RefuseCode::Overloaded | RefuseCode::Stopping) =>
                {
                    return self.give_up(live, text.as_str()).await;
                }
                _ => {}
            }
            wait = (wait * 2).min(longest);
        }
    }

    /// Offers once more, and hears what the core says within `wait`.
    async fn ask(
        &self,
        http: &HttpPeer,
        obligation: &Obligation,
        wait: Duration,
    ) -> Option<OfferReply> {
        let mut later = http.later_acks(); // before the offer, so that no ack falls between
        let mut answer: Option<oneshot::Receiver<OfferReply>> = http.begin(obligation).await;
        let mut said = None;
        // Past its deadline the core settles it at the next offer.
        let due = obligation.deadline_at().after_ms(1_000).ms_since(self.clock.now());
        let wait = if due > 0 { wait.min(Duration::from_millis(due)) } else { wait };
        let over = tokio::time::sleep(wait);
        tokio::pin!(over);
        loop {
            let first = async {
                match answer.as_mut() {
                    Some(answer) => answer.await.ok(),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                reply = first => {
                    answer = None;
                    match reply {
                        Some(OfferReply::Ack(ack)) if ack.status.is_final() => {
                            return Some(OfferReply::Ack(ack));
                        }
                        Some(OfferReply::Ack(ack)) => {
                            said = Some(OfferReply::Ack(ack));
                        }
                        other => said = other,
                    }
                }
                ack = later.recv() => {
                    if let Ok(ack) = ack && ack.obligation_id == obligation.id {
                        return Some(OfferReply::Ack(ack));
                    }
                }
                () = &mut over => return said,
            }
        }
    }

    /// Tells that it is deferred, once for each reason.
    async fn defer(&self, live: &Arc<Live>, ack: &CustodyAck) -> Result<(), Fault> {
        let known = self.tasks.record(live)?.task.artifacts.into_iter().flatten().any(|artifact| {
            let data = artifact.parts.first().and_then(|part| part.data.as_ref());
            data.is_some_and(|data| {
                data.get("status").and_then(Value::as_str) == Some(ack.status.as_str())
                    && data.get("reason").and_then(Value::as_str)
                        == ack.reason.as_ref().map(proto::ack::Reason::as_str)
            })
        });
        if known {
            return Ok(());
        }
        let edit = |edit: &mut Edit| {
            edit.reserved();
            edit.artifact(artifact(ack), false, false);
            Ok(())
        };
        self.tasks.change(live, edit).await
    }

    /// Ends the task. Custody goes on: nothing was acknowledged.
    async fn give_up(&self, live: &Arc<Live>, why: &str) -> Result<(), Fault> {
        let edit = |edit: &mut Edit| {
            fail(edit, why);
            Ok(())
        };
        self.tasks.change(live, edit).await
    }
}

/// What cannot be canceled: an obligation that was accepted stands, whatever becomes of the call.
pub(crate) fn stands(record: &Record) -> Fault {
    let what = "an obligation that was taken cannot be canceled by its task";
    Fault::new(Kind::TaskNotCancelable, what).with("taskId", &record.task.id)
}

fn digest(obligation: &Obligation) -> String {
    let hash = Sha256::digest(obligation.encode());
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

const fn state(ack: &CustodyAck) -> TaskState {
    match ack.status {
        AckStatus::Applied => TaskState::Completed,
        AckStatus::Declined => TaskState::Rejected,
        AckStatus::Deferred => TaskState::Working,
    }
}

/// An ack, in the papers' JSON.
fn artifact(ack: &CustodyAck) -> Artifact {
    let part = Part {
        data: Some(serde_json::to_value(ack).unwrap_or_default()),
        media_type: "application/json".into(),
        ..Part::default()
    };
    Artifact {
        artifact_id: ACK_ARTIFACT.into(),
        name: ACK_ARTIFACT.into(),
        description: "What became of the obligation (CustodyAck).".into(),
        parts: vec![part],
        extensions: vec![URI.into()],
        ..Artifact::default()
    }
}

fn stopping() -> Fault {
    /// When a node that restarts may be back, in milliseconds.
    const BACK_MS: u64 = 1_000;
    Fault::new(Kind::Unavailable, "the node is stopping").after(BACK_MS)
}

/// A refusal of the core, before anything was written: no task, and nothing discharged.
fn refused(code: RefuseCode, retry_after_ms: u64, text: &str) -> Fault {
    let params = || Fault::params(format!("message.metadata[{URI}]"), text);
    match code {
        RefuseCode::Overloaded => Fault::new(Kind::Overloaded, text).after(retry_after_ms),
        RefuseCode::Stopping => Fault::new(Kind::Unavailable, text).after(retry_after_ms),
        RefuseCode::Unauthorized => Fault::new(Kind::PermissionDenied, text),
        RefuseCode::Unsupported => Fault::new(Kind::UnsupportedOperation, text),
        RefuseCode::Malformed | RefuseCode::WrongTarget => params(),
    }
    .with("refusal", code.as_str())
}
