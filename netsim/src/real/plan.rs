//! What goes wrong in a run of the real world, and when: the timeline, as single actions.

use crate::options::{HandlerModel, KINDS, Options};
use crate::scenario::{Arena, CrashPoint, Fault, FaultKind};
use anyhow::bail;
use link::{Bursts, Chance, Delay, LinkModel, Micros, Rng};
use proto::backoff::Backoff;

/// Commits after its start at which a disk fails, at most.
const COMMIT_MAX: u64 = 40;

/// One action from outside on the nodes and the link between them.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// SIGKILL.
    Kill(usize),
    /// Start what was killed.
    Start(usize),
    /// Kill and start with a store that fails on plan; while `full_until_ms`, again and again.
    Arm { node: usize, plan: String, restart_ms: u64, full_until_ms: u64 },
    /// SIGSTOP.
    Stop(usize),
    /// SIGCONT.
    Continue(usize),
    /// One cut of a direction begins.
    Cut(usize, usize),
    /// It ends.
    Mend(usize, usize),
    /// A direction becomes another link.
    Link(usize, usize, Box<LinkModel>),
    /// What a node dials from changes its address.
    Rebind(usize),
    /// Packets that mean nothing reach a node.
    Noise(usize),
}

/// The actions of a scenario, in order of time.
pub(super) fn actions(options: &Options) -> anyhow::Result<Vec<(u64, Action)>> {
    let rng = &mut Rng::new(options.seed, 61);
    let drawn;
    let timeline = match &options.timeline {
        Some(timeline) => timeline,
        None => {
            drawn = from_counts(options);
            &drawn
        }
    };
    let mut actions = Vec::new();
    for Fault { at_ms, for_ms, what } in timeline {
        let (at, until) = (*at_ms, at_ms + for_ms);
        let mut act = |at, action| actions.push((at, action));
        // A node whose commit fails ends; how long it is away is how long the fault lasts.
        let arm = |act: &mut dyn FnMut(u64, Action), rng: &mut Rng, node, how| {
            let plan = format!("{how}@{}", rng.range(1, COMMIT_MAX));
            act(at, Action::Arm { node, plan, restart_ms: *for_ms, full_until_ms: 0 });
        };
        match what.clone() {
            FaultKind::Cut { from, to } => {
                act(at, Action::Cut(from, to));
                act(until, Action::Mend(from, to));
            }
            FaultKind::Partition { a, b } => both(&mut act, a, b, at, until),
            FaultKind::Flap { a, b, down_ms, up_ms } => {
                let mut begins = at;
                while begins < until {
                    both(&mut act, a, b, begins, (begins + down_ms).min(until));
                    begins += (down_ms + up_ms).max(1);
                }
            }
            FaultKind::Link { from, to, back, link } => {
                for (from, to) in [(from, to), (to, from)].into_iter().take(1 + usize::from(back)) {
                    act(at, Action::Link(from, to, Box::new(link.clone())));
                    if *for_ms > 0 {
                        act(until, Action::Link(from, to, Box::new(link_of(options, from, to))));
                    }
                }
            }
            FaultKind::Crash { node } => {
                act(at, Action::Kill(node));
                act(until, Action::Start(node));
            }
            FaultKind::Pause { node } => {
                act(at, Action::Stop(node));
                act(until, Action::Continue(node));
            }
            FaultKind::FailSync { node, kept } => {
                arm(&mut act, rng, node, if kept { "fail-kept" } else { "fail" });
            }
            FaultKind::CrashAt { node, point: CrashPoint::BeforeCommit } => {
                arm(&mut act, rng, node, "abort-before");
            }
            FaultKind::CrashAt { node, point: CrashPoint::AfterCommit } => {
                arm(&mut act, rng, node, "abort-after");
            }
            FaultKind::DiskFull { node } => {
                let plan = format!("full@{}", rng.range(1, COMMIT_MAX));
                act(at, Action::Arm { node, plan, restart_ms: 50, full_until_ms: until });
            }
            FaultKind::Rebind { node } => act(at, Action::Rebind(node)),
            FaultKind::Noise { node } => act(at, Action::Noise(node)),
            other => bail!(
                "the real world has no way to make this happen, and leaves nothing out: {other:?}"
            ),
        }
    }
    actions.sort_by_key(|(at, _)| *at);
    Ok(actions)
}

