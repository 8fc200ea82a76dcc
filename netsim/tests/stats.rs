//! What intervals promise: they hold what is true as often as they say.
#![allow(missing_docs, clippy::unwrap_used)]

use netsim::Rng;
use netsim::stats::{Share, Z_95, Z_99};

/// Seeds of `each` transfers that all fare alike with chance `alike`, the rest by themselves.
fn seeds(rng: &mut Rng, count: usize, each: u64, permille: u32, alike: u32) -> Vec<Share> {
    let one = |rng: &mut Rng| {
        if rng.chance(alike) {
            return Share { hits: if rng.chance(permille) { each } else { 0 }, n: each };
        }
        Share { hits: (0..each).filter(|_| rng.chance(permille)).count() as u64, n: each }
    };
    (0..count).map(|_| one(rng)).collect()
}

fn coverage(permille: u32, alike: u32, z: f64, pooled: bool) -> f64 {
    let mut rng = Rng::new(permille.into(), alike.into());
    let truth = f64::from(permille) / 1000.0;
    let tries = 1_000;
    let inside = (0..tries).filter(|_| {
        let seeds = seeds(&mut rng, 40, 50, permille, alike);
        let (total, interval) = Share::pooled(&seeds, z);
        let interval = if pooled { interval } else { total.interval(z) };
        (interval.low..=interval.high).contains(&truth)
    });
    inside.count() as f64 / f64::from(tries)
}

#[test]
fn intervals_hold_the_truth_as_often_as_they_say() {
    for permille in [20, 100, 500, 950] {
        let seen = coverage(permille, 0, Z_95, true);
        assert!((0.93..=1.0).contains(&seen), "{permille}: {seen} of 95 %");
        let seen = coverage(permille, 0, Z_99, true);
        assert!((0.98..=1.0).contains(&seen), "{permille}: {seen} of 99 %");
    }
}

#[test]
fn transfers_of_a_seed_that_share_its_fate_need_the_wider_interval() {
    let [pooled, plain] = [true, false].map(|pooled| coverage(300, 300, Z_95, pooled));
    assert!(pooled > 0.9, "{pooled}");
    assert!(plain < 0.7, "{plain}: the plain interval is too sure of itself");
}
