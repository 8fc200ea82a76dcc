//! One load on one peer: a closed loop of a fixed number of messages in flight, or for us also an
//! open one.

pub(crate) mod abhyasa;
mod beanstalkd;
mod effect;
mod nats;
mod postgres;
mod rabbitmq;
mod redis;

use crate::process;
use anyhow::Context as _;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Connections to a peer at most; more in flight are pipelined.
const CONNECTIONS_MAX: usize = 64;
/// Messages of one call at most, where the peer's interface takes several.
const BATCH_MAX: usize = 32;
/// Longer latencies count as this one: ten minutes, more than a load takes.
const LATENCY_US_MAX: u64 = 600_000_000;
/// Digits that tell when a message was sent, at the start of its payload.
const STAMP_LEN: usize = 20;

/// What we measure beside what.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Peer {
    /// This project.
    Abhyasa,
    /// NATS JetStream, `sync_interval: always`.
    Nats,
    /// Redis streams, `appendfsync always`.
    Redis,
    /// PostgreSQL outbox table, a transaction for each row.
    Postgres,
    /// The same, with several rows in a transaction.
    PostgresBatch,
    /// beanstalkd, `-f 0`.
    Beanstalkd,
    /// RabbitMQ, quorum queue and confirms.
    Rabbitmq,
}

impl Peer {
    /// Every peer there is, us first.
    pub(crate) const ALL: [Self; 7] = [
        Self::Abhyasa,
        Self::Nats,
        Self::Redis,
        Self::Postgres,
        Self::PostgresBatch,
        Self::Beanstalkd,
        Self::Rabbitmq,
    ];

    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Abhyasa => "abhyasa",
            Self::Nats => "nats",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
            Self::PostgresBatch => "postgres-batch",
            Self::Beanstalkd => "beanstalkd",
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// What a message counts as done by.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Duty {
    /// Submitted, and durable where it was submitted.
    Accepted,
    /// Durably applied by a second party, and the first durably knows.
    Applied,
    /// Without custody, as fast as it goes (ours only).
    BestEffort,
}

impl Duty {
    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Applied => "applied",
            Self::BestEffort => "best-effort",
        }
    }
}

/// One load.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    pub(crate) peer: Peer,
    #[arg(long)]
    pub(crate) duty: Duty,
    #[arg(long)]
    pub(crate) in_flight: usize,
    #[arg(long)]
    pub(crate) seconds: f64,
    #[arg(long)]
    pub(crate) warm_up: f64,
    #[arg(long)]
    pub(crate) payload_bytes: usize,
    /// Scratch folder of this load, on the disk that is measured.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Where the peer listens; ours starts its own nodes.
    #[arg(long)]
    pub(crate) address: Option<SocketAddr>,
    /// Name of the queue, stream or table; each load has its own.
    #[arg(long)]
    pub(crate) queue: String,
    /// Messages a second of an open loop, instead of a closed one.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Wait to be watched, and in the end for all that was sent.
    #[arg(long)]
    pub(crate) check: bool,
}

/// Files by which a load says that it could begin, and is told to.
pub(crate) fn gate(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("ready"), dir.join("go"))
}

impl Args {
    /// Waits until whoever counts our syncs is there.
    async fn begin(&self) -> anyhow::Result<()> {
        if self.check {
            let (ready, go) = gate(&self.dir);
            std::fs::write(ready, "")?;
            while !go.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        Ok(())
    }

    fn address(&self) -> anyhow::Result<SocketAddr> {
        self.address.with_context(|| format!("{}: --address is missing", self.peer.name()))
    }

    /// Messages of one call, where the peer's interface takes several.
    fn batch(&self) -> usize {
        (self.in_flight / CONNECTIONS_MAX).clamp(1, BATCH_MAX)
    }

    /// Callers at once, each with a batch of its own.
    fn callers(&self) -> usize {
        (self.in_flight / self.batch()).max(1)
    }

    fn connections(&self, callers: usize) -> usize {
        callers.clamp(1, CONNECTIONS_MAX)
    }
}

/// What one load measured.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Messages done in the timed part.
    pub(crate) count: u64,
    /// And in all, warm-up and drain included.
    pub(crate) total: u64,
    pub(crate) per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// CPU of the load's own process over the timed part, as a share of one core.
    pub(crate) client_cpu: f64,
    /// Figures that only some peers have.
    pub(crate) more: BTreeMap<String, f64>,
}

