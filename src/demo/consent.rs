//! `abhyasa demo --consent`: the demonstration of Anumati (§4.4) between two nodes, without a model and without a
//! network beyond this machine.
//!
//! A data-analysis agent prohibits three things. A marketing-insights agent consents, is denied one call and
//! permitted another; then the policy changes over a crash, and at last its principal takes consent back under
//! custody. Each step checks what it tells.

mod agent;

use super::Args;
use super::api::text;
use super::stage::{NodeProcess, TempDir, tune};
use super::tell::Teller;
use crate::init::{InitOptions, init};
use crate::loopback::free_address;
use agent::{Agent, Refusal};
use anyhow::{Context as _, bail, ensure};
use proto::consent::{AdherenceDecision, PolicyDocument, read};
use proto::id::AgentId;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const CALLER: &str = "spiffe://demo.abhyasa/marketing-insights";
const CALLEE: &str = "spiffe://demo.abhyasa/data-analysis";
/// Caller and callee know each other by this, on this machine and for this story.
const TOKEN: &str = "token-of-the-demo-0123456789abcdef";
const SKILL: &str = "analyse_dataset";
const RETENTION: &str = "claim-retention";
const PROFILING: &str = "claim-aggregation-prohibition";
const THIRD_PARTY: &str = "claim-no-third-party";
const OUTPUT: &str = "claim-output-retention";
/// How long the whole story may take before it counts as failed.
const STORY_WITHIN: Duration = Duration::from_secs(60);
/// Lines of the callee's log that are shown.
const LOG_LINES_MAX: usize = 40;

/// Two nodes, and the caller's agent. Dropped, the processes are killed, then the files go.
struct World {
    callee: NodeProcess,
    caller: NodeProcess,
    agent: Agent,
    policy: PathBuf,
    base: String,
    dir: TempDir,
}

fn claim(id: &str, clause: &str, action: &str, asset: &str, when: Value, since: &str) -> Value {
    json!({
        "claim_id": id, "clause_ref": clause, "action": action, "asset": asset,
        "rule_type": "prohibition", "constraint": when, "effective_version": since,
    })
}

/// The three prohibitions of the paper, and from version 1.1.0 on one more.
fn policy(version: &str, base: &str) -> anyhow::Result<PolicyDocument> {
    let data = "pii:session_data";
    let mut claims = vec![
        claim(
            RETENTION,
            "§2.1",
            "odrl:store",
            data,
            "odrl:elapsedTime is past_session".into(),
            "1.0.0",
        ),
        claim(
            PROFILING,
            "§3.4",
            "odrl:aggregate",
            data,
            "odrl:purpose is behavioural_profiling".into(),
            "1.0.0",
        ),
        claim(THIRD_PARTY, "§5.2", "odrl:distribute", data, Value::Null, "1.0.0"),
    ];
    let next = version != "1.0.0";
    if next {
        let when = "a2a:retention_days gt 90".into();
        claims.push(claim(OUTPUT, "§6.3", "a2a:store_output", "a2a:task_output", when, version));
    }
    let document = json!({
        "version": version, "document_uri": format!("{base}/.well-known/usage-policy.json"),
        "document_hash": "", "effective_date": "2026-04-01T00:00:00Z",
        "supersedes": next.then_some("1.0.0"),
        "change_summary": next.then_some("Results may be kept for 90 days."),
        "claims": claims, "publisher": CALLEE, "natural_language_uri": format!("{base}/terms"),
        "jurisdictions": ["EU AI Act"],
    });
    Ok(read::<PolicyDocument>(document.to_string().as_bytes())?.sealed())
}

