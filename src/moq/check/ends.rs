//! Checks of refusals, ends and bounds.

use super::client::{Announced, Client, Listener, Origin, Relay, namespace, payload, within_limit};
use super::{ANSWER_LIMIT, Answer, SILENCE_LIMIT};
use moq_transport::coding::KeyValuePairs;
use moq_transport::serve::ServeError;
use std::time::{Duration, Instant};

/// Longest that a subscription to what nobody has may go unanswered.
const REFUSAL_LIMIT: Duration = Duration::from_secs(15);
/// How long a relay is asked to hold a subscription for its publisher.
const RENDEZVOUS: Duration = Duration::from_secs(10);
/// Subscriptions asked for on one session.
const SUBSCRIPTIONS: usize = 160;
/// Requests that one session of ours answers at a time: a limit of moq-transport 0.17.
const REQUESTS_LIVE_MAX: usize = 128;

/// Asks for what nobody has, and wants to hear so.
async fn refused(client: &Client, node: &str, track: &str) -> Answer {
    let begun = Instant::now();
    let asked = client
        .subscribe_with(&namespace(node, "1.1"), track, KeyValuePairs::default(), REFUSAL_LIMIT)
        .await;
    match asked {
        Ok(_) => Err("accepted, though nobody publishes it".to_owned()),
        Err(why) if why.contains("silent") => Err(why),
        Err(why) if client.ended().is_some() => Err(why),
        Err(why) => Ok(format!("{why}, after {:.1?}", begun.elapsed())),
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
        (Err(why), _) => Err(why),
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
    let names = [namespace(&node, "1.1"), namespace(&node, "1.2")];
    let mut announced = [one.announce(&names[0]).await?, two.announce(&names[1]).await?];
    let mut open = Vec::new();
    for count in 0..SUBSCRIPTIONS {
        let at = count % 2;
        let track = format!("to:{count}");
        let asking = to.subscribe(&names[at], &track);
        let (listener, origin) = tokio::join!(asking, announced[at].serve());
        match (listener, origin) {
            (Ok(listener), Ok(origin)) => open.push((listener, origin)),
            (Err(why), _) => return Err(format!("{count} were served; the next: {why}")),
            (Ok(_), Err(why)) => return Err(format!("{count} were served; the next: {why}")),
        }
    }
    Ok(format!("{SUBSCRIPTIONS} on one session were served"))
}

pub(super) async fn many_at_one_publisher(relay: &Relay) -> Answer {
    let from = relay.client().await?;
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let mut readers = Vec::new();
    let mut open = Vec::new();
    for count in 0..REQUESTS_LIVE_MAX {
        if count % 50 == 0 {
            readers.push(relay.client().await?);
        }
        let Some(reader) = readers.last() else { continue };
        let track = format!("to:{count}");
        let (listener, origin) = tokio::join!(reader.subscribe(&name, &track), announced.serve());
        match (listener, origin) {
            (Ok(listener), Ok(origin)) => open.push((listener, origin)),
            (Err(why), _) | (Ok(_), Err(why)) => {
                return Err(format!("{count} were served; the next: {why}"));
            }
        }
    }
    let reader = relay.client().await?;
    let begun = Instant::now();
    let asked = reader
        .subscribe_with(&name, "one-too-many", KeyValuePairs::default(), SILENCE_LIMIT)
        .await;
    let took = begun.elapsed();
    match asked {
        Ok(_) => Ok("served".to_owned()),
        Err(why) if why.contains("silent") => Err(why),
        Err(why) => Ok(format!("{REQUESTS_LIVE_MAX} were served; the next: {why}, after {took:.1?}")),
    }
}

pub(super) async fn scope(relay: &Relay) -> Answer {
    let from = relay.client_at("/abhyasa-a").await?;
    let (same, other) = (relay.client_at("/abhyasa-a").await?, relay.client_at("/abhyasa-b").await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (within, served) = tokio::join!(same.subscribe(&name, "to:b"), announced.serve());
    let _served = served.map_err(|why| format!("within one path: {why}"))?;
    let _within = within.map_err(|why| format!("within one path: {why}"))?;
    match other.subscribe(&name, "to:b").await {
        Ok(_) => Err("a session at another path gets the track too".to_owned()),
        Err(why) => Ok(format!("seen within one path, not from another ({why})")),
    }
}