fn both(act: &mut impl FnMut(u64, Action), a: usize, b: usize, at: u64, until: u64) {
    for (from, to) in [(a, b), (b, a)] {
        act(at, Action::Cut(from, to));
        act(until, Action::Mend(from, to));
    }
}

/// What a direction does to packets when nothing special is the matter.
pub(super) fn link_of(options: &Options, from: usize, to: usize) -> LinkModel {
    let special = options.links.iter().find(|way| way.from == from && way.to == to);
    special.map_or(&options.link, |way| &way.link).clone()
}

fn from_counts(options: &Options) -> Vec<Fault> {
    let rng = &mut Rng::new(options.seed, 62);
    let mut faults = Vec::new();
    for _ in 0..options.partitions {
        faults.push((options.cut_ms_max, FaultKind::Partition { a: 0, b: 1 }));
    }
    for _ in 0..options.one_way_cuts {
        let from = node(rng);
        faults.push((options.cut_ms_max, FaultKind::Cut { from, to: 1 - from }));
    }
    for _ in 0..options.crashes {
        faults.push((options.restart_ms_max, FaultKind::Crash { node: node(rng) }));
    }
    for _ in 0..options.noise {
        faults.push((0, FaultKind::Noise { node: node(rng) }));
    }
    let mut fault = |(most, what)| Fault {
        at_ms: rng.below(options.faults_ms.max(1)),
        for_ms: rng.range(0, most),
        what,
    };
    faults.drain(..).map(&mut fault).collect()
}

fn node(rng: &mut Rng) -> usize {
    usize::try_from(rng.below(2)).unwrap_or(0)
}

/// The scenario of a seed: what goes wrong, and how badly, is drawn from it. It takes about
/// fifteen seconds.
#[must_use]
pub fn swarm(seed: u64, transfers: u32) -> Options {
    let r = &mut Rng::new(seed, 63);
    let deadline_s = r.range(2, 10);
    let cap_ms = r.range(200, 1_500);
    let faults_ms = r.range(4_000, 8_000);
    let quiet = Options::quiet(seed);
    Options {
        name: format!("real-{seed}"),
        world: Arena::Real,
        transfers,
        issue_batch_max: r.pick(&[1, 4, 32]).unwrap_or(1),
        faults_ms,
        keys: r.pick(&[1, 3, 20]).unwrap_or(3),
        shared_keys: r.chance(300),
        benign_permille: r.pick(&[0, 200, 500]).unwrap_or(0),
        numbered_permille: r.pick(&[0, 0, 200]).unwrap_or(0),
        reissue_permille: r.pick(&[0, 100, 300]).unwrap_or(0),
        link: link(r),
        racing: r.chance(700),
        idle_ms: r.range(1_000, 8_000),
        skew_ms: r.pick(&[0, 50, 500]).unwrap_or(0),
        deadline_s,
        short_permille: r.pick(&[0, 200, 500]).unwrap_or(0),
        backoff: Backoff {
            base_ms: r.range(50, cap_ms.min(300)),
            cap_ms,
            jitter_permille: r.pick(&[0, 200, 900]).unwrap_or(0),
        },
        external: match r.below(5) {
            0 => vec![KINDS[0].to_owned(), KINDS[1].to_owned()],
            1 => vec![KINDS[2].to_owned()],
            _ => Vec::new(),
        },
        handler: HandlerModel {
            decline_permille: r.pick(&[0, 200]).unwrap_or(0),
            defer_permille: r.pick(&[0, 300]).unwrap_or(0),
            defer_forever_permille: r.pick(&[0, 0, 100]).unwrap_or(0),
            unreached_permille: r.pick(&[0, 200]).unwrap_or(0),
            in_doubt_permille: r.pick(&[0, 0, 100]).unwrap_or(0),
            call_ms_max: r.pick(&[1, 100, 1_200]).unwrap_or(1),
        },
        surface: r.chance(300),
        coalesce: r.chance(700),
        window: r.pick(&[1, 3, 64, 1024]).unwrap_or(64),
        timeline: Some(timeline(r, faults_ms)),
        ..quiet
    }
}

