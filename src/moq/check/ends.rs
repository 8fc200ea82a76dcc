//! Checks of refusals, ends and bounds.

use super::client::{
    Announced, Client, Listener, No, Origin, Relay, namespace, payload, within_limit,
};
use super::{ANSWER_LIMIT, Answer, SILENCE_LIMIT};
use crate::moq::PEER_REQUESTS_MAX;
use moq_transport::coding::{KeyValuePairs, TrackNamespace};
use moq_transport::serve::ServeError;
use std::time::{Duration, Instant};

/// Longest that a subscription to what nobody has may go unanswered.
const REFUSAL_LIMIT: Duration = Duration::from_secs(15);
/// How long a relay is asked to hold a subscription for its publisher.
const RENDEZVOUS: Duration = Duration::from_secs(10);
/// Subscriptions asked for on one session.
const SUBSCRIPTIONS: usize = 160;
/// Requests that one session of ours answers at a time.
const REQUESTS_LIVE_MAX: usize = PEER_REQUESTS_MAX as usize;
/// Subscriptions of each of those who ask for so many of one publisher.
const READER_SUBSCRIPTIONS: usize = 32;

/// Asks for what nobody has, and wants to hear so.
async fn refused(client: &Client, node: &str, track: &str) -> Answer {
    let begun = Instant::now();
    let name = namespace(node, "1.1");
    match client.subscribe_with(&name, track, KeyValuePairs::default(), REFUSAL_LIMIT).await {
        Ok(_) => Err("accepted, though nobody publishes it".to_owned()),
        Err(No::Said(why)) if client.ended().is_none() => {
            Ok(format!("{why}, after {:.1?}", begun.elapsed()))
        }
        Err(no) => Err(no.into()),
    }
}

pub(super) async fn unknown_namespace(relay: &Relay) -> Answer {
    refused(&relay.client().await?, &relay.node(), "to:b").await
}

pub(super) async fn unknown_track(relay: &Relay) -> Answer {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let node = relay.node();
    let mut announced = from.announce(&namespace(&node, "1.1")).await?;
    let refusing = async {
        let asked = announced.asked().await?;
        asked.close(ServeError::NotFound).map_err(|error| error.to_string())
    };
    let (saw, asked) = tokio::join!(refused(&to, &node, "nobody"), refusing);
    asked?;
    saw
}

pub(super) async fn rendezvous(relay: &Relay) -> Answer {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut params = KeyValuePairs::default();
    params.set_rendezvous_timeout(RENDEZVOUS.as_millis() as u64);
    let begun = Instant::now();
    let asking = to.subscribe_with(&name, "to:b", params, REFUSAL_LIMIT);
    let serving = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let mut announced = from.announce(&name).await?;
        let origin = announced.serve().await?;
        Ok::<_, String>((announced, origin))
    };
    let (asked, served) = tokio::join!(asking, serving);
    match (asked, served) {
        (Ok(_), Ok(_)) => Ok(format!(
            "held until the namespace was announced 0.5 s later: {:.1?} in all",
            begun.elapsed()
        )),
        (Err(no), _) => Err(no.into()),
        (Ok(_), Err(why)) => Err(format!("accepted, but {why}")),
    }
}

/// A track with one object through it, so that all is known to be in place.
async fn line(relay: &Relay) -> Result<(Client, Client, Announced, Origin, Listener), String> {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (listener, origin) = tokio::join!(to.subscribe(&name, "to:b"), announced.serve());
    let (mut listener, mut origin) = (listener?, origin?);
    origin.write(0, 16, payload(0, 10))?;
    listener.next().await?;
    Ok((from, to, announced, origin, listener))
}

/// How a subscriber hears that its track ended.
async fn end(listener: &mut Listener, limit: Duration) -> Answer {
    let begun = Instant::now();
    let how = within_limit("the end of the track", limit, async {
        let closed = listener.handle.closed().await;
        Ok(match closed {
            Ok(()) => "the request ended".to_owned(),
            Err(error) => error.to_string(),
        })
    })
    .await?;
    let took = begun.elapsed();
    Ok(match listener.handle.publish_done() {
        Some(done) => format!(
            "PUBLISH_DONE with status {:#x} ({:?}), {} streams, after {took:.1?}",
            done.status_code, done.reason.0, done.stream_count
        ),
        None => format!("no PUBLISH_DONE: {how}, after {took:.1?}"),
    })
}

