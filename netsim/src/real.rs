//! The real world: two `abhyasa node` processes on their disks, a UDP link that is spoiled by the
//! simulator's own model, and a hand that kills, stops and starts them.
//!
//! A run takes [`Options`] like those of the other worlds, in real time. It draws what happens from
//! the seed, but when exactly a kill strikes is up to the machine: a seed tells a story, not a
//! trace. The nodes are judged from outside: by what their API answered and showed while the run
//! went on, and by what both stores hold after the processes have ended.

mod book;
mod client;
mod judge;
mod nodes;
mod plan;
mod service;
mod store;
mod work;

pub use nodes::Deeds;
pub use plan::swarm;

use crate::check::{Class, Violation};
use crate::options::Options;
use crate::run::Counts;
use abhyasa::demo::stage::{Stage, tune};
use abhyasa::proxy::Count;
use anyhow::{Context as _, bail, ensure};
use book::{Shared, ms, unix_ms};
use judge::{Facts, Verdict, judge};
use nodes::Nodes;
use proto::profile::OnDecline;
use serde::Serialize;
use service::Service;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Image;
use tokio::task::JoinSet;

/// Time between two looks at the timeline and the processes.
const TICK: Duration = Duration::from_millis(3);
/// How long a run may take beyond its faults and its longest deadline.
const SLACK: Duration = Duration::from_secs(30);
/// For what is still under way when all has ended: late acks, duplicates.
const SETTLE: Duration = Duration::from_millis(400);
/// Between two posts of an escalation to the sink at most, in milliseconds.
const SINK_RETRY_MS: u64 = 500;
/// How long the sink may take to get what is left.
const SINK_WITHIN: Duration = Duration::from_secs(15);
/// Bytes of writes a store keeps in memory: the least there is, so that it flushes now and then.
const WRITE_BUFFER: u64 = 1 << 20;
/// Longest run, so that no scenario keeps a machine busy for ever.
const RUN_MS_MAX: u64 = 4 * 3_600_000;

/// What a run needs beside its options.
#[derive(Clone, Debug, Default)]
pub struct RealSetup {
    /// The `abhyasa` executable; if none, the one beside this program.
    pub program: Option<PathBuf>,
    /// Whether configurations, stores and logs stay when no promise was broken. They always do when
    /// one was.
    pub keep: bool,
}

/// What came of a run.
#[derive(Clone, Debug, Serialize)]
pub struct RealReport {
    /// The options it ran under.
    pub options: Options,
    /// How obligations ended.
    pub counts: Counts,
    /// Calls without an answer that nobody repeated; what they asked for was not taken.
    pub unanswered: u64,
    /// Wall time, in milliseconds.
    pub wall_ms: u64,
    /// What was done to the nodes.
    pub deeds: Deeds,
    /// Packets sent on by the link.
    pub packets: u64,
    /// Packets that it lost.
    pub packets_lost: u64,
    /// Packets that it sent twice.
    pub packets_doubled: u64,
    /// Packets whose bits it flipped.
    pub packets_corrupted: u64,
    /// From deadline to escalation in the median, in milliseconds that the node could work.
    pub escalation_p50_ms: Option<u64>,
    /// The longest of these.
    pub escalation_max_ms: Option<u64>,
    /// What was broken; the first is the one to look at.
    pub violations: Vec<Violation>,
    /// Where configurations, stores and logs are, if they were kept.
    pub files: Option<PathBuf>,
}

impl RealReport {
    /// The worst class of what was broken: safety before liveness before a crash.
    #[must_use]
    pub fn worst(&self) -> Option<Class> {
        self.violations.iter().map(|violation| violation.class).max()
    }
}

/// Runs `options` to the end, in real time. The processes end with it, also when it is interrupted.
///
/// # Errors
/// When the nodes cannot be set up, the scenario asks for what this world cannot do, or the run is
/// interrupted.
pub fn run(options: &Options, setup: &RealSetup) -> anyhow::Result<RealReport> {
    check(options)?;
    let program = program(setup)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    runtime.block_on(async {
        tokio::select! {
            report = play(options, &program, setup.keep) => report,
            () = abhyasa::demo::interrupted() => bail!("interrupted"),
        }
    })
}

/// The executable to run.
fn program(setup: &RealSetup) -> anyhow::Result<PathBuf> {
    if let Some(program) = &setup.program {
        ensure!(program.is_file(), "there is no program {}", program.display());
        return Ok(program.clone());
    }
    let own = std::env::current_exe().context("this program's own file")?;
    let name = format!("abhyasa{}", std::env::consts::EXE_SUFFIX);
    let beside = own.parent().unwrap_or(Path::new(".")).join(name);
    ensure!(
        beside.is_file(),
        "there is no {}\n  hint: build it with `cargo build --workspace`{}, or name it with --program",
        beside.display(),
        if cfg!(debug_assertions) { "" } else { " --release" }
    );
    Ok(beside)
}