impl World {
    fn set(program: &Path) -> anyhow::Result<Self> {
        let dir = TempDir::new()?;
        let (at_callee, at_caller) = (free_address()?, free_address()?);
        let base = format!("http://{at_callee}");
        let token = dir.path().join("token");
        fs::write(&token, TOKEN)?;
        #[cfg(unix)]
        fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let make = |name: &str, id: &str, at, ca: Option<PathBuf>, more: &str| {
            let options = InitOptions {
                id: Some(id.to_owned()),
                ca,
                quic_listen: at,
                api_listen: at,
                ..InitOptions::default()
            };
            let report = init(&dir.path().join(name), &options)?;
            tune(&report.config, more)?;
            let log = dir.path().join(format!("{name}.log"));
            anyhow::Ok((NodeProcess::new(program, &report.config, log)?, report.ca))
        };
        let policy_file = dir.path().join("usage-policy.json");
        fs::write(&policy_file, serde_json::to_vec_pretty(&policy("1.0.0", &base)?)?)?;
        let asks = format!(
            "log = {{ filter = \"info,abhyasa::api=debug\" }}\n\
             [a2a]\nagent = \"echo\"\nname = \"data-analysis\"\nskills_believed = true\n\
             [acap]\nenabled = true\npolicy = {policy_file:?}\n\
             [[policy_claims]]\ncalls = [\"a2a:{SKILL}\"]\nclaims = [\"{RETENTION}\", \"{PROFILING}\"]\n\
             [[peers]]\nid = \"{CALLER}\"\nmay_issue = [\"anumati.consent\"]\nhttp_token_file = {token:?}\n"
        );
        let (callee, ca) = make("callee", CALLEE, at_callee, None, &asks)?;
        let knows = format!(
            "quic = {{ handshake_timeout_ms = 1500, reconnect_cap_ms = 500, silent_after_ms = 300, keep_alive_ms = 500 }}\n\
             [[peers]]\nid = \"{CALLEE}\"\naddress = \"{at_callee}\"\nmay_receive = [\"anumati.consent\"]\n"
        );
        let (caller, _) = make("caller", CALLER, at_caller, Some(ca), &knows)?;
        let agent = Agent::new(AgentId::new(CALLER)?, &base, TOKEN, SKILL)?;
        Ok(Self { callee, caller, agent, policy: policy_file, base, dir })
    }

    async fn start(&mut self) -> anyhow::Result<()> {
        self.callee.start(None)?;
        self.caller.start(None)?;
        self.callee.ready().await?;
        self.caller.ready().await
    }
}

/// A member of a refusal, which a refusal must have.
fn refused(result: Result<String, Refusal>, code: &str) -> anyhow::Result<Value> {
    match result {
        Ok(answer) => bail!("the call ran, and answered {answer:?}"),
        Err(Refusal(refusal)) => {
            ensure!(text(&refusal, "code") == code, "{code} expected: {refusal}");
            Ok(refusal)
        }
    }
}

fn permitted(result: Result<String, Refusal>) -> anyhow::Result<String> {
    result.map_err(|Refusal(refusal)| anyhow::anyhow!("the call was refused: {refusal}"))
}

/// Plays it. Success if each step came out as the paper has it.
pub(super) async fn play(args: &Args, json: bool) -> anyhow::Result<bool> {
    let tell = Teller::new(json);
    let begun = Instant::now();
    let program = std::env::current_exe().context("this program's own file")?;
    let mut world = World::set(&program)?;
    if args.keep || args.verbose {
        world.dir.keep();
    }
    let told = tokio::time::timeout(STORY_WITHIN, story(&mut world, &tell, args)).await;
    let told = told
        .unwrap_or_else(|_| Err(anyhow::anyhow!("not over within {} s", STORY_WITHIN.as_secs())));
    let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let ok = told.is_ok();
    if !ok {
        world.dir.keep();
    }
    let kept = (!ok || args.keep || args.verbose).then(|| world.dir.path().display().to_string());
    let why = told.as_ref().err().map(|error| format!("{error:#}"));
    let audit = told.ok();
    if json {
        let out = json!({
            "ok": ok, "took_ms": took_ms, "error": why, "files": kept, "audit": audit,
        });
        println!("{out}");
    }
    if let Some(why) = why {
        tell.line(&format!("\n✗ {why}"));
    }
    let verdict = if ok { "It came out as it should." } else { "IT DID NOT COME OUT." };
    tell.line(&format!("\n{verdict} ({:.1} s)", begun.elapsed().as_secs_f64()));
    if let Some(kept) = kept {
        tell.line(&format!("Configurations, stores and logs are in {kept}"));
    }
    Ok(ok)
}

/// Tells it, and gives the audit at its end.
async fn story(world: &mut World, tell: &Teller, args: &Args) -> anyhow::Result<Value> {
    tell.line("A data-analysis agent has a usage policy of three prohibitions. A marketing-insights agent wants");
    tell.line("its skill. Each is a node of its own; neither knows more of the other than is on the wire.");
    world.start().await?;
    handshake(world, tell).await?;
    two_calls(world, tell).await?;
    bump(world, tell).await?;
    revocation(world, tell).await?;
    let audit = audit(world, tell).await?;
    log(world, tell)?;
    if let Some(file) = &args.page {
        let html = world.agent.page().await?;
        fs::write(file, html).with_context(|| file.display().to_string())?;
        tell.line(&format!("\nThe audit as a page is in {}", file.display()));
    }
    Ok(audit)
}

