//! The swarm: each option of a run is drawn from its seed.

use super::{HandlerModel, Options, Sabotage};
use crate::net::Mode;
use crate::scenario::{Arena, DiskModel, LinkOf, Policy};
use crate::tuning::Tuning;
use link::{Bursts, Chance, Delay, LinkModel, Micros, Rng};
use proto::backoff::Backoff;

impl Options {
    /// The swarm run of a seed: each option is on or off, small or large, by the seed.
    #[must_use]
    pub fn swarm(seed: u64, transfers: u32) -> Self {
        let mut rng = Rng::new(seed, 1);
        let r = &mut rng;
        let hard = |r: &mut Rng, chance: u32, low: u64, high: u64| {
            if r.chance(chance) { u32::try_from(r.range(low, high)).unwrap_or(0) } else { 0 }
        };
        let cap_ms = r.range(400, 6_000);
        let delay_ms_min = r.range(0, 40);
        let delay_ms_max = delay_ms_min + r.pick(&[0, 5, 60, 400]).unwrap_or(0);
        let commit_ms_min = r.range(0, 4);
        let deadline_s = r.range(cap_ms / 1000 + 2, 60);
        let nodes = usize::try_from(r.range(2, 5)).unwrap_or(2);
        // Options added later draw from a stream of their own, so that old seeds draw what they did.
        let mut more = Rng::new(seed, 11);
        let m = &mut more;
        Self {
            name: format!("swarm-{seed}"),
            world: Arena::Core,
            policy: Policy::Custody,
            seed,
            nodes,
            relay: None,
            star: false,
            transfers,
            decisions: 0,
            issue_batch_max: r.pick(&[1, 4, 32]).unwrap_or(1),
            warm_up_ms: 0,
            faults_ms: r.range(10_000, 90_000),
            heal_after_ms: 0,
            keys: r.pick(&[1, 3, 20]).unwrap_or(3),
            shared_keys: r.chance(300),
            benign_permille: r.pick(&[0, 200, 500]).unwrap_or(0),
            numbered_permille: hard(&mut Rng::new(seed, 7), 300, 50, 300),
            reissue_permille: hard(r, 500, 20, 300),
            mode: if r.chance(500) { Mode::Streams } else { Mode::Datagrams },
            link: LinkModel {
                delay: Delay::Uniform(Micros::from_ms(delay_ms_min), Micros::from_ms(delay_ms_max)),
                loss: Chance::permille(hard(r, 700, 1, 600)),
                duplicate: Chance::permille(hard(r, 600, 1, 400)),
                ..rough(seed)
            },
            links: links(seed, nodes, delay_ms_max),
            singly: r.chance(300),
            wire: r.chance(300),
            timeline: None,
            only: None,
            partitions: hard(r, 700, 1, 8),
            one_way_cuts: hard(r, 500, 1, 6),
            cut_ms_max: r.pick(&[300, 5_000, 40_000, 90_000]).unwrap_or(5_000),
            idle_ms: r.range(200, 8_000),
            handshake_ms: m.pick(&[1_000, 5_000]).unwrap_or(5_000),
            reconnect: Backoff {
                base_ms: m.range(20, 500),
                cap_ms: m.range(500, 4_000),
                jitter_permille: 200,
            },
            both_dial: m.chance(500),
            racing: r.chance(500),
            probe_backoff: false,
            queries: r.chance(400),
            noise: hard(r, 500, 1, 40),
            crashes: hard(r, 700, 1, 10),
            crash_points: hard(m, 500, 1, 12),
            restart_ms_max: r.pick(&[50, 3_000, 40_000]).unwrap_or(50),
            flaps: hard(m, 400, 1, 4),
            link_faults: hard(m, 300, 1, 4),
            rebinds: hard(m, 400, 1, 8),
            pauses: hard(m, 400, 1, 5),
            slow_disks: hard(m, 300, 1, 4),
            failed_syncs: hard(m, 300, 1, 4),
            full_disks: hard(m, 250, 1, 3),
            bit_rots: hard(m, 200, 1, 2),
            fault_ms_max: m.pick(&[200, 4_000, 30_000]).unwrap_or(200),
            commit_ms_min,
            commit_ms_max: commit_ms_min + r.pick(&[0, 3, 30]).unwrap_or(0),
            stall_permille: hard(r, 300, 1, 50),
            stall_ms: r.range(100, 3_000),
            commit_fail_permille: hard(r, 200, 1, 10),
            disks: disks(seed, nodes),
            // A node that takes one input to each slow commit has queues as long as its workload.
            inputs_per_commit: r.pick(&[1, 8, 512]).unwrap_or(8).max(transfers as usize / 200),
            commits_in_flight: r.pick(&[1, 2, 2, 3]).unwrap_or(2),
            skew_ms: r.pick(&[0, 0, 50, 500]).unwrap_or(0),
            clock_steps: hard(r, 300, 1, 6),
            drift_ppm_max: hard(m, 400, 50, 5_000),
            external: match r.below(4) {
                0 => vec!["oauth.token".to_owned()],
                1 => vec!["oauth.token".to_owned(), "phala.belief_update".to_owned()],
                2 => vec!["anumati.consent".to_owned()],
                _ => Vec::new(),
            },
            handler: HandlerModel {
                decline_permille: hard(r, 500, 50, 300),
                defer_permille: hard(r, 500, 50, 400),
                defer_forever_permille: hard(r, 400, 20, 200),
                unreached_permille: hard(r, 400, 50, 300),
                in_doubt_permille: hard(r, 300, 20, 150),
                call_ms_max: r.pick(&[1, 50, 1_500]).unwrap_or(1),
            },
            deadline_s,
            short_permille: hard(r, 400, 50, 500),
            twin_deadline_s: 0,
            backoff: Backoff {
                base_ms: r.range(50, cap_ms),
                cap_ms,
                jitter_permille: r.pick(&[0, 200, 900]).unwrap_or(0),
            },
            retries: r.chance(200).then(|| u32::try_from(r.range(0, 6)).unwrap_or(0)),
            surface: r.chance(300),
            coalesce: r.chance(700),
            window: r.pick(&[1, 3, 64, 1024]).unwrap_or(64),
            window_bytes: r.pick(&[1, 600, 1 << 20]).unwrap_or(1 << 20),
            pending_max: r.pick(&[10, 1 << 20]).unwrap_or(1 << 20),
            pending_per_peer_max: r.pick(&[6, 1 << 20, 1 << 20]).unwrap_or(1 << 20),
            deciding_max: r.pick(&[1, 4, 64]).unwrap_or(64),
            rate_per_second: r.pick(&[5, 1_000_000, 1_000_000]).unwrap_or(1_000_000),
            retention_ms: r.pick(&[900_000, 3_600_000]).unwrap_or(900_000),
            outcomes_max: r.pick(&[1_000_000, 1_000_000, 20]).unwrap_or(1_000_000),
            sabotage: Sabotage::Honest,
            tuning: Tuning::default(),
            #[cfg(feature = "mutants")]
            mutant: None,
        }
    }
}

