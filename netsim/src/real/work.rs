//! What is issued in a run of the real world, and when, by its seed.

use crate::check::Spec;
use crate::options::{KINDS, Options};
use abhyasa::demo::stage::{ALICE, BOB};
use anyhow::Context as _;
use link::Rng;
use proto::id::{GovernedKey, Kind, ObligationId};
use proto::polarity::Change;
use proto::weight::Weight;
use serde_json::{Value, json};

/// The identities of nodes 0 and 1.
pub(super) const NAMES: [&str; 2] = [ALICE, BOB];
/// Every correction of a weight, in billionths: small enough to stay inside the bounds.
const STEP_NANOS: i64 = 1_000_000;

/// Bytes of a note in each payload, one size for a run.
const NOTES: [u64; 4] = [0, 0, 200, 16_000];

/// One obligation of a run.
#[derive(Clone, Debug)]
pub(super) struct Work {
    pub(super) spec: Spec,
    pub(super) kind: Kind,
    /// As the API takes it.
    pub(super) body: Value,
    /// Whether it brings its own sequence, and may so come too late.
    pub(super) numbered: bool,
}

/// One issue call.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) at_ms: u64,
    pub(super) issuer: usize,
    /// Which obligations.
    pub(super) works: Vec<usize>,
    /// Whether the client asks again until it is answered.
    pub(super) persists: bool,
    /// Whether, answered, it asks once more for the same.
    pub(super) again: bool,
    /// Its own randomness.
    pub(super) seed: u64,
}

/// All obligations of a run, and the calls that issue them.
pub(super) fn draw(options: &Options) -> anyhow::Result<(Vec<Work>, Vec<Call>)> {
    let rng = &mut Rng::new(options.seed, 60);
    let (mut works, mut calls) = (Vec::new(), Vec::new());
    // Large payloads make the stores flush and compact while they are killed.
    let note = usize::try_from(rng.pick(&NOTES).unwrap_or(0))?;
    let mut shared = [0u32; 2];
    let mut left = u64::from(options.transfers);
    while left > 0 {
        let count = rng.range(1, options.issue_batch_max.max(1)).min(left);
        left -= count;
        let issuer = usize::try_from(rng.below(2)).unwrap_or(0);
        let first = works.len();
        for _ in 0..count {
            works.push(one(options, rng, works.len(), issuer, &mut shared, note)?);
        }
        let wanted = |work: &usize| {
            let number = u32::try_from(*work).unwrap_or(u32::MAX);
            options.only.as_ref().is_none_or(|only| only.contains(&number))
        };
        let call = Call {
            at_ms: rng.below(options.faults_ms.max(1)),
            issuer,
            works: (first..works.len()).filter(wanted).collect(),
            persists: rng.chance(850),
            again: rng.chance(options.reissue_permille),
            seed: rng.draw(),
        };
        if !call.works.is_empty() {
            calls.push(call);
        }
    }
    calls.sort_by_key(|call| call.at_ms);
    Ok((works, calls))
}

fn one(
    options: &Options,
    rng: &mut Rng,
    number: usize,
    issuer: usize,
    shared: &mut [u32; 2],
    note: usize,
) -> anyhow::Result<Work> {
    // Each issuer has its own space of ids: both may use the same.
    let id = match shared.get_mut(issuer) {
        Some(count) if rng.chance(100) => {
            *count += 1;
            format!("shared-{count}")
        }
        _ => format!("{issuer}-{number}"),
    };
    let target = 1 - issuer;
    let benign = rng.chance(options.benign_permille);
    let kind = usize::try_from(rng.below(3)).unwrap_or(0);
    let key = rng.below(options.keys.max(1));
    let name = if options.shared_keys { "key" } else { KINDS.get(kind).copied().unwrap_or("key") };
    // A correction has a weight of its own, so that what became of it is read off the weight.
    // Reinforcing updates may be lost or doubled, so they have others.
    let key = match (kind, benign) {
        (1, false) => format!("weight-{number}"),
        (1, true) => format!("raised-{key}"),
        _ => format!("{name}-{key}"),
    };
    let delta = if benign { STEP_NANOS } else { -STEP_NANOS };
    let (payload, change) = match kind {
        0 => {
            let decision = if benign { "grant" } else { "revoke" };
            (json!({ "decision": decision, "scope": key }), None)
        }
        1 => (json!({ "weight_delta": delta as f64 / 1e9, "weight_key": key }), Some(delta)),
        _ => {
            let action = if benign { "issue" } else { "revoke" };
            (json!({ "action": action, "token_id": key }), None)
        }
    };
    let change = match change {
        Some(nanos) => Change::Weight { delta: Weight::from_nanos(nanos) },
        None => Change::Authorization { granted: benign },
    };
    let kind = KINDS.get(kind).copied().context("three kinds")?;
    let target_name = NAMES.get(target).copied().context("two nodes")?;
    let mut body = json!({
        "obligation_id": id, "kind": kind, "target": target_name, "payload": payload,
    });
    let numbered = rng.chance(options.numbered_permille);
    let short = rng.chance(options.short_permille);
    let seconds = rng.range(1, options.deadline_s);
    if let Some(members) = body.as_object_mut() {
        if numbered {
            members.insert("sequence".to_owned(), json!((number + 1) * 10));
        }
        if let Some(payload) = members.get_mut("payload").and_then(Value::as_object_mut)
            && note > 0
        {
            payload.insert("note".to_owned(), json!("x".repeat(note)));
        }
        if short {
            members.insert("deadline_seconds".to_owned(), json!(seconds));
        }
    }
    let spec = Spec {
        issuer,
        id: ObligationId::new(&id)?,
        target,
        key: GovernedKey::new(&key)?,
        change,
        admissible: !benign,
        external: options.external.iter().any(|external| external == kind),
    };
    Ok(Work { spec, kind: Kind::new(kind)?, body, numbered })
}
