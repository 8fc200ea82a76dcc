//! The node-world run of a seed.

use crate::options::Options;
use crate::scenario::{Arena, Fault, FaultKind};
use crate::tuning::Tuning;
use crate::world::timeline;
use link::{Bursts, Chance, Delay, LinkModel, Micros, Rng};

/// The swarm run of a seed with real nodes: what the core world draws, and what only a real network
/// and a real node have. The faults are on its timeline, each by itself.
#[must_use]
pub fn swarm(seed: u64, transfers: u32) -> Options {
    let mut rng = Rng::new(seed, 21);
    let r = &mut rng;
    let mut options = Options::swarm(seed, transfers);
    options.world = Arena::Node;
    options.nodes = options.nodes.min(4);
    options.external.clear();
    options.tuning = Tuning::swarm(seed);
    options.racing = r.chance(800);
    // Beyond this a handshake of four packets hardly ever comes about.
    let loss_max = Chance::permille(400);
    options.link.loss = options.link.loss.min(loss_max);
    if r.chance(300) {
        let (good, bad) = (r.range(500, 10_000), r.range(50, 3_000));
        options.link.bursts = Some(Bursts {
            good: Micros::from_ms(good),
            bad: Micros::from_ms(bad),
            loss_good: Chance::NEVER,
            loss_bad: Chance::permille(900),
        });
    }
    if r.chance(300) {
        options.link.corrupt = Chance::permille(u32::try_from(r.range(1, 100)).unwrap_or(1));
    }
    if r.chance(300) {
        options.link.reorder = Chance::permille(u32::try_from(r.range(1, 200)).unwrap_or(1));
        options.link.reorder_by = Micros::from_ms(r.range(1, 300));
    }
    if r.chance(200) {
        options.link.bytes_per_second = r.range(20_000, 1_000_000);
    }
    if r.chance(200) {
        options.link.mtu = usize::try_from(r.range(1_200, 1_500)).unwrap_or(1_200);
    }
    options.bit_rots = 0; // the core world's alone
    let mut timeline = timeline::draw(&options);
    extra(&options, r, &mut timeline);
    timeline.sort_by_key(|fault| fault.at_ms);
    options.timeline = Some(timeline);
    options
}

/// Faults that the core world does not draw.
fn extra(options: &Options, r: &mut Rng, timeline: &mut Vec<Fault>) {
    let node = |r: &mut Rng| usize::try_from(r.below(options.nodes as u64)).unwrap_or(0);
    let mut some =
        |r: &mut Rng, chance: u32, most: u64, draw: &dyn Fn(&mut Rng) -> (u64, FaultKind)| {
            let count = if r.chance(chance) { r.range(1, most) } else { 0 };
            for _ in 0..count {
                let at_ms = r.below(options.faults_ms);
                let (for_ms, what) = draw(r);
                timeline.push(Fault { at_ms, for_ms, what });
            }
        };
    some(r, 300, 4, &|r| (0, FaultKind::Rebind { node: node(r) }));
    some(r, 200, 3, &|r| {
        let a = node(r);
        let b = (a + 1) % options.nodes;
        let (down_ms, up_ms) = (r.range(50, 4_000), r.range(50, 4_000));
        (r.range(1_000, 30_000), FaultKind::Flap { a, b, down_ms, up_ms })
    });
    some(r, 300, 3, &|r| {
        let from = node(r);
        let to = (from + 1) % options.nodes;
        let link = LinkModel {
            delay: Delay::Uniform(Micros::from_ms(1), Micros::from_ms(r.range(1, 800))),
            loss: Chance::permille(u32::try_from(r.range(0, 800)).unwrap_or(0)),
            mtu: r.pick(&[0, 0, 1_200]).unwrap_or(0),
            bytes_per_second: r.pick(&[0, 0, 3_000, 30_000]).unwrap_or(0),
            ..options.link.clone()
        };
        (r.range(100, 40_000), FaultKind::Link { from, to, back: r.chance(500), link })
    });
    some(r, 200, 3, &|r| (r.range(100, 20_000), FaultKind::Pause { node: node(r) }));
    some(r, 150, 2, &|r| {
        (r.range(1_000, 20_000), FaultKind::SlowDisk { node: node(r), by_ms: r.range(10, 1_000) })
    });
    some(r, 150, 3, &|r| (0, FaultKind::FailSync { node: node(r), kept: r.chance(500) }));
    some(r, 100, 1, &|r| (r.range(500, 10_000), FaultKind::DiskFull { node: node(r) }));
}
