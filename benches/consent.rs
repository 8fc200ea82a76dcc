//! What consent costs: the rows of the paper's table (Anumati §4.3) beside the author's implementation, what
//! signatures add, a decision at the gate, and a handshake over loopback.
//!
//! `cargo bench --bench consent`; with `ABHYASA_ACAP_SOURCE`, a checkout of
//! github.com/ravikiran438/agent-consent-protocol, its `tests/bench_validators.py` runs in turn with ours.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[path = "../tests/common/peers.rs"]
#[allow(dead_code, unreachable_pub, reason = "shared with tests that use other parts")]
mod peers;

use abhyasa::acap::jws::{Signed as _, SigningKey};
use abhyasa::acap::keys::{KeySet, SignaturePolicy, Times, verify};
use abhyasa::api;
use abhyasa::config::NodeConfig;
use abhyasa::demo::stage::tune;
use abhyasa::init::{InitOptions, init};
use abhyasa::loopback::free_address;
use abhyasa::node::{Builder, NodeHandle};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair};
use clap::Parser as _;
use futures_util::stream::{self, StreamExt as _};
use proto::consent::{
    AdherenceEvent, ConsentRecord, PolicyDocument, read, validate_chain, validate_trail,
};
use proto::id::AgentId;
use proto::time::Time;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Callers whose documents are on their way while the gate's callers are stored.
const STORING: usize = 512;
/// Calls at the gate at a time, where that is more than one.
const AT_ONCE: usize = 64;
const CALLEE: &str = "https://callee.example.com";
const TOKEN: &str = "token-of-the-bench-0123456789";

