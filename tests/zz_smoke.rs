#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]
use abhyasa::{config::NodeConfig, init::{InitOptions, init}, node::Builder};
use proto::{custodian::Draft, id::*, payload::Payload};
use std::time::{Duration, Instant};
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn smoke() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b): (std::net::SocketAddr, std::net::SocketAddr) = ("127.0.0.1:45431".parse().unwrap(), "127.0.0.1:45432".parse().unwrap());
    let ida = AgentId::new("spiffe://t/a").unwrap();
    let idb = AgentId::new("spiffe://t/b").unwrap();
    let o = |id: &AgentId, at, ca, peers| InitOptions { id: Some(id.to_string()), ca, quic_listen: at, api_listen: at, peers, force: false };
    let ra = init(&dir.path().join("a"), &o(&ida, a, None, vec![(idb.clone(), b.to_string().parse().unwrap())])).unwrap();
    let rb = init(&dir.path().join("b"), &o(&idb, b, Some(ra.ca.clone()), vec![(ida.clone(), a.to_string().parse().unwrap())])).unwrap();
    let na = Builder::new(NodeConfig::load(&ra.config).unwrap()).start().await.unwrap();
    let nb = Builder::new(NodeConfig::load(&rb.config).unwrap()).start().await.unwrap();
    let h = na.handle();
    while !h.peers()[0].connected || h.readiness().is_err() { tokio::time::sleep(Duration::from_millis(5)).await; }
    let n = 20000;
    for round in 0..5 {
    let t = Instant::now();
    let mut ids = vec![];
    for i in 0..n/64 {
        let drafts: Vec<Draft> = (0..64).map(|j| Draft { id: ObligationId::new(&format!("o-{round}-{i}-{j}")).unwrap(), kind: Kind::new("phala.belief_update").unwrap(), target: idb.clone(),
            payload: Payload::from_json(serde_json::json!({"weight_delta": -0.001, "note": "x".repeat(200)}).as_object().unwrap()).unwrap(), deadline_seconds: None, max_retries: None, sequence: None }).collect();
        let id = drafts[0].id.clone();
        let h2 = h.clone();
        ids.push(tokio::spawn(async move { for r in h2.issue(drafts).await.unwrap() { r.unwrap(); } h2.wait(&id, Duration::from_secs(10)).await.unwrap().unwrap() }));
        if ids.len() % 32 == 0 { for i in ids.drain(..) { i.await.unwrap(); } }
    }
    for i in ids { let o = i.await.unwrap(); assert_eq!(o.terminal, proto::record::Terminal::Applied); }
    println!("{n} in {:?}", t.elapsed());
    }
    let t = Instant::now();
    for i in 0..200 {
        let d = Draft { id: ObligationId::new(&format!("s-{i}")).unwrap(), kind: Kind::new("anumati.consent").unwrap(), target: idb.clone(),
            payload: Payload::from_json(serde_json::json!({"decision": "revoke", "scope": "s"}).as_object().unwrap()).unwrap(), deadline_seconds: None, max_retries: None, sequence: None };
        let id = d.id.clone();
        h.issue(vec![d]).await.unwrap()[0].clone().unwrap();
        h.wait(&id, Duration::from_secs(10)).await.unwrap().unwrap();
    }
    println!("200 singles in {:?}", t.elapsed());
    println!("{}", h.metrics().encode().lines().filter(|l| !l.starts_with('#') && !l.contains("bucket")).collect::<Vec<_>>().join("\n"));
    na.stop().await.unwrap();
    nb.stop().await.unwrap();
}