/// What a link does beside losing, doubling and delaying packets, mostly nothing.
fn rough(seed: u64) -> LinkModel {
    let mut rng = Rng::new(seed, 12);
    let r = &mut rng;
    let bursts = Bursts {
        good: Micros::from_ms(r.range(500, 20_000)),
        bad: Micros::from_ms(r.range(50, 4_000)),
        loss_good: Chance::NEVER,
        loss_bad: Chance::permille(u32::try_from(r.range(300, 1_000)).unwrap_or(1_000)),
    };
    let mut some = |chance: u32, high: u64| {
        if r.chance(chance) { u32::try_from(r.range(1, high)).unwrap_or(0) } else { 0 }
    };
    LinkModel {
        reorder: Chance::permille(some(300, 300)),
        reorder_by: Micros::from_ms(some(1_000, 900).into()),
        corrupt: Chance::permille(some(300, 200)),
        bytes_per_second: u64::from(some(200, 40)) * 10_000,
        mtu: if some(150, 1) > 0 { 1_280 } else { 0 },
        bursts: (some(300, 1) > 0).then_some(bursts),
        ..LinkModel::default()
    }
}

/// Directions that differ from the others: sometimes one that is slow and loses much.
fn links(seed: u64, nodes: usize, delay_ms_max: u64) -> Vec<LinkOf> {
    let mut rng = Rng::new(seed, 13);
    let r = &mut rng;
    if !r.chance(250) {
        return Vec::new();
    }
    let from = usize::try_from(r.below(nodes as u64)).unwrap_or(0);
    let hop = usize::try_from(r.range(1, nodes as u64 - 1)).unwrap_or(1);
    let min = Micros::from_ms(r.range(1, 50));
    let max = Micros::from_ms(delay_ms_max.max(500));
    let link = LinkModel {
        delay: Delay::Pareto { min, shape: 1.5, max },
        loss: Chance::permille(u32::try_from(r.range(0, 700)).unwrap_or(0)),
        ..LinkModel::default()
    };
    vec![LinkOf { from, to: (from + hop) % nodes, link }]
}

/// Nodes with a slower disk than the others, which makes them slow to apply.
fn disks(seed: u64, nodes: usize) -> Vec<DiskModel> {
    let mut rng = Rng::new(seed, 14);
    let r = &mut rng;
    if !r.chance(250) {
        return Vec::new();
    }
    let node = usize::try_from(r.below(nodes as u64)).unwrap_or(0);
    let commit_ms_min = r.range(0, 100);
    let commit_ms_max = commit_ms_min + r.range(0, 400);
    let (stall_permille, stall_ms) = (if r.chance(500) { 20 } else { 0 }, r.range(100, 2_000));
    vec![DiskModel { node, commit_ms_min, commit_ms_max, stall_permille, stall_ms }]
}
