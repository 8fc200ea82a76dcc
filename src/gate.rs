//! The gate of calls: before an agent behind this node is called, the authorizations that the call
//! needs are looked at, and they are looked at again whenever governed state changes. What is
//! withheld blocks new calls and ends those that run. Nothing that cannot be known is allowed.

use crate::acap::{Acap, Denial, Told};
use crate::config::{GatePrincipal, GateRule, NodeConfig};
use crate::store::Storage;
use proto::id::{AgentId, GovernedKey, Kind};
use proto::record::{Cell, CellValue, Role, cell_key};
use proto::store::{Read, ReadError, Table};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Pause between two looks at the state while it changes all the time.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What the governed state says of one scope.
#[derive(Clone, Debug)]
pub(crate) struct Authorization {
    pub(crate) why: Why,
    /// What decided it.
    pub(crate) cell: Option<Cell>,
}

/// How an authorization stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Granted,
    Withheld,
    /// Nobody ever spoke of it.
    Unknown,
    /// The key is that of something else, such as a weight.
    NotAnAuthorization,
}

impl Why {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Withheld => "withheld",
            Self::Unknown => "unknown",
            Self::NotAnAuthorization => "not_an_authorization",
        }
    }
}

/// How `scope` stands by any of `kinds`: one that withholds is enough to stop, one that grants is
/// needed to go.
pub(crate) fn authorization(
    store: &dyn Read,
    role: Role,
    agent: &AgentId,
    kinds: &[Kind],
    scope: &GovernedKey,
) -> Result<Authorization, ReadError> {
    let mut answer = Authorization { why: Why::Unknown, cell: None };
    for kind in kinds {
        let Some(bytes) = store.get(Table::Cell, &cell_key(role, agent, kind, scope))? else {
            continue;
        };
        let cell = Cell::decode(&bytes).map_err(|error| ReadError::damaged(Table::Cell, error))?;
        match cell.value {
            CellValue::Authorization { granted: false } => {
                return Ok(Authorization { why: Why::Withheld, cell: Some(cell) });
            }
            CellValue::Authorization { granted: true } => {
                answer = Authorization { why: Why::Granted, cell: Some(cell) };
            }
            CellValue::Weight(_) if answer.why == Why::Unknown => {
                answer.why = Why::NotAnAuthorization;
            }
            CellValue::Weight(_) => {}
        }
    }
    Ok(answer)
}

/// What a call wants to reach.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Wanted {
    /// This, such as `mcp:files/read`.
    Named(String),
    /// Whatever begins so, since the call does not say what.
    Any(String),
}

/// Why a call does not run.
#[derive(Clone, Debug)]
pub(crate) enum Refusal {
    /// An authorization is missing.
    Authority {
        scope: GovernedKey,
        /// Whose word is missing.
        principal: AgentId,
        why: &'static str,
        cell: Option<Box<Cell>>,
        /// Whether the state could not be read.
        unreadable: bool,
    },
    /// Consent is.
    Consent(Box<Denial>),
}

impl Refusal {
    /// For machines.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let (scope, principal, why, cell) = match self {
            Self::Authority { scope, principal, why, cell, .. } => (scope, principal, why, cell),
            Self::Consent(denial) => return serde_json::json!({ "acap": denial.to_json() }),
        };
        let mut json = serde_json::json!({
            "scope": scope.as_str(), "principal": principal.as_str(), "why": why,
        });
        if let (Some(cell), Some(json)) = (cell, json.as_object_mut()) {
            json.insert("obligation_id".into(), cell.obligation_id.to_string().into());
            json.insert("at".into(), cell.at.to_rfc3339().into());
        }
        json
    }

    /// Whether it may be well another time.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Authority { unreadable, .. } => *unreadable,
            Self::Consent(denial) => denial.is_temporary(),
        }
    }

    /// The scope that is withheld, if it is one.
    pub(crate) fn scope(&self) -> Option<&str> {
        match self {
            Self::Authority { scope, .. } => Some(scope.as_str()),
            Self::Consent(_) => None,
        }
    }

    /// What is missing of consent, if that is it.
    pub(crate) fn consent(&self) -> Option<serde_json::Value> {
        match self {
            Self::Authority { .. } => None,
            Self::Consent(denial) => Some(denial.to_json()),
        }
    }

    pub(crate) fn obligation(&self) -> Option<String> {
        match self {
            Self::Authority { cell, .. } => {
                cell.as_ref().map(|cell| cell.obligation_id.to_string())
            }
            Self::Consent(_) => None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, principal, why, cell) = match self {
            Self::Authority { scope, principal, why, cell, .. } => (scope, principal, why, cell),
            Self::Consent(denial) => return write!(f, "consent withheld: {denial}"),
        };
        write!(f, "authority withheld: {scope} of {principal} is {why}")?;
        match cell {
            Some(cell) => {
                write!(f, ", by obligation {} at {}", cell.obligation_id, cell.at.to_rfc3339())
            }
            None => Ok(()),
        }
    }
}