/// What this world cannot do is refused, not left out.
fn check(options: &Options) -> anyhow::Result<()> {
    ensure!(options.nodes == 2, "nodes = {}: the real world has two", options.nodes);
    ensure!(
        options.retries.is_none(),
        "retries: a node refuses a profile whose retries do not span its deadline"
    );
    ensure!(options.disks.is_empty(), "disks: the real world has the disk it runs on");
    ensure!(options.clock_steps == 0, "clock_steps: the real world has one clock");
    ensure!(
        options.faults_ms + options.heal_after_ms + options.deadline_s * 1000 < RUN_MS_MAX,
        "a run of the real world takes as long as it says, and that is over {} hours",
        RUN_MS_MAX / 3_600_000
    );
    Ok(())
}

/// The options as the nodes' configuration takes them.
fn tuning(options: &Options) -> String {
    let backoff = &options.backoff;
    let profile = options.profile();
    let on_decline = if profile.on_decline == OnDecline::Surface { "surface" } else { "apply" };
    let mut text = format!(
        "store = {{ write_buffer_bytes = {WRITE_BUFFER} }}\n\
         quic = {{ racing = {}, idle_timeout_ms = {}, keep_alive_ms = {} }}\n\
         custody = {{ max_clock_skew_ms = {}, coalesce = {}, in_flight_max = {} }}\n",
        options.racing,
        options.idle_ms.max(1_000),
        (options.idle_ms / 3).max(100),
        options.skew_ms,
        options.coalesce,
        options.window,
    );
    for kind in crate::options::KINDS {
        text.push_str(&format!(
            "[kinds.\"{kind}\"]\ndeadline_seconds = {}\nmax_retries = {}\nbackoff_base_ms = {}\n\
             backoff_cap_ms = {}\njitter_percent = {}\non_decline = \"{on_decline}\"\n",
            options.deadline_s,
            profile.max_retries(),
            backoff.base_ms,
            backoff.cap_ms,
            backoff.jitter_permille / 10,
        ));
    }
    text
}

/// Where a node finds the service, as its configuration takes it: handlers and the sink.
fn outside(options: &Options, service: &Service, node: usize) -> String {
    let (url, sink) = (service.url(node), service.sink_url(node));
    let mut text = format!(
        "escalation = {{ webhook_url = \"{sink}\", webhook_retry_cap_ms = {SINK_RETRY_MS} }}\n"
    );
    for kind in &options.external {
        text.push_str(&format!(
            "kinds.\"{kind}\".handler = {{ type = \"webhook\", url = \"{url}\", timeout_ms = 2000 }}\n"
        ));
    }
    text
}

async fn play(options: &Options, program: &Path, keep: bool) -> anyhow::Result<RealReport> {
    let (works, calls) = work::draw(options)?;
    let actions: VecDeque<_> = plan::actions(options)?.into();
    let stage = Stage::set(program, options.seed, &tuning(options)).await?;
    let book = Shared::new(works);
    let service = Arc::new(Service::start(options, book.clone()).await?);
    for (n, node) in [&stage.alice, &stage.bob].into_iter().enumerate() {
        tune(node.config(), &outside(options, &service, n))?;
    }
    let mut nodes = Nodes::start(stage, options, book.clone()).await?;
    let begun = Instant::now();
    let healed_at_ms = story(&mut nodes, options, &book, &service, calls, actions).await?;
    tokio::time::sleep(SETTLE).await;
    let begun_to_wait = Instant::now();
    while begun_to_wait.elapsed() < SINK_WITHIN && !told(&nodes).await {
        tokio::time::sleep(SETTLE).await;
    }
    for node in [0, 1] {
        client::look(&nodes.api(node), &book, node).await.context("a last look")?;
    }
    let verdict = verdict(&mut nodes, options, &book, &service, healed_at_ms)?;
    let violations = std::mem::take(&mut book.open().violations);
    if keep || !violations.is_empty() {
        nodes.stage.dir.keep();
    }
    let files = (keep || !violations.is_empty()).then(|| nodes.stage.dir.path().to_owned());
    let Count { forwarded, dropped, duplicated, corrupted, .. } = nodes.stage.link.count();
    let mut lateness = verdict.lateness_ms;
    lateness.sort_unstable();
    Ok(RealReport {
        options: options.clone(),
        counts: verdict.counts,
        unanswered: verdict.unanswered,
        wall_ms: ms(begun.elapsed()),
        deeds: nodes.deeds,
        packets: forwarded,
        packets_lost: dropped,
        packets_doubled: duplicated,
        packets_corrupted: corrupted,
        escalation_p50_ms: lateness.get(lateness.len() / 2).copied(),
        escalation_max_ms: lateness.last().copied(),
        violations,
        files,
    })
}

