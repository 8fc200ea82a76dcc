//! What of the node has changed: which resources a client should read again.
//!
//! A notification is a hint without content, so those that wait become one: there is at most one of
//! each resource between a client that reads slowly and a node that works fast.

use super::resources::Topic;
use crate::node::NodeHandle;
use proto::event::Event;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::time::Instant;

/// Time between two rounds of notifications of one client: how many a busy node sends.
const ROUND: Duration = Duration::from_millis(100);
/// How often to look at what no event tells: issues, and what a person resolved.
const LOOK: Duration = Duration::from_millis(250);

/// Changes since it was made.
pub(super) struct Changes {
    node: NodeHandle,
    events: Receiver<Arc<Event>>,
    /// Answers that no event tells of, when last looked at: issues, decisions of a person.
    untold: (u64, u64),
    last: Option<Instant>,
}

impl Changes {
    pub(super) fn new(node: NodeHandle) -> Self {
        Self { events: node.events(), untold: node.untold(), node, last: None }
    }

    /// The resources that changed since the last time; some did. Cancelling it loses nothing but
    /// time.
    pub(super) async fn next(&mut self) -> BTreeSet<Topic> {
        if let Some(last) = self.last {
            tokio::time::sleep_until(last + ROUND).await;
        }
        let mut changed = BTreeSet::new();
        while changed.is_empty() {
            match tokio::time::timeout(LOOK, self.events.recv()).await {
                Ok(Ok(event)) => changed.extend(of(&event)),
                Ok(Err(RecvError::Lagged(_))) => changed.extend(Topic::ALL),
                Ok(Err(RecvError::Closed)) => std::future::pending().await, // the node is gone
                Err(_) => {}
            }
            self.look(&mut changed);
        }
        // What is queued is told by the same round.
        loop {
            match self.events.try_recv() {
                Ok(event) => changed.extend(of(&event)),
                Err(TryRecvError::Lagged(_)) => changed.extend(Topic::ALL),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        self.look(&mut changed);
        self.last = Some(Instant::now());
        changed
    }

    fn look(&mut self, changed: &mut BTreeSet<Topic>) {
        let now = self.node.untold();
        if now.0 != self.untold.0 {
            // An issue sets the principal's own state, also when it goes best-effort.
            changed.extend([Topic::Pending, Topic::Authorizations]);
        }
        if now.1 != self.untold.1 {
            changed.insert(Topic::Authorizations);
        }
        self.untold = now;
    }
}

/// The resources that an event is about.
fn of(event: &Event) -> &'static [Topic] {
    match event {
        Event::Terminal { .. } => &[Topic::Pending, Topic::Authorizations],
        Event::Escalated(_) => &Topic::ALL,
        Event::Acknowledged { .. } => &[Topic::Escalations],
        Event::Received { .. } => &[Topic::Authorizations],
        _ => &[],
    }
}