/// The gate of a node. Without rules it lets everything pass.
pub(crate) struct Gate {
    me: AgentId,
    rules: Vec<GateRule>,
    kinds: Vec<Kind>,
    /// On whose behalf peers act.
    principals: BTreeMap<AgentId, AgentId>,
    store: Arc<dyn Storage>,
    /// Consent that calls of peers need beside.
    acap: Option<Arc<Acap>>,
    /// Counts changes of governed state, told when they are durable.
    changes: watch::Receiver<u64>,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("rules", &self.rules.len()).finish_non_exhaustive()
    }
}

impl Gate {
    pub(crate) fn new(
        config: &NodeConfig,
        store: Arc<dyn Storage>,
        acap: Option<Arc<Acap>>,
        changes: watch::Receiver<u64>,
    ) -> Self {
        let of = |peer: &crate::config::PeerConfig| (peer.id.clone(), peer.principal.clone());
        Self {
            me: config.id.clone(),
            rules: config.gate.clone(),
            kinds: config.kinds.keys().cloned().collect(),
            principals: config.peers.iter().map(of).collect(),
            store,
            acap,
            changes,
        }
    }

    /// What calls of peers have to consent to, if there is anything.
    pub(crate) const fn acap(&self) -> Option<&Arc<Acap>> {
        self.acap.as_ref()
    }

    fn rules<'a>(&'a self, wanted: &'a Wanted) -> impl Iterator<Item = &'a GateRule> {
        self.rules.iter().filter(move |rule| {
            rule.calls.iter().any(|pattern| match wanted {
                Wanted::Named(name) => pattern.covers(name),
                Wanted::Any(beginning) => pattern.reaches(beginning),
            })
        })
    }

    /// Whether anything is asked of such calls.
    pub(crate) fn governs(&self, wanted: &Wanted) -> bool {
        self.acap.is_some() || self.rules(wanted).next().is_some()
    }

    /// Whether a call of `caller` may run, or go on; `None` is this node's own side. Consent that is withdrawn
    /// under custody ends a call; what else ends consent lets it finish, and blocks the next.
    pub(crate) fn check(&self, caller: Option<&AgentId>, wanted: &Wanted) -> Result<(), Refusal> {
        for rule in self.rules(wanted) {
            let (role, agent, principal) = match (&rule.principal, caller) {
                // What is done for itself, or lets itself do, an agent needs no word for.
                (GatePrincipal::Caller | GatePrincipal::Own, None) => continue,
                (GatePrincipal::Caller, Some(caller)) => {
                    let principal = self.principals.get(caller).unwrap_or(caller);
                    (Role::Receiver, principal, principal)
                }
                (GatePrincipal::Own, Some(caller)) => (Role::Principal, caller, &self.me),
                (GatePrincipal::Named(agent), _) => (Role::Receiver, agent, agent),
            };
            let kinds = if rule.kinds.is_empty() { &self.kinds } else { &rule.kinds };
            let refuse = |why, cell: Option<Cell>, unreadable| {
                let (scope, principal) = (rule.scope.clone(), principal.clone());
                let cell = cell.map(Box::new);
                Err(Refusal::Authority { scope, principal, why, cell, unreadable })
            };
            match authorization(&*self.store, role, agent, kinds, &rule.scope) {
                Ok(Authorization { why: Why::Granted, .. }) => {}
                Ok(Authorization { why: Why::Unknown, .. }) if rule.unknown_allowed => {}
                Ok(Authorization { why, cell }) => return refuse(why.as_str(), cell, false),
                Err(error) => {
                    tracing::error!(%error, "the gate cannot read the governed state");
                    return refuse("not readable", None, true);
                }
            }
        }
        match (&self.acap, caller) {
            (Some(acap), Some(caller)) => acap.check_withdrawn(caller).map_err(consent),
            _ => Ok(()),
        }
    }