/// All that happens, until everything has ended or its time is over. Returns when all faults did.
async fn story(
    nodes: &mut Nodes,
    options: &Options,
    book: &Shared,
    service: &Arc<Service>,
    calls: Vec<work::Call>,
    mut actions: VecDeque<(u64, plan::Action)>,
) -> anyhow::Result<u64> {
    let begun = Instant::now();
    let heal_at = options.faults_ms + options.heal_after_ms;
    let ask_until = begun + Duration::from_millis(heal_at) + SLACK / 2;
    let mut calls: VecDeque<_> = calls.into();
    let mut clients = JoinSet::new();
    let mut watchers = JoinSet::new();
    for node in [0, 1] {
        let (api, service) = (nodes.api(node), service.clone());
        watchers.spawn(client::watch(api, book.clone(), node, options.seed, service));
    }
    let mut healed_at_ms = None;
    loop {
        let now = ms(begun.elapsed());
        while actions.front().is_some_and(|(at, _)| *at <= now && *at < heal_at) {
            let Some((_, action)) = actions.pop_front() else { break };
            nodes.act(action).await?;
        }
        while calls.front().is_some_and(|call| call.at_ms <= now) {
            let Some(call) = calls.pop_front() else { break };
            let api = nodes.api(call.issuer);
            clients.spawn(client::issue(api, book.clone(), call, ask_until));
        }
        nodes.tend()?;
        while let Some(done) = clients.try_join_next() {
            done.context("a client failed")?;
        }
        if healed_at_ms.is_none() && now >= heal_at {
            nodes.heal()?;
            healed_at_ms = Some(unix_ms());
        }
        if let Some(healed_at_ms) = healed_at_ms
            && calls.is_empty()
            && clients.is_empty()
        {
            let latest = heal_at + options.deadline_s * 1_000 + ms(SLACK);
            if now > latest || idle(nodes).await {
                return Ok(healed_at_ms);
            }
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Whether nothing is pending anywhere.
async fn idle(nodes: &Nodes) -> bool {
    for node in [0, 1] {
        let page = nodes.api(node).get("/v1/pending", &[("limit", "1")]).await;
        if !page.is_ok_and(|page| page.pointer("/items/0").is_none()) {
            return false;
        }
    }
    true
}

/// Whether the sink has every escalation that nobody has acknowledged.
async fn told(nodes: &Nodes) -> bool {
    for node in [0, 1] {
        let Ok(page) = nodes.api(node).get("/v1/escalations", &[("limit", "1000")]).await else {
            return false;
        };
        let items = page.get("items").and_then(serde_json::Value::as_array);
        if items.into_iter().flatten().any(|item| item.get("delivered_at_ms").is_none()) {
            return false;
        }
    }
    true
}

fn verdict(
    nodes: &mut Nodes,
    options: &Options,
    book: &Shared,
    service: &Service,
    healed_at_ms: u64,
) -> anyhow::Result<Verdict> {
    nodes.end();
    for node in [0, 1] {
        let log = std::fs::read_to_string(nodes.process(node).log()).unwrap_or_default();
        if let Some(line) = log.lines().find(|line| line.contains("panicked at")) {
            book.open().breach("panics", Class::Crash, node, line.to_owned());
        }
    }
    let images = [
        Image::read(nodes.stage.alice.config()).context("the store of node 0")?,
        Image::read(nodes.stage.bob.config()).context("the store of node 1")?,
    ];
    let facts = Facts {
        able_ms: &|node, from, to| nodes.able_ms(node, from, to),
        effect: &|spec| {
            let issuer = work::NAMES.get(spec.issuer).copied().unwrap_or_default();
            service.effect(spec.target, issuer, spec.id.as_str())
        },
        sunk: &|spec| service.sunk(spec.issuer, spec.id.as_str()),
        healed_at_ms,
        settle_ms: if options.external.is_empty() {
            3 * options.backoff.cap_ms + 10_000
        } else {
            u64::MAX / 2 // a handler may put off for ever
        },
        surface: options.surface,
    };
    judge(&mut book.open(), &images, &facts)
}