#[derive(Debug, clap::Parser)]
struct Args {
    /// Turns of ours and theirs; each row is the median of its turns.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Callers whose consent is stored before the gate is measured.
    #[arg(long, default_value_t = 10_000)]
    callers: usize,
    /// Calls of the gate, and handshakes.
    #[arg(long, default_value_t = 2_000)]
    calls: usize,
    /// Given by cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

/// The median and the 99th percentile, in microseconds.
type Figure = (f64, f64);

fn figure(mut times: Vec<Duration>) -> Figure {
    times.sort_unstable();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    (us(times[times.len() / 2]), us(times[times.len() * 99 / 100]))
}

fn measure(samples: usize, mut work: impl FnMut()) -> Figure {
    let time = |work: &mut dyn FnMut()| {
        let begun = Instant::now();
        work();
        begun.elapsed()
    };
    for _ in 0..samples / 10 {
        time(&mut work);
    }
    figure((0..samples).map(|_| time(&mut work)).collect())
}

fn print(name: &str, (median, p99): Figure) {
    println!("{name:<58} {median:>10.2} {p99:>10.2}");
}

fn heading(title: &str) {
    println!("\n{title:<58} {:>10} {:>10}", "median us", "p99 us");
}

fn document<T: serde::de::DeserializeOwned>(value: &Value) -> T {
    read(value.to_string().as_bytes()).unwrap()
}

/// As `make_policy` of the reference's bench.
fn policy(claims: usize) -> PolicyDocument {
    let claim = |at: usize| {
        json!({
            "claim_id": format!("claim-{at:04}"), "clause_ref": format!("§{at}"),
            "action": "odrl:aggregate", "asset": "pii:session_data", "rule_type": "prohibition",
            "constraint": "odrl:purpose isNot behavioral_profiling", "effective_version": "1.0.0",
        })
    };
    document(&json!({
        "version": "1.0.0", "document_uri": "https://example.com/policy.json",
        "document_hash": "sha256:placeholder", "effective_date": "2026-04-01T00:00:00Z",
        "claims": (0..claims).map(claim).collect::<Vec<_>>(), "publisher": "https://example.com/agent",
        "natural_language_uri": "https://example.com/terms", "jurisdictions": [],
    }))
}

fn record(policy: &PolicyDocument, id: &str, prev: Option<&str>, more: &Value) -> ConsentRecord {
    let answer = |id: &str| json!({ "claim_id": id, "understood": true, "disputed": false });
    let answers: Vec<Value> =
        policy.claims.iter().map(|claim| answer(claim.claim_id.as_str())).collect();
    let mut record = json!({
        "record_id": id, "prev_record_id": prev, "caller_agent_id": "did:agent:caller",
        "callee_agent_id": CALLEE, "policy_version": policy.version,
        "policy_hash": policy.computed_hash(), "parsed_claims": answers, "decision": "accepted",
        "accepted_at": "2026-04-01T10:00:00Z", "valid_until": "on_version_bump",
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        record[name] = value.clone();
    }
    document(&record)
}

/// As `make_consent_chain`.
fn chain(policy: &PolicyDocument, length: usize) -> Vec<ConsentRecord> {
    let id = |at: usize| format!("rec-{at:04}");
    let of = |at: usize| {
        let prev = at.checked_sub(1).map(id);
        let accepted = format!("2026-04-01T10:{at:02}:00Z");
        record(policy, &id(at), prev.as_deref(), &json!({ "accepted_at": accepted }))
    };
    (0..length).map(of).collect()
}

fn event(
    record: &ConsentRecord,
    id: &str,
    prev: Option<&str>,
    claim: usize,
    at: &str,
) -> AdherenceEvent {
    document(&json!({
        "event_id": id, "prev_event_id": prev, "consent_record_id": record.record_id,
        "action": "odrl:aggregate", "clause_evaluated": format!("§{claim}"),
        "claim_id": record.parsed_claims[claim].claim_id, "decision": "permit",
        "reasoning": "benchmark run", "timestamp": at,
    }))
}

/// As `make_trail`, but that time does not run backwards in it, which the reference does not look at. `id` names
/// the events.
fn trail(
    record: &ConsentRecord,
    length: usize,
    id: impl Fn(usize) -> String,
) -> Vec<AdherenceEvent> {
    let of = |at: usize| {
        let prev = at.checked_sub(1).map(&id);
        let time = format!("2026-04-01T10:{:02}:{:02}Z", at / 60, at % 60);
        event(record, &id(at), prev.as_deref(), at % record.parsed_claims.len(), &time)
    };
    (0..length).map(of).collect()
}

fn in_order(at: usize) -> String {
    format!("evt-{at:05}")
}

/// Ids without an order, as those of UUIDv4.
fn scattered(at: usize) -> String {
    let bits = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        "{:08x}-{:04x}-4000-8000-{:012x}",
        bits >> 32,
        bits & 0xffff,
        bits.rotate_left(17) >> 16
    )
}

/// The paper's rows, by the names that the reference prints.
fn ours() -> Vec<(String, Figure)> {
    let mut rows = Vec::new();
    for claims in [10, 50, 200] {
        let policy = policy(claims);
        let figure = measure(2_000, || drop(black_box(black_box(&policy).computed_hash())));
        rows.push((format!("compute_policy_hash ({claims} claims)"), figure));
    }
    let policy = policy(10);
    for length in [1, 5, 20] {
        let chain = chain(&policy, length);
        let figure =
            measure(2_000, || validate_chain(black_box(&chain), |_| Some(&policy)).unwrap());
        rows.push((format!("validate_consent_chain (len {length})"), figure));
    }
    let chain = chain(&policy, 1);
    for length in [10, 100, 1_000] {
        let trail = trail(&chain[0], length, in_order);
        let figure = measure(2_000, || validate_trail(black_box(&trail), &chain).unwrap());
        rows.push((format!("validate_adherence_trail (len {length})"), figure));
    }
    rows
}

/// What the reference's own bench prints.
fn theirs(python: &Path, source: &str) -> Vec<(String, Figure)> {
    let script = Path::new(source).join("tests/bench_validators.py");
    let path = Path::new(source).join("src");
    let mut command = Command::new(python);
    let output = peers::run(command.arg(script).env("PYTHONPATH", path)).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let row = |line: &str| {
        let (name, figures) = line.split_once(')')?;
        let mut figures = figures.split("μs").map(|figure| figure.trim().parse::<f64>());
        Some((format!("{name})"), (figures.next()?.ok()?, figures.next()?.ok()?)))
    };
    text.lines().filter_map(row).collect()
}

fn middle(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn table(args: &Args) {
    let source = std::env::var("ABHYASA_ACAP_SOURCE").ok();
    let python = source.as_ref().map(|_| {
        let constraints = "tests/consent/constraints.txt";
        peers::python_312("consent-peers-2", &["pydantic"], "pydantic", constraints)
    });
    let mut rows: BTreeMap<String, [Vec<Figure>; 2]> = BTreeMap::new();
    let mut order = Vec::new();
    for _ in 0..args.rounds {
        for (name, figure) in ours() {
            if !rows.contains_key(&name) {
                order.push(name.clone());
            }
            rows.entry(name).or_default()[0].push(figure);
        }
        if let (Some(python), Some(source)) = (&python, &source) {
            for (name, figure) in theirs(python, source) {
                rows.get_mut(&name).unwrap_or_else(|| panic!("{name} is no row of ours"))[1]
                    .push(figure);
            }
        }
    }
    let of = |figures: &[Figure]| {
        let (medians, p99s) = figures.iter().copied().unzip();
        (middle(medians), middle(p99s))
    };
    heading("without signatures (Anumati §4.3)");
    for name in &order {
        let [ours, theirs] = &rows[name];
        let (median, p99) = of(ours);
        match theirs.is_empty() {
            true => print(name, (median, p99)),
            false => {
                let (their_median, their_p99) = of(theirs);
                println!(
                    "{name:<58} {median:>10.2} {p99:>10.2}   reference {their_median:>8.1} {their_p99:>8.1}   {:>5.1} x",
                    their_median / median
                );
            }
        }
    }
    if source.is_none() {
        println!("the reference was not measured: ABHYASA_ACAP_SOURCE is not set");
    }
}

fn signatures() {
    heading("with signatures");
    let (policy, random) = (policy(10), SystemRandom::new());
    let eddsa = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
    let es256 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
    for (name, der) in [("EdDSA", eddsa.as_ref()), ("ES256", es256.as_ref())] {
        let key = SigningKey::from_pkcs8(der, None).unwrap();
        let did = key.public().to_did();
        let (keys, signer) = (KeySet::from_did_key(&did).unwrap(), AgentId::new(&did).unwrap());
        let now = Time::parse_rfc3339("2026-04-02T00:00:00Z").unwrap();
        let times = Times { signed: now, seen: now };
        let sign = |record: &ConsentRecord| record.clone().signed(&key).unwrap();
        let good = |record: &ConsentRecord| {
            verify(record, &signer, &keys, SignaturePolicy::Required, times).unwrap();
        };
        let chain: Vec<ConsentRecord> = chain(&policy, 20).iter().map(sign).collect();
        print(
            &format!("sign a record of 10 claims ({name})"),
            measure(1_000, || drop(sign(&chain[0]))),
        );
        print(
            &format!("verify a record of 10 claims ({name})"),
            measure(1_000, || good(&chain[0])),
        );
        let whole = measure(200, || {
            chain.iter().for_each(good);
            validate_chain(&chain, |_| Some(&policy)).unwrap();
        });
        print(&format!("validate_consent_chain (len 20) and its signatures ({name})"), whole);
        let good = |event: &AdherenceEvent| {
            verify(event, &signer, &keys, SignaturePolicy::Required, times).unwrap();
        };
        let trail: Vec<AdherenceEvent> = trail(&chain[0], 1_000, in_order)
            .into_iter()
            .map(|event| event.signed(&key).unwrap())
            .collect();
        print(&format!("verify an event ({name})"), measure(1_000, || good(&trail[0])));
        let whole = measure(20, || {
            trail.iter().for_each(good);
            validate_trail(&trail, &chain).unwrap();
        });
        print(&format!("validate_adherence_trail (len 1000) and its signatures ({name})"), whole);
    }
    let chain = chain(&policy, 1);
    let trail = trail(&chain[0], 1_000, scattered);
    let figure = measure(2_000, || validate_trail(black_box(&trail), &chain).unwrap());
    print("without: validate_adherence_trail (len 1000, ids without order)", figure);
}

fn caller(at: usize) -> AgentId {
    AgentId::new(&format!("spiffe://bench/caller-{at:05}")).unwrap()
}

/// A callee with the policy of ten claims, all of which govern the one skill.
fn callee(dir: &Path, policy: &PolicyDocument) -> NodeConfig {
    let file = dir.join("usage-policy.json");
    std::fs::write(&file, serde_json::to_vec(policy).unwrap()).unwrap();
    let token = dir.join("token");
    std::fs::write(&token, TOKEN).unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let options = InitOptions {
        id: Some("spiffe://bench/callee".into()),
        quic_listen: free_address().unwrap(),
        api_listen: free_address().unwrap(),
        ..InitOptions::default()
    };
    let config = init(&dir.join("callee"), &options).unwrap().config;
    let claims: Vec<&str> = policy.claims.iter().map(|claim| claim.claim_id.as_str()).collect();
    let peer = caller(0);
    let more = format!(
        "[a2a]\nagent = \"echo\"\n[acap]\nenabled = true\npolicy = {file:?}\ncallers_max = 100000\n\
         [[policy_claims]]\ncalls = [\"a2a:analyse\"]\nclaims = {claims:?}\n\
         [[peers]]\nid = \"{peer}\"\nhttp_token_file = {token:?}\n"
    );
    tune(&config, &more).unwrap();
    NodeConfig::load(&config).unwrap()
}

/// Consent of one caller, and a permit for each claim.
async fn store(node: NodeHandle, policy: PolicyDocument, at: usize) {
    let caller = caller(at);
    let more = json!({ "caller_agent_id": caller, "callee_agent_id": policy.publisher });
    let record = record(&policy, "rec-0", None, &more);
    node.probe_consent(&caller, &serde_json::to_vec(&record).unwrap()).await.unwrap();
    for event in trail(&record, policy.claims.len(), in_order) {
        node.probe_adherence(&caller, &serde_json::to_vec(&event).unwrap()).await.unwrap();
    }
}

async fn gate(args: &Args, node: &NodeHandle, policy: &PolicyDocument) {
    let begun = Instant::now();
    stream::iter(1..=args.callers)
        .for_each_concurrent(STORING, |at| store(node.clone(), policy.clone(), at))
        .await;
    let (callers, took) = (args.callers, begun.elapsed().as_secs_f64());
    heading(&format!("gate, {callers} callers stored in {took:.1} s, 10 claims"));
    let (mut decided, mut kept) = (Vec::new(), Vec::new());
    for call in 0..args.calls {
        // Another caller each time: nobody's chains are warm.
        let caller = caller(1 + call * 7_919 % callers);
        let begun = Instant::now();
        node.probe_decision(&caller, "a2a:analyse").await.unwrap();
        decided.push(begun.elapsed());
        let begun = Instant::now();
        node.probe_admission(&caller, "a2a:analyse").await.unwrap();
        kept.push(begun.elapsed());
    }
    print("decision, in memory and from the governed state", figure(decided));
    print("the call admitted: decision, its event on disk (fsync)", figure(kept));
    let begun = Instant::now();
    stream::iter(0..args.calls)
        .for_each_concurrent(AT_ONCE, async |call| {
            node.probe_admission(&caller(1 + call * 7_919 % callers), "a2a:analyse").await.unwrap();
        })
        .await;
    let rate = args.calls as f64 / begun.elapsed().as_secs_f64();
    println!("calls admitted a second, {AT_ONCE} at a time: {rate:.0}");
}

async fn handshakes(args: &Args, node: &NodeHandle, policy: &PolicyDocument) {
    let base = format!("http://{}", node.config().api.listen);
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let (mut fetch, mut consent, mut adhere, mut whole) = (vec![], vec![], vec![], vec![]);
    let me = caller(0);
    let post = async |path: &str, body: &Value| {
        let request = http.post(format!("{base}{path}")).bearer_auth(TOKEN).json(body);
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 201, "{}", answer.text().await.unwrap());
    };
    let first = Time::parse_rfc3339("2026-04-01T10:00:00Z").unwrap();
    // One time bound each, so that the next may follow: what holds without end is not consented to anew.
    let count = args.calls.min(5_000);
    let mut prev: Option<String> = None;
    for at in 0..count {
        let time = first.after(Duration::from_secs(at as u64)).to_rfc3339();
        let begun = Instant::now();
        let url = format!("{base}/.well-known/usage-policy.json");
        let bytes = http.get(url).send().await.unwrap().bytes().await.unwrap();
        let fetched: PolicyDocument = read(&bytes).unwrap();
        fetched.verify_hash().unwrap();
        let got = begun.elapsed();
        let id = format!("rec-{at}");
        let record = record(
            &fetched,
            &id,
            prev.as_deref(),
            &json!({
                "caller_agent_id": me, "callee_agent_id": policy.publisher, "accepted_at": time,
                "valid_until": "2099-01-01T00:00:00Z",
            }),
        );
        post("/acap/consent", &serde_json::to_value(&record).unwrap()).await;
        let consented = begun.elapsed();
        let event = event(&record, &format!("evt-{at}"), None, 0, &time);
        post("/acap/adherence", &serde_json::to_value(&event).unwrap()).await;
        let adhered = begun.elapsed();
        fetch.push(got);
        consent.push(consented - got);
        adhere.push(adhered - consented);
        whole.push(adhered);
        prev = Some(id);
    }
    heading(&format!("handshake over loopback HTTP, {count} of them, both sides"));
    print("policy fetched and its hash checked", figure(fetch));
    print("consent: record made, posted, durable (fsync)", figure(consent));
    print("adherence: event made, posted, durable (fsync)", figure(adhere));
    print("the whole handshake", figure(whole));
}

fn main() {
    let args = Args::parse();
    table(&args);
    signatures();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut policy = policy(10);
        policy.publisher = AgentId::new("spiffe://bench/callee").unwrap();
        let policy = policy.sealed();
        let config = callee(dir.path(), &policy);
        let listener = tokio::net::TcpListener::bind(config.api.listen).await.unwrap();
        let running = Builder::new(config).start().await.unwrap();
        let node = running.handle();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let served =
            tokio::spawn(api::serve(listener, node.clone(), async { drop(stopped.await) }));
        handshakes(&args, &node, &policy).await;
        gate(&args, &node, &policy).await;
        drop(stop);
        served.await.unwrap().unwrap();
        running.stop().await.unwrap();
    });
}