    /// Lets a call in, or not. Where consent is asked for, that is on record when this returns.
    pub(crate) async fn admit(
        &self,
        caller: Option<&AgentId>,
        wanted: &Wanted,
        told: &Told,
    ) -> Result<(), Refusal> {
        let Err(refusal) = self.check(caller, wanted) else {
            return match (&self.acap, caller) {
                (Some(acap), Some(caller)) => {
                    acap.admit(caller, wanted, told).await.map_err(consent)
                }
                (Some(acap), None) => acap.admit_nobody(wanted).map_err(consent),
                (None, _) => Ok(()),
            };
        };
        // Refused for another reason, the attempt is on record all the same.
        if let (Some(acap), Some(caller)) = (&self.acap, caller) {
            let why = refusal.to_string();
            acap.denied(caller, wanted, told, &why).await.map_err(consent)?;
        }
        Err(refusal)
    }

    /// Whether a call that was let in may begin now, having waited.
    pub(crate) async fn still(
        &self,
        caller: Option<&AgentId>,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        match (&self.acap, caller) {
            (Some(acap), Some(caller)) => acap.still(caller, wanted).await.map_err(consent),
            _ => self.check(caller, wanted),
        }
    }

    /// Whether a call that runs may go on: nothing it needs is revoked, nor has its consent ended otherwise, where
    /// that stops it.
    pub(crate) async fn may_go_on(
        &self,
        caller: Option<&AgentId>,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        self.check(caller, wanted)?;
        match (&self.acap, caller) {
            (Some(acap), Some(caller)) => acap.stops(caller).await.map_err(consent),
            _ => Ok(()),
        }
    }

    /// Whether `caller` may be told of what it has subscribed to: what is told is nothing in flight.
    pub(crate) async fn may_hear(
        &self,
        caller: Option<&AgentId>,
        wanted: &Wanted,
    ) -> Result<(), Refusal> {
        self.check(caller, wanted)?;
        match (&self.acap, caller) {
            (Some(acap), Some(caller)) => acap.holds(caller).await.map_err(consent),
            _ => Ok(()),
        }
    }

    /// Tells of changes of governed state, and of the policy.
    pub(crate) fn changes(&self) -> Changes {
        let mut changes = self.changes.clone();
        changes.mark_changed(); // the first look is due
        Changes { changes, policy: self.acap.as_ref().map(|acap| acap.versions()), looked: None }
    }

    /// Returns when a call that was let in may not go on.
    pub(crate) async fn withdrawn(&self, caller: Option<&AgentId>, wanted: &Wanted) -> Refusal {
        if !self.governs(wanted) {
            std::future::pending::<()>().await;
        }
        let mut changes = self.changes();
        loop {
            changes.next().await;
            if let Err(refusal) = self.may_go_on(caller, wanted).await {
                return refusal;
            }
        }
    }
}

fn consent(denial: Denial) -> Refusal {
    Refusal::Consent(Box::new(denial))
}

/// Changes of governed state and of the policy, however many at a time.
#[derive(Debug)]
pub(crate) struct Changes {
    changes: watch::Receiver<u64>,
    policy: Option<watch::Receiver<u64>>,
    looked: Option<Instant>,
}

impl Changes {
    /// Returns after the next change; at once the first time.
    pub(crate) async fn next(&mut self) {
        let version = async {
            match &mut self.policy {
                Some(policy) => policy.changed().await,
                None => std::future::pending().await,
            }
        };
        let changed = tokio::select! {
            changed = self.changes.changed() => changed,
            changed = version => changed,
        };
        if changed.is_err() {
            std::future::pending().await // the node is gone
        }
        // Not seen before it is told: this future may be dropped while it waits.
        self.changes.mark_changed();
        if let Some(looked) = self.looked {
            tokio::time::sleep_until(looked + LOOK_AGAIN).await;
        }
        self.changes.mark_unchanged(); // before the look, which sees all there is by then
        if let Some(policy) = &mut self.policy {
            policy.mark_unchanged();
        }
        self.looked = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits among other things drops the wait when one of them comes.
    #[tokio::test(start_paused = true)]
    async fn a_change_is_seen_although_who_waited_for_it_looked_away() {
        let (governed, changes) = watch::channel(0u64);
        let mut changes = Changes { changes, policy: None, looked: None };
        changes.changes.mark_changed();
        changes.next().await;
        governed.send_modify(|count| *count += 1);
        let dropped = tokio::time::timeout(LOOK_AGAIN / 4, changes.next());
        assert!(dropped.await.is_err(), "it is too early to look again");
        let seen = tokio::time::timeout(Duration::from_secs(60), changes.next());
        seen.await.expect("the change is told");
        let quiet = tokio::time::timeout(Duration::from_secs(60), changes.next());
        assert!(quiet.await.is_err(), "and told once");
    }
}
