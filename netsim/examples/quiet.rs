//! temp
use netsim::{Options, run};
fn main() {
    for (singly, batch) in [(false, 32), (false, 1)] {
        let options = Options { transfers: 100_000, faults_ms: 20_000, issue_batch_max: batch, keys: 1000, singly, wire: false, window: 8192, inputs_per_commit: 512, ..Options::quiet(1) };
        let begun = std::time::Instant::now();
        let r = run(&options);
        println!("{:?} {} ev {} frames {} syncs {:.0}/s", r.counts, r.violations.len(), r.events, r.syncs, 100_000.0 / begun.elapsed().as_secs_f64());
    }
}
