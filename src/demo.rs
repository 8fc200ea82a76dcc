//! `abhyasa demo`: the promise kept over a bad link and through crashes.
//!
//! Two nodes in processes of their own, each with its store, talk only through a UDP proxy in this
//! process. Six stories, and one more if there is a relay; each checks its promise by asking the nodes' own APIs.

pub mod api;
mod consent;
pub mod relay;
mod scenes;
pub mod stage;
mod tell;

use anyhow::Context as _;
use scenes::Ending;
use serde_json::{Value, json};
use stage::Stage;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tell::Teller;

/// How long one story may take before it counts as failed.
const STORY_WITHIN: Duration = Duration::from_secs(45);

/// What to play, and how to tell it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Keep the directory with configurations, stores and logs.
    #[arg(long)]
    pub keep: bool,
    /// Seed of what the link does to packets.
    #[arg(long, default_value_t = 7)]
    pub seed: u64,
    /// Log more in the nodes' logs, and keep them.
    #[arg(long)]
    pub verbose: bool,
    /// One more story, through a MOQT relay of others: the program of moq-relay-ietf, moq-relay or aiomoqt's
    /// moq-interop-relay, which is started and killed.
    #[arg(long, value_name = "FILE")]
    pub relay_program: Option<PathBuf>,
    /// The demonstration of consent (Anumati §4.4) instead: two agents, a policy, a call that is denied and one that
    /// is permitted, a new policy, a revocation.
    #[arg(long, conflicts_with = "relay_program")]
    pub consent: bool,
    /// Write the audit of consent to this file, as a page of HTML.
    #[arg(long, value_name = "FILE", requires = "consent")]
    pub page: Option<PathBuf>,
}

/// Plays all stories. Success if every promise was kept.
///
/// # Errors
/// When the stage cannot be set, or on an interrupt.
pub fn run(args: &Args, json: bool) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("the runtime cannot start")?;
    let ok = runtime.block_on(async {
        tokio::select! {
            ok = async {
                if args.consent { consent::play(args, json).await } else { play(args, json).await }
            } => ok,
            () = interrupted() => anyhow::bail!("interrupted"),
        }
    })?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn play(args: &Args, json: bool) -> anyhow::Result<bool> {
    let tell = Teller::new(json);
    let begun = Instant::now();
    let program: PathBuf = std::env::current_exe().context("this program's own file")?;
    let tuning = if args.verbose { "log = { filter = \"info,abhyasa=debug\" }" } else { "" };
    let mut stage = Stage::set(&program, args.seed, tuning).await?;
    if args.keep || args.verbose {
        stage.dir.keep();
    }
    tell.line("Alice's node must tell Bob's node what he may no longer do. Each is a process with its own");
    tell.line(
        "store on disk; every packet between them goes through a link that we spoil. The promise:",
    );
    tell.line("an obligation is applied, declined or escalated in time, and never silently lost.");
    if let Err(error) = stage.start().await {
        stage.dir.keep();
        return Err(
            error.context(format!("the nodes did not start; see {}", stage.dir.path().display()))
        );
    }
    let mut scenarios = Vec::new();
    let relay = args.relay_program.as_deref();
    let stories = if relay.is_some() { NAMES.len() } else { NAMES.len() - 1 };
    for number in 1..=stories {
        scenarios.extend(story(&mut stage, &tell, number, relay).await);
    }
    let ok = scenarios.len() == stories
        && scenarios.iter().all(|scenario| scenario.get("ok") == Some(&Value::Bool(true)));
    let kept = (!ok || args.keep || args.verbose).then(|| {
        stage.dir.keep();
        stage.dir.path().display().to_string()
    });
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    if json {
        println!(
            "{}",
            json!({ "scenarios": scenarios, "ok": ok, "took_ms": took_ms, "files": kept })
        );
    }
    let verdict = if ok { "Every promise was kept." } else { "A PROMISE WAS BROKEN." };
    tell.line(&format!("\n{verdict} ({} s)", took_ms.div_ceil(1000)));
    if let Some(kept) = kept {
        tell.line(&format!("Configurations, stores and logs are in {kept}"));
    }
    Ok(ok)
}

const NAMES: [(&str, &str); 7] = [
    ("clean", "A clean link"),
    ("loss_and_duplicates", "A link that loses and doubles packets"),
    ("partition_past_deadline", "A cut that outlasts the deadline"),
    ("revocation_lost", "A revocation that is lost for now"),
    ("receiver_killed", "Bob's node killed between applying and acknowledging"),
    ("custodian_killed", "Alice's node killed in mid-retry"),
    ("relay_killed", "A relay of others between them, killed between offer and ack"),
];

/// Plays one story on a healed link with both nodes up, whatever the one before left behind.
async fn story(
    stage: &mut Stage,
    tell: &Teller,
    number: usize,
    relay: Option<&Path>,
) -> Option<Value> {
    let (name, title) = NAMES.get(number.checked_sub(1)?)?;
    tell.title(number, title);
    let told = tokio::time::timeout(STORY_WITHIN, async {
        stage.link.heal();
        for node in [&mut stage.alice, &mut stage.bob] {
            if !node.runs() {
                node.start(None)?;
                node.ready().await?;
            }
        }
        stage.connected().await?;
        match number {
            1 => scenes::clean(stage, tell).await,
            2 => scenes::lossy(stage, tell).await,
            3 => scenes::partition(stage, tell).await,
            4 => scenes::lost_revocation(stage, tell).await,
            5 => scenes::receiver_killed(stage, tell).await,
            6 => scenes::custodian_killed(stage, tell).await,
            _ => scenes::relay_killed(stage, tell, relay.context("no relay")?).await,
        }
    });
    let told = told
        .await
        .unwrap_or_else(|_| Err(anyhow::anyhow!("not over within {} s", STORY_WITHIN.as_secs())));
    Some(match told {
        Ok(Ending { outcome, mut figures }) => {
            tell.line(&format!("   ✓     promise kept: {outcome}"));
            figures.insert("name".to_owned(), (*name).into());
            figures.insert("ok".to_owned(), true.into());
            figures.insert("outcome".to_owned(), outcome.into());
            figures.into()
        }
        Err(error) => {
            tell.line(&format!("   ✗     PROMISE BROKEN: {error:#}"));
            json!({ "name": name, "ok": false, "outcome": format!("{error:#}") })
        }
    })
}

/// Waits until the user or the system asks this process to end.
#[cfg(unix)]
pub async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut int), Ok(mut term)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = int.recv() => {}
        _ = term.recv() => {}
    }
}

/// Waits until the user asks this process to end.
#[cfg(not(unix))]
pub async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending().await
    }
}
