//! Custody over MOQT, directly and by a relay of others, beside the native binding.

use super::flow::Load;
use super::idle::resident;
use super::world::Pair;
use super::{Args, median};
use crate::demo::relay::RelayProcess;
use crate::init::ca::DevCa;
use anyhow::Context as _;
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Looks at memory while obligations go over one session.
const MEMORY_LOOKS: usize = 5;

#[derive(Debug, Serialize)]
pub(super) struct Figures {
    in_flight: usize,
    payload_bytes: usize,
    native: Figure,
    direct: Figure,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay: Option<Figure>,
    /// Medians of the ratios of each round, to the native binding in it.
    direct_throughput_over_native: f64,
    direct_latency_over_native: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay_throughput_over_native: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    relay_latency_over_native: Option<f64>,
    /// Obligations that went over one session, and memory of custodian and receiver as they did.
    long: usize,
    custodian_mb: Vec<f64>,
    receiver_mb: Vec<f64>,
    each_round: Vec<Vec<Figure>>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Figure {
    applied_per_s: f64,
    applied_p50_ms: f64,
    one_in_flight_p50_us: f64,
    one_in_flight_p99_us: f64,
}

pub(super) async fn run(args: Args) -> anyhow::Result<Figures> {
    let root = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    let dir = root.join(format!("abhyasa-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    let figures = measure(&args, &dir).await;
    let _ = std::fs::remove_dir_all(&dir);
    figures
}

async fn measure(args: &Args, dir: &Path) -> anyhow::Result<Figures> {
    let place = |name: &str| {
        let place = dir.join(name);
        std::fs::create_dir(&place).map(|()| place)
    };
    let mut loads = vec![
        Load::start(Pair::init(&place("native")?)?, args).await?,
        Load::start(Pair::init(&place("direct")?)?.over_moqt(None)?, args).await?,
    ];
    let mut relay = None;
    if let Some(program) = &args.relay_program {
        let process = RelayProcess::start(program, &dir.join("relay"), &DevCa::generate()?)?;
        let pair = Pair::init(&place("by-relay")?)?;
        let pair = pair.over_moqt(Some((&process.url("/bench"), process.ca())))?;
        loads.push(Load::start(pair, args).await?);
        relay = Some(process);
    }
    let mut rounds = Vec::new();
    for n in 0..args.rounds {
        let mut round = Vec::new();
        for (_, load) in &mut loads {
            round.push(figure(load, args).await?);
        }
        let told = round.iter().map(|figure| {
            format!("{:.0}/s, {:.0} us", figure.applied_per_s, figure.one_in_flight_p50_us)
        });
        let told: Vec<String> = told.collect();
        eprintln!("round {}/{}: native, direct, by relay: {}", n + 1, args.rounds, told.join("; "));
        rounds.push(round);
    }
    let (mut custodian_mb, mut receiver_mb) = (Vec::new(), Vec::new());
    let (_, direct) = loads.get_mut(1).context("direct")?;
    for _ in 0..MEMORY_LOOKS {
        let mut sent = 0;
        while sent < args.long / MEMORY_LOOKS {
            sent += usize::try_from(
                direct.custody(args.in_flight, Duration::from_millis(200)).await?.0,
            )?;
        }
        custodian_mb.push(resident(std::process::id())? / 1e6);
        receiver_mb.push(resident(direct.receiver.pid())? / 1e6);
    }
    for (node, _) in loads {
        node.stop().await?;
    }
    drop(relay);
    Ok(figures(args, rounds, custodian_mb, receiver_mb))
}

async fn figure(load: &mut Load, args: &Args) -> anyhow::Result<Figure> {
    let (count, took, latency) =
        load.custody(args.in_flight, Duration::from_secs_f64(args.seconds)).await?;
    let singles = load.singles().await?;
    Ok(Figure {
        applied_per_s: count as f64 / took.as_secs_f64(),
        applied_p50_ms: latency.value_at_quantile(0.5) as f64 / 1e3,
        one_in_flight_p50_us: singles.value_at_quantile(0.5) as f64,
        one_in_flight_p99_us: singles.value_at_quantile(0.99) as f64,
    })
}

fn figures(
    args: &Args,
    rounds: Vec<Vec<Figure>>,
    custodian_mb: Vec<f64>,
    receiver_mb: Vec<f64>,
) -> Figures {
    let of = |at: usize, what: fn(&Figure) -> f64| {
        median(rounds.iter().filter_map(|round| round.get(at).map(what)).collect())
    };
    let all = |at: usize| Figure {
        applied_per_s: of(at, |f| f.applied_per_s),
        applied_p50_ms: of(at, |f| f.applied_p50_ms),
        one_in_flight_p50_us: of(at, |f| f.one_in_flight_p50_us),
        one_in_flight_p99_us: of(at, |f| f.one_in_flight_p99_us),
    };
    let ratio = |at: usize, what: fn(&Figure) -> f64| {
        let ratios = rounds
            .iter()
            .filter_map(|round| Some(round.get(at).map(what)? / round.first().map(what)?));
        median(ratios.collect())
    };
    let by_relay = rounds.first().is_some_and(|round| round.len() > 2);
    Figures {
        in_flight: args.in_flight,
        payload_bytes: args.payload_bytes,
        native: all(0),
        direct: all(1),
        relay: by_relay.then(|| all(2)),
        direct_throughput_over_native: ratio(1, |f| f.applied_per_s),
        direct_latency_over_native: ratio(1, |f| f.one_in_flight_p50_us),
        relay_throughput_over_native: by_relay.then(|| ratio(2, |f| f.applied_per_s)),
        relay_latency_over_native: by_relay.then(|| ratio(2, |f| f.one_in_flight_p50_us)),
        long: args.long,
        custodian_mb,
        receiver_mb,
        each_round: rounds,
    }
}