fn link(r: &mut Rng) -> LinkModel {
    let least = r.range(0, 20);
    let most = least + r.pick(&[0, 5, 40, 150]).unwrap_or(0);
    let hard = |r: &mut Rng, often: u32, most: u64| {
        let permille = if r.chance(often) { r.range(1, most) } else { 0 };
        Chance::permille(u32::try_from(permille).unwrap_or(0))
    };
    LinkModel {
        delay: Delay::Uniform(Micros::from_ms(least), Micros::from_ms(most)),
        loss: hard(r, 600, 350),
        bursts: r.chance(300).then(|| Bursts {
            good: Micros::from_ms(r.range(200, 3_000)),
            bad: Micros::from_ms(r.range(20, 500)),
            loss_good: Chance::NEVER,
            loss_bad: Chance::permille(900),
        }),
        duplicate: hard(r, 500, 300),
        reorder: hard(r, 400, 300),
        reorder_by: Micros::from_ms(r.range(5, 200)),
        corrupt: hard(r, 400, 50),
        mtu: r.pick(&[0, 0, 1_200, 1_300]).unwrap_or(0),
        bytes_per_second: r.pick(&[0, 0, 0, 200_000]).unwrap_or(0),
        queue: Micros(0),
    }
}

fn timeline(r: &mut Rng, faults_ms: u64) -> Vec<Fault> {
    let mut faults = Vec::new();
    for _ in 0..r.range(2, 12) {
        let at_ms = r.below(faults_ms);
        let (node, for_ms) = (node(r), r.pick(&[0, 20, 100, 600, 2_500]).unwrap_or(0));
        let what = match r.below(12) {
            0 => FaultKind::Partition { a: 0, b: 1 },
            1 => FaultKind::Cut { from: node, to: 1 - node },
            2 => FaultKind::Flap { a: 0, b: 1, down_ms: r.range(10, 400), up_ms: r.range(10, 400) },
            3 => FaultKind::Link { from: node, to: 1 - node, back: r.chance(500), link: link(r) },
            4 => FaultKind::Pause { node },
            5 => FaultKind::FailSync { node, kept: r.chance(500) },
            6 => {
                let after = r.chance(500);
                let point = if after { CrashPoint::AfterCommit } else { CrashPoint::BeforeCommit };
                FaultKind::CrashAt { node, point }
            }
            7 => FaultKind::DiskFull { node },
            8 => FaultKind::Rebind { node },
            9 => FaultKind::Noise { node },
            _ => FaultKind::Crash { node },
        };
        // A node is killed again while it recovers.
        if matches!(what, FaultKind::Crash { .. }) && r.chance(500) {
            let again = at_ms + for_ms + r.range(1, 200);
            faults.push(Fault { at_ms: again, for_ms: r.range(0, 100), what: what.clone() });
        }
        faults.push(Fault { at_ms, for_ms, what });
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_becomes_actions_in_order_of_time() {
        let fault = |at_ms, for_ms, what| Fault { at_ms, for_ms, what };
        let options = Options {
            timeline: Some(vec![
                fault(50, 30, FaultKind::Flap { a: 0, b: 1, down_ms: 10, up_ms: 10 }),
                fault(10, 5, FaultKind::Crash { node: 1 }),
                fault(20, 100, FaultKind::DiskFull { node: 0 }),
            ]),
            ..Options::quiet(3)
        };
        let actions = actions(&options).unwrap();
        assert!(actions.is_sorted_by_key(|(at, _)| *at));
        assert_eq!(actions[0], (10, Action::Kill(1)));
        assert_eq!(actions[1], (15, Action::Start(1)));
        assert!(matches!(&actions[2].1, Action::Arm { full_until_ms: 120, .. }));
        let cuts = |wanted: Action| actions.iter().filter(|(_, action)| *action == wanted).count();
        assert_eq!((cuts(Action::Cut(0, 1)), cuts(Action::Mend(1, 0))), (2, 2));
    }

    #[test]
    fn what_cannot_be_made_to_happen_is_refused() {
        let step = FaultKind::ClockStep { node: 0, ahead_ms: 5 };
        let timeline = Some(vec![Fault { at_ms: 1, for_ms: 0, what: step }]);
        let error = actions(&Options { timeline, ..Options::quiet(1) }).unwrap_err();
        assert!(error.to_string().contains("ClockStep"), "{error}");
    }

    #[test]
    fn a_swarm_scenario_repeats_by_seed_and_is_a_scenario_file() {
        for seed in 0..200 {
            let options = swarm(seed, 50);
            assert_eq!(options, swarm(seed, 50));
            assert!(actions(&options).is_ok());
            let again = Options::from_toml(&options.to_toml().unwrap()).unwrap();
            assert_eq!(again, options);
        }
    }
}