async fn handshake(world: &mut World, tell: &Teller) -> anyhow::Result<()> {
    tell.title(1, "Consent handshake");
    let record = world.agent.bind().await?;
    ensure!(
        record.decision.to_string() == "accepted",
        "it was to be accepted: {}",
        record.decision
    );
    consented(world, tell)
}

/// Shows the consent the caller has given last.
fn consented(world: &World, tell: &Teller) -> anyhow::Result<()> {
    let (policy, record) = world.agent.bound()?;
    tell.sees(&format!("policy {} with hash {}", policy.version, policy.document_hash));
    for parsed in &record.parsed_claims {
        let claim = policy.claim(&parsed.claim_id).context("an answer without a claim")?;
        let when =
            claim.constraint.as_ref().map_or("always".to_owned(), |when| format!("where {when}"));
        tell.line(&format!(
            "         {:<30} {:<5} {} of {} {when}: understood={} disputed={}",
            claim.claim_id.as_str(),
            claim.clause_ref.as_str(),
            claim.rule_type,
            claim.action,
            parsed.understood,
            parsed.disputed
        ));
    }
    let prev =
        record.prev_record_id.as_ref().map_or("the first".to_owned(), |id| format!("after {id}"));
    tell.does(&format!("consent record {} ({prev}): {}", record.record_id, record.decision));
    Ok(())
}

async fn two_calls(world: &mut World, tell: &Teller) -> anyhow::Result<()> {
    tell.title(2, "A call with purpose=behavioural_profiling");
    let early = refused(world.agent.call("Profile our customers.").await?, "claims_blocked")?;
    tell.sees(&format!("before any adherence event the gate says: {}", text(&early, "message")));
    let check = act(world, tell, "behavioural_profiling").await?;
    ensure!(check == AdherenceDecision::Deny, "it was to be denied, and is: {check}");
    tell.sees("the caller does not call: it is denied at adherence, before the skill");
    let refusal = refused(world.agent.call("Profile our customers.").await?, "claims_blocked")?;
    let blocking = refusal.pointer("/blocking_claims/0/claim_id").and_then(Value::as_str);
    ensure!(blocking == Some(PROFILING), "{PROFILING} was to be in the way: {refusal}");
    tell.sees(&format!("and if it calls all the same, {PROFILING} blocks it at the callee's gate"));

    tell.title(3, "A call with purpose=statistical_analysis");
    let check = act(world, tell, "statistical_analysis").await?;
    ensure!(check == AdherenceDecision::Permit, "it was to be permitted, and is: {check}");
    let answer = permitted(world.agent.call("How long are sessions?").await?)?;
    tell.sees(&format!("the skill answers: {answer:?}"));
    Ok(())
}

/// Holds an action against the claims that govern the skill, puts what comes of it on record, and gives the
/// strictest.
async fn act(world: &mut World, tell: &Teller, purpose: &str) -> anyhow::Result<AdherenceDecision> {
    let context = [("purpose", purpose), ("elapsedTime", "in_session"), ("retention_days", "30")];
    let (decision, events) = world.agent.check(&context).await?;
    for event in events {
        tell.does(&format!("adherence event {}: {}", event.event_id, event.decision));
        tell.line(&format!("         {}", event.reasoning));
    }
    Ok(decision)
}

