//! Checks of sessions, namespaces and where subscriptions go.

use super::client::{Client, Relay, event, namespace};
use super::{ANSWER_LIMIT, Answer};
use moq_transport::coding::TrackNamespace;
use moq_transport::session::{NamespaceEvent, SubscribeNamespace};
use std::time::Instant;

pub(super) async fn setup(relay: &Relay) -> Answer {
    let begun = Instant::now();
    let client = relay.client().await?;
    let took = begun.elapsed();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    match client.ended() {
        Some(why) => Err(format!("the session ended: {why}")),
        None => Ok(format!("SETUP both ways in {took:.1?}")),
    }
}

pub(super) async fn announce(relay: &Relay) -> Answer {
    let client = relay.client().await?;
    let _announced = client.announce(&namespace(&relay.node(), "1.1")).await?;
    Ok("accepted, of five fields".to_owned())
}

pub(super) async fn announce_second(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let node = relay.node();
    let _first = one.announce(&namespace(&node, "1.1")).await?;
    let _second = two.announce(&namespace(&node, "1.2")).await?;
    Ok("accepted: a second session with the node's next epoch".to_owned())
}

pub(super) async fn announce_same(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut first = one.announce(&name).await?;
    let mut second = two.announce(&name).await?;
    let reader = relay.client().await?;
    let asking = reader.subscribe(&name, "t");
    let serving = async {
        tokio::select! {
            asked = first.serve() => asked.map(|origin| ("the first", origin)),
            asked = second.serve() => asked.map(|origin| ("the second", origin)),
        }
    };
    let (subscribed, served) = tokio::join!(asking, serving);
    let (which, _origin) = served?;
    subscribed?;
    Ok(format!("accepted; {which} of two publishers was asked first"))
}

async fn added(client: &SubscribeNamespace, name: &TrackNamespace) -> Result<(), String> {
    match event(client, ANSWER_LIMIT).await? {
        NamespaceEvent::Added(found) if found == *name => Ok(()),
        other => Err(format!("told something else: {other:?}")),
    }
}

pub(super) async fn watch_then_announce(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let node = relay.node();
    let watch = one.watch(&["abhyasa", "1", &node]).await?;
    let _first = two.announce(&namespace(&node, "1.1")).await?;
    added(&watch, &namespace(&node, "1.1")).await?;
    let three = relay.client().await?;
    let _second = three.announce(&namespace(&node, "1.2")).await?;
    added(&watch, &namespace(&node, "1.2")).await?;
    Ok("NAMESPACE came for two epochs announced later".to_owned())
}

pub(super) async fn announce_then_watch(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let node = relay.node();
    let _first = two.announce(&namespace(&node, "1.1")).await?;
    let watch = one.watch(&["abhyasa", "1", &node]).await?;
    added(&watch, &namespace(&node, "1.1")).await?;
    Ok("NAMESPACE came for what was announced before".to_owned())
}

pub(super) async fn watch_all(relay: &Relay) -> Answer {
    let (one, two, three) = (relay.client().await?, relay.client().await?, relay.client().await?);
    let (before, after) = (namespace(&relay.node(), "1.1"), namespace(&relay.node(), "1.1"));
    let _before = two.announce(&before).await?;
    let watch = one.watch(&["abhyasa", "1"]).await?;
    seek(&watch, &NamespaceEvent::Added(before)).await?;
    let _after = three.announce(&after).await?;
    seek(&watch, &NamespaceEvent::Added(after)).await?;
    Ok("NAMESPACE came for two nodes, announced before and after".to_owned())
}

/// Passes over events of others.
async fn seek(watch: &SubscribeNamespace, wanted: &NamespaceEvent) -> Result<(), String> {
    let begun = Instant::now();
    loop {
        let left = ANSWER_LIMIT.saturating_sub(begun.elapsed());
        if event(watch, left).await? == *wanted {
            return Ok(());
        }
    }
}

pub(super) async fn withdrawn(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let watch = watching(&one, &name).await?;
    let announced = two.announce(&name).await?;
    seek(&watch, &NamespaceEvent::Added(name.clone())).await?;
    let begun = Instant::now();
    drop(announced);
    seek(&watch, &NamespaceEvent::Removed(name)).await?;
    Ok(format!("NAMESPACE_DONE {:.1?} after the announcement was withdrawn", begun.elapsed()))
}

pub(super) async fn withdrawn_by_death(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let watch = watching(&one, &name).await?;
    let announced = two.announce(&name).await?;
    seek(&watch, &NamespaceEvent::Added(name.clone())).await?;
    let begun = Instant::now();
    two.connection.close(0u32.into(), b"");
    seek(&watch, &NamespaceEvent::Removed(name)).await?;
    drop(announced);
    Ok(format!("NAMESPACE_DONE {:.1?} after the announcer closed its connection", begun.elapsed()))
}

async fn watching(client: &Client, name: &TrackNamespace) -> Result<SubscribeNamespace, String> {
    let node = name.fields.get(2).map(|field| String::from_utf8_lossy(&field.value).into_owned());
    client.watch(&["abhyasa", "1", &node.unwrap_or_default()]).await
}

pub(super) async fn subscribe(relay: &Relay) -> Answer {
    let (one, two) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = one.announce(&name).await?;
    let (subscribed, served) = tokio::join!(two.subscribe(&name, "to:b"), announced.serve());
    let served = served?;
    subscribed?;
    match served.name.as_str() {
        "to:b" => Ok("SUBSCRIBE came to the announcer, SUBSCRIBE_OK went back".to_owned()),
        other => Err(format!("SUBSCRIBE came as {other}")),
    }
}

pub(super) async fn routing(relay: &Relay) -> Answer {
    let clients = [relay.client().await?, relay.client().await?, relay.client().await?];
    let node = relay.node();
    let reader = relay.client().await?;
    let mut announced = Vec::new();
    for (client, epoch) in clients.iter().zip(["1.1", "1.2", "2.1"]) {
        announced.push((epoch, client.announce(&namespace(&node, epoch)).await?));
    }
    let mut open = Vec::new();
    for (epoch, at) in &mut announced {
        let name = namespace(&node, epoch);
        let track = format!("to:{epoch}");
        let (subscribed, served) = tokio::join!(reader.subscribe(&name, &track), at.serve());
        let served = served.map_err(|why| format!("epoch {epoch}: {why}"))?;
        if served.name != track {
            return Err(format!("epoch {epoch} was asked for {}", served.name));
        }
        let subscribed = subscribed.map_err(|no| format!("epoch {epoch}: {}", String::from(no)))?;
        open.push((subscribed, served));
    }
    Ok("each of three epochs of one node got its own SUBSCRIBE, and no other".to_owned())
}
