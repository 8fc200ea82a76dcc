//! What is to be reached, and whether it is.

use crate::figures::{Round, Spread, spread};
use crate::load::{Duty, Peer};
use serde::Serialize;

const POSTGRES: [Peer; 2] = [Peer::Postgres, Peer::PostgresBatch];
/// Obligations in flight where throughput is compared.
pub(crate) const DEEP: usize = 2048;
/// And where latency is.
const BUSY: usize = 512;

/// One goal and its figure.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Goal {
    pub(crate) name: &'static str,
    pub(crate) limit: f64,
    /// Whether the figure is to be at least the limit, or at most.
    pub(crate) at_least: bool,
    pub(crate) figure: Option<Spread>,
    /// None where it was not measured.
    pub(crate) met: Option<bool>,
}

/// Every goal, over the rounds that count.
pub(crate) fn goals(rounds: &[&Round]) -> Vec<Goal> {
    let goal = |name, at_least, limit, figure: &dyn Fn(&Round) -> Option<f64>| {
        let figure = spread(rounds.iter().copied(), figure);
        let met = figure
            .map(|figure| if at_least { figure.median >= limit } else { figure.median <= limit });
        Goal { name, limit, at_least, figure, met }
    };
    let ours = |round: &Round, duty| Some(round.closed(Peer::Abhyasa, duty, DEEP)?.per_s);
    let over_best =
        |round: &Round, peers: &[Peer], duty| Some(ours(round, duty)? / round.best(peers, duty)?);
    let p50_over = |round: &Round, duty| {
        let theirs = round.closed(Peer::Nats, duty, BUSY)?.p50_us;
        Some(theirs / round.closed(Peer::Abhyasa, duty, BUSY)?.p50_us)
    };
    let open_p99 =
        |round: &Round, duty| Some(round.open(Peer::Abhyasa, duty)?.p99_us / round.control_us);
    vec![
        goal("accepted, 2,048 in flight, over NATS at its best window", true, 30.0, &|round| {
            over_best(round, &[Peer::Nats], Duty::Accepted)
        }),
        goal("accepted, 2,048 in flight, over Redis pipelined as deep", true, 0.6, &|round| {
            let theirs = round.closed(Peer::Redis, Duty::Accepted, DEEP)?.per_s;
            Some(ours(round, Duty::Accepted)? / theirs)
        }),
        goal("applied, over beanstalkd at its best window", true, 10.0, &|round| {
            over_best(round, &[Peer::Beanstalkd], Duty::Applied)
        }),
        goal("applied, over PostgreSQL at its best", true, 5.0, &|round| {
            over_best(round, &POSTGRES, Duty::Applied)
        }),
        goal("applied, over NATS at its best window", true, 15.0, &|round| {
            over_best(round, &[Peer::Nats], Duty::Applied)
        }),
        goal("accepted, 512 in flight: p50 of NATS over ours", true, 20.0, &|round| {
            p50_over(round, Duty::Accepted)
        }),
        goal("applied, 512 in flight: p50 of NATS over ours", true, 20.0, &|round| {
            p50_over(round, Duty::Applied)
        }),
        goal("accepted, open loop at half of peak: p99 over the median fsync", false, 8.0, &|r| {
            open_p99(r, Duty::Accepted)
        }),
        goal("applied, open loop at half of peak: p99 over the median fsync", false, 8.0, &|r| {
            open_p99(r, Duty::Applied)
        }),
        goal("group commit over the raw append ceiling, same bytes a sync", true, 0.25, &|round| {
            round.group_commit
        }),
        goal("custody over best effort", true, 0.5, &|round| {
            ours(round, Duty::Applied)
                .zip(round.closed(Peer::Abhyasa, Duty::BestEffort, DEEP))
                .map(|(custody, best_effort)| custody / best_effort.per_s)
        }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::cell;

    fn named<'a>(goals: &'a [Goal], name: &str) -> &'a Goal {
        goals.iter().find(|goal| goal.name.starts_with(name)).unwrap()
    }

    #[test]
    fn a_goal_is_met_missed_or_not_measured() {
        let round = Round {
            control_us: 100.0,
            group_commit: Some(0.2),
            cells: vec![
                cell(Peer::Abhyasa, Duty::Accepted, 2048, 90_000.0, 9.0),
                cell(Peer::Nats, Duty::Accepted, 64, 3000.0, 9.0),
                cell(Peer::Nats, Duty::Accepted, 512, 2000.0, 9.0),
                crate::figures::Cell {
                    rate: Some(1.0),
                    ..cell(Peer::Abhyasa, Duty::Applied, 2048, 1.0, 300.0)
                },
            ],
            ..Round::default()
        };
        let goals = goals(&[&round]);
        let nats = named(&goals, "accepted, 2,048 in flight, over NATS");
        assert_eq!((nats.figure.unwrap().median, nats.met), (30.0, Some(true)));
        assert_eq!(named(&goals, "group commit").met, Some(false));
        // At most: 600 us p99 over 100 us.
        assert_eq!(named(&goals, "applied, open loop").met, Some(true));
        assert_eq!(named(&goals, "applied, over beanstalkd").met, None);
        assert_eq!(named(&goals, "custody").met, None);
    }
}