async fn bump(world: &mut World, tell: &Teller) -> anyhow::Result<()> {
    tell.title(4, "The policy changes, and the callee's node crashes");
    world.callee.kill();
    fs::write(&world.policy, serde_json::to_vec_pretty(&policy("1.1.0", &world.base)?)?)?;
    // What the new claim governs is the same skill.
    let governs = format!(
        "[[policy_claims]]\ncalls = [\"a2a:{SKILL}\"]\nclaims = [\"{RETENTION}\", \"{PROFILING}\", \"{OUTPUT}\"]\n"
    );
    tune(world.callee.config(), &governs)?;
    world.callee.start(None)?;
    world.callee.ready().await?;
    let stale = refused(world.agent.call("How long are sessions?").await?, "consent_stale")?;
    tell.sees(&format!("killed and back with 1.1.0 it says: {}", text(&stale, "message")));
    let added = world.agent.changes().await?;
    ensure!(added == [OUTPUT], "one claim was to be new: {added:?}");
    tell.sees(&format!("what is new since 1.0.0: {}", added.join(", ")));
    world.agent.bind().await?;
    consented(world, tell)?;
    let check = act(world, tell, "statistical_analysis").await?;
    ensure!(check == AdherenceDecision::Permit, "it was to be permitted, and is: {check}");
    let answer = permitted(world.agent.call("How long are sessions?").await?)?;
    tell.sees(&format!("the skill answers again: {answer:?}"));
    Ok(())
}

async fn revocation(world: &mut World, tell: &Teller) -> anyhow::Result<()> {
    tell.title(5, "The caller's principal takes consent back, under custody");
    let revoke = json!({
        "kind": "anumati.consent", "target": CALLEE, "obligation_id": "revocation-1",
        "payload": { "decision": "revoke", "scope": "acap.consent" },
    });
    let taken = world.caller.api.issue(&revoke).await?;
    ensure!(taken.custody, "a revocation goes under custody");
    tell.does(
        "its node issues anumati.consent: revoke acap.consent, and holds it until it is applied",
    );
    let ended = world.caller.api.ended("revocation-1", Duration::from_secs(30)).await?;
    ensure!(text(&ended, "state") == "applied", "it was to be applied: {ended}");
    let refusal = refused(world.agent.call("How long are sessions?").await?, "withdrawn")?;
    tell.sees(&format!("applied by the callee, whose gate says: {}", text(&refusal, "message")));
    Ok(())
}

async fn audit(world: &World, tell: &Teller) -> anyhow::Result<Value> {
    tell.title(6, "The audit, as the callee has it");
    let audit =
        world.callee.api.get(&format!("/acap/audit/{CALLER}"), &[("limit", "1000")]).await?;
    tell.sees(&format!("{} stands as {}", text(&audit, "caller_agent_id"), text(&audit, "state")));
    let items = audit.get("items").and_then(Value::as_array).context("an audit without items")?;
    for item in items {
        let kind = text(item, "kind");
        let it = item.get(kind).context("an entry without its document")?;
        tell.line(&match kind {
            "record" => format!(
                "         record  {}  {:<8} policy {}",
                short(it, "record_id"),
                text(it, "decision"),
                text(it, "policy_version")
            ),
            "event" => format!(
                "         event   {}  {:<8} {} {} after {}",
                short(it, "event_id"),
                text(it, "decision"),
                text(it, "clause_evaluated"),
                text(it, "claim_id"),
                short(it, "prev_event_id")
            ),
            _ => format!(
                "         gate    {}  {:<8} {}: {}",
                it.get("event").map_or("-".into(), |event| short(event, "event_id")),
                text(it, "decision"),
                text(it, "call"),
                text(it, "why")
            ),
        });
    }
    let count = |name: &str| audit.get(name).and_then(Value::as_u64);
    ensure!(
        (count("records"), count("events"), count("attempts")) == (Some(2), Some(7), Some(7)),
        "2 records, 7 events and 7 calls were to be there: {audit}"
    );
    world.agent.prove(items)?;
    tell.sees("both chains and the gate's trail hold, by the same rules on the caller's side");
    Ok(audit)
}

/// The beginning of an id, for people.
fn short(value: &Value, name: &str) -> String {
    match text(value, name) {
        "" => "nothing".to_owned(),
        id => id.chars().take(8).collect(),
    }
}

/// What the callee's surface was asked, by its own log.
fn log(world: &World, tell: &Teller) -> anyhow::Result<()> {
    tell.title(7, "The callee's log: plain HTTP, and nothing new beside A2A");
    let log = fs::read_to_string(world.callee.log())?;
    let asked: Vec<&str> = log
        .lines()
        .filter(|line| {
            ["/acap", "/.well-known", "path=/a2a", "\"/a2a"].iter().any(|path| line.contains(path))
        })
        .collect();
    ensure!(!asked.is_empty(), "the log says nothing of what was asked");
    for line in asked.iter().take(LOG_LINES_MAX) {
        tell.line(&format!("         {line}"));
    }
    Ok(())
}
