//! DT-1: the simulator repeats itself.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use netsim::{Options, run};

#[test]
fn dt1_the_same_seed_gives_the_same_trace() {
    for seed in 0..20 {
        let options = Options::swarm(seed, 40);
        let (first, second) = (run(&options), run(&options));
        assert_eq!(
            (first.trace, first.events, first.counts),
            (second.trace, second.events, second.counts)
        );
    }
    let traces: std::collections::BTreeSet<u64> =
        (0..20).map(|seed| run(&Options::swarm(seed, 40)).trace).collect();
    assert_eq!(traces.len(), 20, "another seed is another run");
}
