use super::{Server, config, peer_entry, token_file};
use abhyasa::node::Builder;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

fn abhyasa() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_abhyasa"));
    command.env_remove("ABHYASA_CONFIG").stdin(Stdio::null());
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Runs a command line against a node; the words are split at spaces.
async fn run(server: &Server, line: &str) -> Output {
    let mut command = abhyasa();
    command.args(line.split(' ')).arg("--api").arg(format!("http://{}", server.address));
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

async fn json_of(server: &Server, line: &str) -> Value {
    let output = run(server, &format!("{line} --json")).await;
    assert!(output.status.success(), "{line}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{line}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_speaks_to_people_and_to_machines() {
    let root = tempfile::tempdir().unwrap();
    let (a, b) = Server::pair(root.path()).await;

    let output =
        run(&a, "issue anumati.consent spiffe://t/b --scope s --revoke --id ob-1 --wait 10").await;
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("ob-1: applied\n", Some(0)));
    let again =
        json_of(&a, "issue anumati.consent spiffe://t/b --scope s --revoke --id ob-1").await;
    assert_eq!(again["existing"], true);
    let file = root.path().join("payload.json");
    std::fs::write(&file, r#"{"weight_delta": -0.25, "weight_key": "w"}"#).unwrap();
    let update = json_of(
        &a,
        &format!("issue phala.belief_update spiffe://t/b --payload @{} --wait 10", file.display()),
    )
    .await;
    assert_eq!(update["outcome"]["state"], "applied");
    let batch = root.path().join("batch.json");
    let one = |id: &str, target: &str| json!({ "obligation_id": id, "kind": super::BELIEF, "target": target, "payload": { "weight_delta": 0.1, "weight_key": "w" } });
    std::fs::write(&batch, json!([one("g-1", "spiffe://t/b"), one("g-2", "x")]).to_string())
        .unwrap();
    let output = run(&a, &format!("issue --file {}", batch.display())).await;
    let told = text(&output.stdout);
    assert!(
        told.contains("g-1: not admissible (AC-1)") && told.ends_with("1 issued, 1 refused\n"),
        "{told}"
    );
    assert_eq!(output.status.code(), Some(1));

    let status = text(&run(&a, "status ob-1").await.stdout);
    assert!(status.contains("state          applied\n"), "{status}");
    assert_eq!(json_of(&b, "status ob-1").await["role"], "receiver");
    let terminal = text(&run(&a, "terminal").await.stdout);
    assert!(terminal.starts_with("ENDED") && terminal.contains("ob-1"), "{terminal}");
    assert_eq!(json_of(&a, "terminal --limit 1").await["items"].as_array().unwrap().len(), 1);
    assert!(text(&run(&a, "terminal --limit 1").await.stdout).contains("more follow: --after "));
    assert_eq!(text(&run(&a, "pending").await.stdout), "nothing is pending\n");
    assert_eq!(text(&run(&a, "escalations").await.stdout), "no escalations\n");
    assert_eq!(json_of(&a, "reconciliation list --all").await, json!({ "items": [] }));
    assert_eq!(json_of(&b, "weights --role receiver").await["items"][0]["weight_key"], "w");
    assert_eq!(
        json_of(&b, "authorizations --agent spiffe://t/a").await["items"][0]["allowed"],
        false
    );
    let peers = text(&run(&a, "peers").await.stdout);
    assert!(peers.starts_with("PEER") && peers.contains("spiffe://t/b  true"), "{peers}");

    // A check says yes by its exit code, and by nothing else.
    let output = run(&b, "authorizations check --agent spiffe://t/a --scope s").await;
    assert_eq!(
        (text(&output.stdout).as_str(), output.status.code()),
        ("not allowed: withheld\n", Some(1))
    );
    let output = run(&b, "authorizations check --agent spiffe://t/a --scope t --json").await;
    assert_eq!((text(&output.stdout).contains("unknown"), output.status.code()), (true, Some(1)));

    // What was learned goes no further than its time.
    let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let now = abhyasa::proto::time::Time::default().after(unix).to_rfc3339();
    let learned = |id: &str, from: &str| json!({ "id": id, "target_agent_id": "spiffe://t/b", "weight_key": "w", "weight_delta": -1.5, "valid_from": from, "ttl_seconds": 60 });
    let file = root.path().join("update.json");
    std::fs::write(&file, learned("bu-1", &now).to_string()).unwrap();
    let output = run(&a, &format!("belief {} --wait 10", file.display())).await;
    let told = (text(&output.stdout), output.status.code());
    assert_eq!(told, ("bu-1: applied (clipped to -1.0)\n".to_owned(), Some(0)));
    std::fs::write(&file, learned("bu-2", "2026-01-01T00:00:00Z").to_string()).unwrap();
    let output = run(&a, &format!("belief {}", file.display())).await;
    let told = text(&output.stderr);
    assert!(told.contains("bu-2 holds until 2026-01-01T00:01:00Z"), "{told}");
    assert_eq!(output.status.code(), Some(1));

    // Errors say what to do; for machines they are JSON.
    let output = run(&a, "issue anumati.consent spiffe://t/x --scope s --revoke").await;
    assert!(
        text(&output.stderr).contains("hint: list it under [[peers]]"),
        "{}",
        text(&output.stderr)
    );
    let output = run(&a, "status never --json").await;
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!((&error["error"]["code"], output.status.code()), (&json!("not_found"), Some(1)));
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_works_through_the_inbox() {
    let root = tempfile::tempdir().unwrap();
    let a = Server::alone(root.path()).await;
    let output =
        run(&a, "issue anumati.consent spiffe://t/b --scope s --revoke --id ob-1 --wait 15").await;
    assert_eq!(
        (text(&output.stdout).as_str(), output.status.code()),
        ("ob-1: escalated, unreachable\n", Some(1))
    );
    let inbox = text(&run(&a, "escalations").await.stdout);
    assert!(
        inbox.contains("ob-1") && inbox.contains("fail_closed") && inbox.contains("unreachable"),
        "{inbox}"
    );
    assert_eq!(text(&run(&a, "escalations ack ob-1").await.stdout), "ob-1: acknowledged\n");
    assert_eq!(json_of(&a, "escalations").await["items"], json!([]));
    assert!(json_of(&a, "escalations list --all").await["items"][0]["acknowledged_at_ms"].is_u64());
    assert_eq!(run(&a, "escalations ack ob-2").await.status.code(), Some(1));
    assert_eq!(run(&a, "reconciliation resolve 1 --as noted").await.status.code(), Some(1));
    a.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_from_a_file_and_nodes_that_are_away_get_a_hint() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("operator.token");
    token_file(&file, "operator-0123456789");
    let a = Server::start(Builder::new(config(
        root.path(),
        "a",
        &format!("token_file = {file:?}"),
        &peer_entry("b", None, ""),
    )))
    .await;
    let output = run(&a, "peers").await;
    assert!(text(&output.stderr).contains("--token-file"), "{}", text(&output.stderr));
    assert!(run(&a, &format!("peers --token-file {}", file.display())).await.status.success());
    let address = a.address;
    a.stop().await;
    let output = abhyasa().args(["peers", "--api", &format!("http://{address}")]).output().unwrap();
    let told = text(&output.stderr);
    assert!(
        told.contains(&format!("no node answers at http://{address}"))
            && told.contains("abhyasa node --config"),
        "{told}"
    );
    let output =
        abhyasa().args(["peers", "--config"]).arg(root.path().join("none.toml")).output().unwrap();
    assert!(text(&output.stderr).contains("abhyasa init DIR"), "{}", text(&output.stderr));
}

/// Kills the child when the test ends, however it does.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(unix)]
#[test]
fn a_directory_made_by_init_runs_until_a_signal() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("n");
    let init = |more: &[&str]| {
        let fixed = [
            "--listen",
            "127.0.0.1:0",
            "--api-listen",
            "127.0.0.1:0",
            "--peer",
            "spiffe://t/b=127.0.0.1:9",
        ];
        abhyasa().arg("init").arg(&dir).args(fixed).args(more).output().unwrap()
    };
    let told = text(&init(&[]).stdout);
    assert!(told.contains("start it:    abhyasa node --config"), "{told}");
    assert!(text(&init(&[]).stderr).contains("--force"));
    let report: Value = serde_json::from_slice(&init(&["--force", "--json"]).stdout).unwrap();
    let config = report["config"].as_str().unwrap();

    let node = abhyasa()
        .args(["node", "--json", "--config", config])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut node = Child(node);
    let mut lines = BufReader::new(node.0.stdout.take().unwrap()).lines();
    let started: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let api = format!("http://{}", started["api"].as_str().unwrap());
    let ready =
        |line: &str| abhyasa().args(line.split(' ')).args(["--api", &api]).output().unwrap();
    let issued = (0..100)
        .map(|_| ready("issue anumati.consent spiffe://t/b --scope s --revoke --id ob-1"))
        .find(|output| output.status.success());
    assert!(issued.is_some());

    // Another cannot take its place: the API's address is in use.
    let taken = started["api"].as_str().unwrap();
    let text_of = std::fs::read_to_string(config).unwrap();
    let second = dir.join("second.toml");
    let listen = format!("[api]\nlisten = \"{taken}\"\n");
    let start = text_of.find("[api]").unwrap();
    let end = start + text_of[start..].find("\nlisten").unwrap() + 1;
    let end = end + text_of[end..].find('\n').unwrap();
    std::fs::write(&second, format!("{}{listen}{}", &text_of[..start], &text_of[end..])).unwrap();
    let output = abhyasa().args(["node", "--config"]).arg(&second).output().unwrap();
    assert!(
        text(&output.stderr).contains("another node may run there"),
        "{}",
        text(&output.stderr)
    );

    let pid = node.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert!(node.0.wait().unwrap().success(), "a signal is no failure");

    // What was issued is there after a restart.
    let node = abhyasa()
        .args(["node", "--json", "--config", config])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut node = Child(node);
    let mut lines = BufReader::new(node.0.stdout.take().unwrap()).lines();
    let started: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let api = format!("http://{}", started["api"].as_str().unwrap());
    let output = abhyasa().args(["status", "ob-1", "--json", "--api", &api]).output().unwrap();
    assert!(text(&output.stdout).contains(r#""state":"pending""#), "{}", text(&output.stderr));
}

#[test]
fn completions_and_help_are_there() {
    let output = abhyasa().args(["completions", "bash"]).output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("abhyasa"));
    let help = text(&abhyasa().arg("--help").output().unwrap().stdout);
    for command in [
        "init",
        "node",
        "issue",
        "belief",
        "status",
        "pending",
        "terminal",
        "escalations",
        "reconciliation",
        "authorizations",
        "weights",
        "peers",
        "events",
        "demo",
        "bench",
        "completions",
    ] {
        assert!(help.contains(&format!("\n  {command}")), "{command}: {help}");
    }
    let output = abhyasa().args(["issue", "anumati.consent"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "a wrong command line");
}