/// What has been done since when.
#[derive(Debug)]
pub(crate) struct Meter {
    start: Instant,
    warm: Instant,
    end: Instant,
    cpu_at_start: f64,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    latency: Histogram<u64>,
    total: u64,
}

impl Meter {
    fn new(args: &Args) -> anyhow::Result<Arc<Self>> {
        let start = Instant::now();
        let warm = start + Duration::from_secs_f64(args.warm_up);
        let end = warm + Duration::from_secs_f64(args.seconds);
        let inner = Mutex::new(Inner {
            latency: Histogram::new_with_bounds(1, LATENCY_US_MAX, 3)?,
            total: 0,
        });
        let cpu_at_start = process::cpu_seconds(std::process::id())?;
        Ok(Arc::new(Self { start, warm, end, cpu_at_start, inner }))
    }

    /// Whether more is to be sent.
    fn open(&self) -> bool {
        Instant::now() < self.end
    }

    /// A message that was sent at `since` is done.
    fn done(&self, since: Instant) {
        let now = Instant::now();
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.total += 1;
        if now >= self.warm && now < self.end {
            let us = u64::try_from(now.saturating_duration_since(since).as_micros());
            inner.latency.saturating_record(us.unwrap_or(u64::MAX).max(1));
        }
    }

    /// A payload that tells when it was sent.
    fn payload(&self, bytes: usize) -> Vec<u8> {
        let mut payload = format!("{:020}", self.start.elapsed().as_nanos()).into_bytes();
        payload.resize(bytes.max(STAMP_LEN), b'x');
        payload
    }

    /// A message with this payload is done.
    fn done_payload(&self, payload: &[u8]) -> anyhow::Result<()> {
        let stamp = payload.get(..STAMP_LEN).context("a payload without a stamp")?;
        let nanos = std::str::from_utf8(stamp)?.parse()?;
        self.done(self.start + Duration::from_nanos(nanos));
        Ok(())
    }

    fn sample(&self) -> anyhow::Result<Sample> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let at = |quantile| inner.latency.value_at_quantile(quantile) as f64;
        let cpu = process::cpu_seconds(std::process::id())? - self.cpu_at_start;
        Ok(Sample {
            count: inner.latency.len(),
            total: inner.total,
            per_s: inner.latency.len() as f64 / (self.end - self.warm).as_secs_f64(),
            p50_us: at(0.5),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: inner.latency.max() as f64,
            client_cpu: cpu / self.start.elapsed().as_secs_f64(),
            more: BTreeMap::new(),
        })
    }
}

/// What senders and receivers of one load share.
#[derive(Clone, Debug)]
struct Flow {
    meter: Arc<Meter>,
    /// One for each message that may be in flight.
    window: Arc<Semaphore>,
    payload_bytes: usize,
    /// Whether all that was sent is waited for.
    drain: bool,
}

impl Flow {
    fn new(args: &Args) -> anyhow::Result<Self> {
        Ok(Self {
            meter: Meter::new(args)?,
            window: Arc::new(Semaphore::new(args.in_flight)),
            payload_bytes: args.payload_bytes,
            drain: args.check,
        })
    }

    /// Waits until `count` more may be in flight. False when no more are to be sent.
    async fn admit(&self, count: usize) -> anyhow::Result<bool> {
        let left = self.meter.end.saturating_duration_since(Instant::now());
        let permits = self.window.acquire_many(u32::try_from(count)?);
        match tokio::time::timeout(left, permits).await {
            Ok(permits) => permits?.forget(),
            Err(_) => return Ok(false),
        }
        Ok(self.meter.open())
    }

