//! What no honest peer would send.

use super::World;
use ::link::Rng;
use bytes::Bytes;
use proto::ack::{AckRun, AckStatus, CustodyAck, RefRange};
use proto::custody::Input;
use proto::frame::RefuseCode;
use proto::id::ObligationId;
use proto::time::Time;

impl World {
    /// Something no honest peer would send, or that came out of nowhere.
    pub(super) fn noise(&mut self, n: usize, fault: usize) {
        let mut rng = Rng::new(self.options.seed, 70_000 + fault as u64);
        let sessions = self.known_to(n);
        let Some((session, peer)) = rng.pick(&sessions) else { return };
        let Some(from) = self.nodes.get(peer).map(|node| node.id.clone()) else { return };
        let first = 1_000_000 + rng.below(1_000);
        let refs = vec![RefRange { first, count: 1 + rng.below(1 << 20) }];
        let unknown = ObligationId::new("nobody-issued-this").ok();
        match rng.below(7) {
            0 => {
                let (status, acked_at, reason) =
                    (AckStatus::Applied, Time::from_ms(self.now), None);
                self.input(
                    n,
                    Input::AckRuns {
                        session,
                        runs: vec![AckRun { status, acked_at, reason, refs }],
                    },
                );
            }
            1 => self.input(
                n,
                Input::Refused { session, refs, code: RefuseCode::Unauthorized, retry_after_ms: 5 },
            ),
            2 => self.inject_offers(session, first, vec![Bytes::from_static(b"\xff\x00garbage")]),
            3 => {
                // An ack from an agent that is not the target.
                let targets: Vec<usize> =
                    (0..self.nodes.len()).filter(|other| *other != peer && *other != n).collect();
                let Some(target) = rng.pick(&targets) else { return };
                for obligation_id in self.checker.pending_of(n, target, 3) {
                    let ack = CustodyAck {
                        obligation_id,
                        target: from.clone(),
                        status: AckStatus::Applied,
                        acked_at: Time::from_ms(self.now),
                        reason: None,
                    };
                    self.input(n, Input::Acks { peer: from.clone(), acks: vec![ack] });
                }
            }
            4 => self.input(
                n,
                Input::Query { session, query_ref: 1, ids: unknown.into_iter().collect() },
            ),
            5 => self.input(n, Input::Probe { session, nonce: first, id: unknown }),
            _ => {
                let acks = unknown.into_iter().map(|obligation_id| CustodyAck {
                    obligation_id,
                    target: from.clone(),
                    status: AckStatus::Applied,
                    acked_at: Time::from_ms(self.now),
                    reason: None,
                });
                self.input(n, Input::Acks { peer: from.clone(), acks: acks.collect() });
            }
        }
    }
}
