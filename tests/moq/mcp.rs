//! MCP over MOQT with a client of another library, which knows the draft's layout and nothing of us.

use crate::common::relay::aiomoqt;
use crate::common::{PATIENCE, World, peer_toml, start};
use abhyasa::config::NodeConfig;
use rcgen::{
    BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use serde_json::Value;
use std::path::Path;

const COUNT: usize = 20;

/// Gives nodes certificates of a CA of their own, with keys of P-256: the client's TLS takes no other server.
fn with_p256(nodes: &[&NodeConfig]) {
    let key = || KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    let ca_key = key();
    let ca = params.self_signed(&ca_key).unwrap();
    let issuer = Issuer::new(params, ca_key);
    for node in nodes {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::URI(node.id.as_str().try_into().unwrap())];
        let key = key();
        let cert = params.signed_by(&key, &issuer).unwrap();
        std::fs::write(&node.quic.cert, cert.pem()).unwrap();
        std::fs::write(&node.quic.key, key.serialize_pem()).unwrap();
        std::fs::write(&node.quic.ca, ca.pem()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_of_another_library_finds_a_session_and_talks() {
    let world = World::new();
    let server = "[moq]\nenabled = true\n[[mcp_servers]]\nname = \"echo\"\ncommand = [\"cat\"]\n";
    let alice = world.config("alice", &format!("{server}{}", peer_toml("bob", None)));
    let bob = world.config("bob", "");
    with_p256(&[&alice, &bob]);
    let alice = start(alice).await;
    let url = format!("moqt://{}/", alice.handle().quic_address());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/moq/mcp.py");
    for server in ["-", "echo"] {
        let mut command = tokio::process::Command::new(aiomoqt());
        command.arg(&script).arg(&url).args([&bob.quic.cert, &bob.quic.key]);
        command.args([server, &COUNT.to_string()]).kill_on_drop(true);
        let output = tokio::time::timeout(2 * PATIENCE, command.output()).await;
        let output = output.expect("it ends in time").unwrap();
        let (said, complained) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{said}\n{complained}");
        let events: Vec<Value> =
            said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(events.len(), COUNT + 2, "{said}");
        assert_eq!(events[0]["document"]["result"]["server_info"]["name"], "echo");
        for (event, n) in events[1..=COUNT].iter().zip(0u64..) {
            assert_eq!(event["group"], n, "{event}");
            assert_eq!(event["message"]["params"]["n"], n, "{event}");
        }
        assert_eq!(events[COUNT + 1]["event"], "over");
    }
    alice.stop().await.unwrap();
}
