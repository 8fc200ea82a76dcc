//! The walks of the README, as a reader pastes them: in one directory, one after the other, and what
//! each prints.
#![cfg(unix)]
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

#[allow(dead_code, unreachable_pub, reason = "the other tests use the rest")]
#[path = "common/peers.rs"]
mod peers;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long one walk may take, with what it installs.
const WALK_TIME_MAX: Duration = Duration::from_secs(240);
/// Marks the block that follows.
const MARK: &str = "<!-- walk -->\n```sh\n";

/// One block, and what stands below it.
struct Walk {
    script: String,
    prints: Vec<String>,
}

fn walks(readme: &str) -> Vec<Walk> {
    let parts = readme.split(MARK).skip(1);
    let walks = parts.map(|part| {
        let (script, rest) = part.split_once("```\n").expect("an end of the block");
        let output = rest.strip_prefix("```\n").and_then(|rest| rest.split_once("```\n"));
        let prints = output.map_or("", |(lines, _)| lines).lines().map(str::to_owned).collect();
        Walk { script: script.to_owned(), prints }
    });
    walks.collect()
}

fn run(dir: &Path, script: &str) -> String {
    let programs = Path::new(env!("CARGO_BIN_EXE_abhyasa")).parent().unwrap();
    // One of the walks needs a newer Python than the one on the path may be.
    let python = dir.join("python");
    if !python.exists() {
        let base = peers::find_312().unwrap();
        std::fs::create_dir(&python).unwrap();
        let script = format!("#!/bin/sh\nexec {} \"$@\"\n", base.display());
        std::fs::write(python.join("python3"), script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(python.join("python3"), mode).unwrap();
    }
    let path = [programs, &python].map(|place| place.display().to_string()).join(":");
    let path = format!("{path}:{}", std::env::var("PATH").unwrap());
    let output = dir.join("walk.log");
    let file = std::fs::File::create(&output).unwrap();
    let mut bash = Command::new("bash");
    std::os::unix::process::CommandExt::process_group(&mut bash, 0);
    let mut child = bash
        .args(["-euc", script])
        .current_dir(dir)
        .env("PATH", path)
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file)
        .spawn()
        .unwrap();
    let begun = Instant::now();
    let ended = loop {
        if let Some(ended) = child.try_wait().unwrap() {
            break Some(ended);
        }
        if begun.elapsed() > WALK_TIME_MAX {
            let _ = child.kill();
            break None;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let printed = std::fs::read_to_string(&output).unwrap();
    if !ended.is_some_and(|ended| ended.success()) {
        // With what it started in the background.
        let group = format!("-{}", child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
        let log = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
        let logs =
            ["agent.log", "host.log", "a.log", "b.log", "call.log", "c.log", "d.log", "relay.log"]
                .map(log)
                .join("\n");
        panic!("{ended:?}\n{script}\n{printed}\n{logs}");
    }
    printed
}

/// The walks name their ports, as a reader would use them.
fn ports_are_free() {
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    let local = |port: u16| (Ipv4Addr::LOCALHOST, port);
    for port in [8433, 8434] {
        let bound = TcpListener::bind(local(port));
        assert!(bound.is_ok(), "the walks need TCP port {port} of this machine: {bound:?}");
    }
    for port in [4433, 4434, 4443] {
        let bound = UdpSocket::bind(local(port));
        assert!(bound.is_ok(), "the walks need UDP port {port} of this machine: {bound:?}");
    }
}

#[test]
fn the_walks_of_the_readme_go_as_they_say() {
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md"));
    let walks = walks(&readme.unwrap());
    assert_eq!(walks.len(), 6, "the set-up and what follows");
    ports_are_free();
    let dir = tempfile::tempdir().unwrap();
    for Walk { script, prints } in walks {
        let printed = run(dir.path(), &script);
        for line in prints {
            assert!(printed.contains(&line), "{line:?} is missing in:\n{printed}");
        }
    }
}