pub(super) async fn publisher_closes(relay: &Relay) -> Answer {
    let (from, _to, _announced, _origin, mut listener) = line(relay).await?;
    from.connection.close(0u32.into(), b"");
    end(&mut listener, ANSWER_LIMIT).await
}

/// The publisher's packets reach nobody any more.
pub(super) async fn publisher_silent(relay: &Relay) -> Answer {
    let (from, _to, _announced, _origin, mut listener) = line(relay).await?;
    // From a socket of the other family nothing can be sent there.
    let nowhere = match from.connection.remote_address().is_ipv4() {
        true => std::net::UdpSocket::bind("[::1]:0"),
        false => std::net::UdpSocket::bind("127.0.0.1:0"),
    };
    let nowhere = nowhere.map_err(|error| error.to_string())?;
    from.endpoint.rebind(nowhere).map_err(|error| error.to_string())?;
    end(&mut listener, SILENCE_LIMIT).await
}

pub(super) async fn many_subscriptions(relay: &Relay) -> Answer {
    let (one, two, to) = (relay.client().await?, relay.client().await?, relay.client().await?);
    let node = relay.node();
    let (first, second) = (namespace(&node, "1.1"), namespace(&node, "1.2"));
    let mut ones = one.announce(&first).await?;
    let mut twos = two.announce(&second).await?;
    let mut open = Vec::new();
    // By turns of two publishers, so that neither meets a bound of its own.
    for count in 0..SUBSCRIPTIONS {
        let (name, announced) =
            if count % 2 == 0 { (&first, &mut ones) } else { (&second, &mut twos) };
        open.push(next_subscription(&to, name, announced, count).await?);
    }
    Ok(format!("{SUBSCRIPTIONS} on one session were served"))
}

async fn next_subscription(
    to: &Client,
    name: &TrackNamespace,
    announced: &mut Announced,
    count: usize,
) -> Result<(Listener, Origin), String> {
    let track = format!("to:{count}");
    let (listener, origin) = tokio::join!(to.subscribe(name, &track), announced.serve());
    let after = |why: String| format!("{count} were served; the next: {why}");
    Ok((listener.map_err(|no| after(no.into()))?, origin.map_err(after)?))
}

pub(super) async fn many_at_one_publisher(relay: &Relay) -> Answer {
    let from = relay.client().await?;
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (mut readers, mut open) = (Vec::new(), Vec::new());
    for count in (0..REQUESTS_LIVE_MAX).step_by(READER_SUBSCRIPTIONS) {
        let reader = relay.client().await?;
        for count in count..count + READER_SUBSCRIPTIONS {
            open.push(next_subscription(&reader, &name, &mut announced, count).await?);
        }
        readers.push(reader);
    }
    let reader = relay.client().await?;
    let begun = Instant::now();
    let asking = reader.subscribe_with(&name, "more", KeyValuePairs::default(), SILENCE_LIMIT);
    let saw = match asking.await {
        Ok(_) => "served".to_owned(),
        Err(No::Said(why)) => format!("{why}, after {:.1?}", begun.elapsed()),
        Err(no) => return Err(no.into()),
    };
    Ok(format!("{REQUESTS_LIVE_MAX} were served; the next: {saw}"))
}

pub(super) async fn scope(relay: &Relay) -> Answer {
    let from = relay.client_at("/abhyasa-a").await?;
    let (same, other) =
        (relay.client_at("/abhyasa-a").await?, relay.client_at("/abhyasa-b").await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (within, served) = tokio::join!(same.subscribe(&name, "to:b"), announced.serve());
    let _served = served.map_err(|why| format!("within one path: {why}"))?;
    let _within = within.map_err(|no| format!("within one path: {}", String::from(no)))?;
    match other.subscribe(&name, "to:b").await {
        Ok(_) => Err("a session at another path gets the track too".to_owned()),
        Err(no) => Ok(format!("seen within one path, not from another ({})", String::from(no))),
    }
}