    fn payload(&self) -> Vec<u8> {
        self.meter.payload(self.payload_bytes)
    }

    /// A message with this payload is done, another may be sent.
    fn done(&self, payload: &[u8]) -> anyhow::Result<()> {
        self.meter.done_payload(payload)?;
        self.window.add_permits(1);
        Ok(())
    }

    /// Runs until the time is over or one of the tasks fails.
    async fn run(
        self,
        mut tasks: tokio::task::JoinSet<anyhow::Result<()>>,
    ) -> anyhow::Result<Sample> {
        let end = tokio::time::Instant::from_std(self.meter.end);
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => break,
                Some(ended) = tasks.join_next() => ended??,
            }
        }
        if self.drain {
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
        }
        // What is in flight is neither counted nor, but for a count of syncs, waited for.
        let sample = self.meter.sample();
        tasks.shutdown().await;
        sample
    }
}

/// Runs one load and prints its [`Sample`] as JSON.
pub(crate) fn main(args: &Args) -> anyhow::Result<()> {
    let sample = match args.peer {
        Peer::Abhyasa => abhyasa::runtime()?.block_on(abhyasa::load(args)),
        peer => {
            // One thread: the load has one core.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                match peer {
                    Peer::Nats => nats::load(args).await,
                    Peer::Redis => redis::load(args).await,
                    Peer::Postgres => postgres::load(args, 1).await,
                    Peer::PostgresBatch => postgres::load(args, args.batch()).await,
                    Peer::Beanstalkd => beanstalkd::load(args).await,
                    Peer::Rabbitmq => rabbitmq::load(args).await,
                    Peer::Abhyasa => anyhow::bail!("abhyasa has a runtime of its own"),
                }
            })
        }
    };
    let sample = sample.with_context(|| {
        format!("{}, {}, {} in flight", args.peer.name(), args.duty.name(), args.in_flight)
    })?;
    println!("{}", serde_json::to_string(&sample)?);
    // Without waiting for connections to close: the server goes next.
    std::process::exit(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(in_flight: usize) -> Args {
        Args {
            peer: Peer::Redis,
            duty: Duty::Accepted,
            in_flight,
            seconds: 60.0,
            warm_up: 0.0,
            payload_bytes: 256,
            dir: PathBuf::new(),
            address: None,
            queue: "q".into(),
            rate: None,
            check: false,
        }
    }

    #[test]
    fn batches_and_callers_fill_the_window() {
        for (in_flight, batch, callers) in [(1, 1, 1), (64, 1, 64), (512, 8, 64), (2048, 32, 64)] {
            let args = args(in_flight);
            assert_eq!((args.batch(), args.callers()), (batch, callers));
            assert_eq!(args.batch() * args.callers(), in_flight);
        }
    }

    #[test]
    fn a_payload_tells_when_it_was_sent() {
        let meter = Meter::new(&args(1)).unwrap();
        let payload = meter.payload(256);
        assert_eq!(payload.len(), 256);
        std::thread::sleep(Duration::from_millis(20));
        meter.done_payload(&payload).unwrap();
        let sample = meter.sample().unwrap();
        assert_eq!((sample.count, sample.total), (1, 1));
        assert!((20_000.0..2_000_000.0).contains(&sample.p50_us), "{}", sample.p50_us);
        assert!(meter.done_payload(b"short").is_err());
    }

    #[test]
    fn what_is_done_in_the_warm_up_is_not_timed() {
        let warming = Args { warm_up: 60.0, ..args(1) };
        let meter = Meter::new(&warming).unwrap();
        meter.done(Instant::now());
        let sample = meter.sample().unwrap();
        assert_eq!((sample.count, sample.total), (0, 1));
    }
}
