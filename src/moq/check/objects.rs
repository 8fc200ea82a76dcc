//! Checks of what becomes of objects.

use super::client::{
    Announced, Client, Listener, Origin, Relay, namespace, payload, refusal, within,
};
use super::{ANSWER_LIMIT, Answer};
use bytes::{Bytes, BytesMut};
use moq_transport::coding::{KeyValuePairs, Location, TrackNamespace};
use moq_transport::data::{ExtensionHeaders, FetchRecord, FetchRecordObject};
use moq_transport::message::{StandaloneFetch, TrackExtensions};
use moq_transport::serve;
use moq_transport::session::{FetchOkInfo, Publisher, SessionError};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Groups sent to see whether all come, each once.
const GROUPS: u64 = 200;
/// Groups written the moment a subscription comes: as many as moq-transport keeps for one.
const EARLY: Range<u64> = 0..8;
/// Of the groups, how many are on their way at once.
const GROUPS_UNDER_WAY: u64 = 16;
/// How long a copy of what came already is waited for.
const COPIES_WAIT: Duration = Duration::from_millis(300);
/// How long the first group of a track is waited for, where it may well not come.
const FIRST_WAIT: Duration = Duration::from_secs(2);
/// Size of the objects of the checks of groups, in bytes.
const SMALL: usize = 300;
/// Size of the largest batch of custody, in bytes.
const BATCH: usize = 48 << 10;
/// Size of a large object, in bytes.
const LARGE: usize = 1 << 20;

/// One track between two sessions, whose group 0 has come.
struct Line {
    from: Client,
    to: Client,
    name: TrackNamespace,
    _announced: Announced,
    origin: Origin,
    listener: Listener,
}

async fn line(relay: &Relay) -> Result<Line, String> {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (listener, origin) = tokio::join!(to.subscribe(&name, "to:b"), announced.serve());
    let (mut origin, mut listener) = (origin?, listener?);
    // Only when the first has come, all on the way is known to be in place.
    origin.write(0, 16, payload(0, SMALL))?;
    let mut came = Came::default();
    if !came.one(&mut listener, SMALL, ANSWER_LIMIT).await {
        return Err(format!("the first group did not come: {}", came.end.unwrap_or_default()));
    }
    Ok(Line { from, to, name, _announced: announced, origin, listener })
}

/// What came of groups, by id.
#[derive(Default)]
struct Came {
    first: BTreeMap<u64, Instant>,
    priorities: BTreeMap<u64, u8>,
    copies: u64,
    other: Vec<String>,
    end: Option<String>,
}

impl Came {
    async fn one(&mut self, listener: &mut Listener, len: usize, limit: Duration) -> bool {
        let group = match listener.next_within(limit).await {
            Ok(Some(group)) => group,
            Ok(None) => {
                self.end = Some("the track ended".to_owned());
                return false;
            }
            Err(why) => {
                self.end = Some(why);
                return false;
            }
        };
        if group.subgroup != 0 {
            self.other.push(format!("group {} came as subgroup {}", group.id, group.subgroup));
        }
        if group.objects != [(0, payload(group.id, len))] {
            let shape: Vec<_> =
                group.objects.iter().map(|(id, bytes)| (*id, bytes.len())).collect();
            self.other.push(format!("group {} has other bytes: objects {shape:?}", group.id));
        }
        self.priorities.insert(group.id, group.priority);
        if self.first.insert(group.id, Instant::now()).is_some() {
            self.copies += 1;
        }
        true
    }

    /// The verdict on the groups `ids`.
    fn all(&self, ids: Range<u64>) -> Answer {
        let count = ids.end.saturating_sub(ids.start);
        let missing: Vec<u64> = ids.filter(|id| !self.first.contains_key(id)).collect();
        if missing.is_empty() && self.copies == 0 && self.other.is_empty() {
            return Ok(format!("{count} groups came once each, with their ids and bytes"));
        }
        let some: Vec<u64> = missing.iter().copied().take(5).collect();
        Err(format!(
            "{} of {count} groups are missing (first {some:?}), {} copies, {} otherwise wrong {:?}{}",
            missing.len(),
            self.copies,
            self.other.len(),
            self.other.first(),
            self.end.as_ref().map_or_else(String::new, |why| format!("; {why}")),
        ))
    }

    /// Takes until all of `count` have come, and copies of what came.
    async fn rest(&mut self, listener: &mut Listener, count: u64) {
        while (self.first.len() as u64) < count {
            if !self.one(listener, SMALL, ANSWER_LIMIT).await {
                return;
            }
        }
        self.one(listener, SMALL, COPIES_WAIT).await;
    }
}

const ALL: Range<u64> = 1..GROUPS + 1;

pub(super) async fn groups(relay: &Relay) -> Answer {
    let mut line = line(relay).await?;
    let mut came = Came::default();
    for id in ALL {
        line.origin.write(id, 16, payload(id, SMALL))?;
        if id > GROUPS_UNDER_WAY && !came.one(&mut line.listener, SMALL, ANSWER_LIMIT).await {
            return came.all(ALL);
        }
    }
    came.rest(&mut line.listener, GROUPS).await;
    came.all(ALL)
}

pub(super) async fn burst(relay: &Relay) -> Answer {
    let mut line = line(relay).await?;
    for id in ALL {
        line.origin.write(id, 16, payload(id, SMALL))?;
    }
    let mut came = Came::default();
    came.rest(&mut line.listener, GROUPS).await;
    came.all(ALL)
}

/// All at once, the moment the subscription reaches the publisher.
pub(super) async fn early(relay: &Relay) -> Answer {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let writing = async {
        let mut origin = announced.serve().await?;
        for id in EARLY {
            origin.write(id, 16, payload(id, SMALL))?;
        }
        Ok::<_, String>(origin)
    };
    let (listener, origin) = tokio::join!(to.subscribe(&name, "to:b"), writing);
    let (mut listener, _origin) = (listener?, origin?);
    let mut came = Came::default();
    came.rest(&mut listener, EARLY.end).await;
    came.all(EARLY)
}

pub(super) async fn priorities(relay: &Relay) -> Answer {
    let mut line = line(relay).await?;
    let sent = [8u8, 16, 32, 96, 160, 0, 255, 128];
    let ids = 1..1 + sent.len() as u64;
    let mut came = Came::default();
    for (id, priority) in ids.clone().zip(sent) {
        line.origin.write(id, priority, payload(id, SMALL))?;
        if !came.one(&mut line.listener, SMALL, ANSWER_LIMIT).await {
            return came.all(ids);
        }
    }
    let got: Vec<u8> = came.priorities.values().copied().collect();
    match got == sent {
        true => Ok(format!("kept: {got:?}")),
        false => Err(format!("sent {sent:?}, came as {got:?}")),
    }
}

pub(super) async fn batch(relay: &Relay) -> Answer {
    size(relay, BATCH).await
}

pub(super) async fn large(relay: &Relay) -> Answer {
    size(relay, LARGE).await
}

async fn size(relay: &Relay, len: usize) -> Answer {
    let mut line = line(relay).await?;
    let ids = 1..9;
    let begun = Instant::now();
    let mut came = Came::default();
    for id in ids.clone() {
        line.origin.write(id, 16, payload(id, len))?;
        if !came.one(&mut line.listener, len, ANSWER_LIMIT).await {
            return came.all(ids);
        }
    }
    came.all(ids)?;
    Ok(format!("8 of {len} bytes came whole, one after the other, in {:.0?}", begun.elapsed()))
}

/// Subscribers of one track, while nothing of it has been published yet.
struct Crowd {
    _from: Client,
    _to: Vec<Client>,
    announced: Announced,
    origin: Origin,
    listeners: Vec<Listener>,
}

async fn crowd(relay: &Relay) -> Result<Crowd, String> {
    let from = relay.client().await?;
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (to, too) = (relay.client().await?, relay.client().await?);
    let (one, two, origin) = tokio::join!(
        to.subscribe(&name, "group:g"),
        too.subscribe(&name, "group:g"),
        announced.serve()
    );
    Ok(Crowd {
        _from: from,
        _to: vec![to, too],
        announced,
        origin: origin?,
        listeners: vec![one?, two?],
    })
}

/// As abhyasa does it: the first group stays open.
pub(super) async fn fan_out(relay: &Relay) -> Answer {
    let mut crowd = crowd(relay).await?;
    if crowd.announced.asked_again(COPIES_WAIT).await {
        return Err("the publisher was asked once for each subscriber".to_owned());
    }
    let mut open = crowd.origin.open(0, 16)?;
    open.write(payload(0, SMALL)).map_err(|error| error.to_string())?;
    tokio::time::sleep(COPIES_WAIT).await;
    let ids = 1..41;
    for id in ids.clone() {
        crowd.origin.write(id, 16, payload(id, SMALL))?;
    }
    let mut come = Vec::new();
    for listener in &mut crowd.listeners {
        let mut came = Came::default();
        came.rest(listener, 40).await;
        come.push(came);
    }
    open.finish().map_err(|error| error.to_string())?;
    for (came, listener) in come.iter_mut().zip(&mut crowd.listeners) {
        came.one(listener, SMALL, ANSWER_LIMIT).await;
        came.all(0..ids.end)?;
    }
    Ok("two subscribers got 41 groups each, the publisher was asked once".to_owned())
}

pub(super) async fn first_group(relay: &Relay) -> Answer {
    let mut crowd = crowd(relay).await?;
    crowd.origin.write(0, 16, payload(0, SMALL))?;
    let mut got = 0;
    for listener in &mut crowd.listeners {
        got += usize::from(Came::default().one(listener, SMALL, FIRST_WAIT).await);
    }
    let saw = format!("{got} of {} subscribers got it", crowd.listeners.len());
    if got == crowd.listeners.len() { Ok(saw) } else { Err(saw) }
}

pub(super) async fn late(relay: &Relay) -> Answer {
    let (from, to, too) = (relay.client().await?, relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let mut announced = from.announce(&name).await?;
    let (one, origin) = tokio::join!(to.subscribe(&name, "group:g"), announced.serve());
    let (mut one, mut origin) = (one?, origin?);
    let mut came = Came::default();
    for id in 0..20 {
        origin.write(id, 16, payload(id, SMALL))?;
        came.one(&mut one, SMALL, ANSWER_LIMIT).await;
    }
    let mut two = too.subscribe(&name, "group:g").await?;
    let asked = announced.asked_again(COPIES_WAIT).await;
    for id in 20..25 {
        origin.write(id, 16, payload(id, SMALL))?;
    }
    let mut came = Came::default();
    while came.one(&mut two, SMALL, Duration::from_secs(1)).await {}
    let old: Vec<u64> = came.first.keys().copied().filter(|id| *id < 20).collect();
    let new = came.first.keys().filter(|id| **id >= 20).count();
    let asked = if asked { "; the publisher was asked again" } else { "" };
    let saw = format!("it got {new} of 5 later groups, and of 20 earlier ones {old:?}{asked}");
    if new == 5 { Ok(saw) } else { Err(saw) }
}

/// Answers one FETCH with one group; says how many it was asked for.
async fn answer_fetch(mut publisher: Publisher, group: u64) -> Result<(), String> {
    let asked = publisher.fetch_requested().await.ok_or("the session ended")?;
    let body = payload(group, SMALL);
    let info = FetchOkInfo {
        end_of_track: false,
        end_location: Location::new(group, 0),
        params: KeyValuePairs::default(),
        track_extensions: TrackExtensions::default(),
    };
    let object = FetchRecordObject {
        group_id: group,
        subgroup_id: Some(0),
        object_id: 0,
        publisher_priority: 16,
        extension_headers: ExtensionHeaders::default(),
        payload_length: body.len() as u64,
    };
    let answered = async {
        let mut writer = asked.respond(info).await?;
        writer.write_record(&FetchRecord::Object(object)).await?;
        writer.write_payload(&body).await?;
        writer.finish().await
    };
    answered.await.map_err(|error| error.to_string())
}

/// Fetches a group, which the publisher would answer too.
async fn fetched(
    from: &Client,
    to: &Client,
    name: &TrackNamespace,
    track: &str,
    group: u64,
) -> Answer {
    let answering = tokio::spawn(answer_fetch(from.publisher.clone(), group));
    let got = within("FETCH", fetch_one(to, name, track, group)).await;
    // The answer was complete before it could be read.
    let asked = answering.is_finished();
    answering.abort();
    let by = if asked { "the publisher" } else { "the relay, the publisher was not asked" };
    match got {
        Ok(got) if got == payload(group, SMALL) => Ok(format!("one group came, from {by}")),
        Ok(got) => Err(format!("{} bytes came from {by}, not those that were sent", got.len())),
        Err(no) if asked => Err(format!("{}; the publisher had answered", String::from(no))),
        Err(no) => Err(format!("{}; the publisher was not asked", String::from(no))),
    }
}

pub(super) async fn fetch(relay: &Relay) -> Answer {
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let _announced = from.announce(&name).await?;
    fetched(&from, &to, &name, "status", 3).await
}

/// Of a track that is being read.
pub(super) async fn fetch_read(relay: &Relay) -> Answer {
    let mut line = line(relay).await?;
    let ids = 1..6;
    let mut came = Came::default();
    for id in ids.clone() {
        line.origin.write(id, 16, payload(id, SMALL))?;
        came.one(&mut line.listener, SMALL, ANSWER_LIMIT).await;
    }
    came.all(ids)?;
    fetched(&line.from, &line.to, &line.name, "to:b", 3).await
}

async fn fetch_one(
    client: &Client,
    name: &TrackNamespace,
    track: &str,
    group: u64,
) -> Result<Bytes, String> {
    let request = StandaloneFetch {
        track_namespace: name.clone(),
        track_name: track.to_owned().into(),
        start_location: Location::new(group, 0),
        end_location: Location::new(group, 0),
    };
    let mut subscriber = client.subscriber.clone();
    let begun = subscriber.fetch(request, KeyValuePairs::default()).await;
    let mut fetch = begun.map_err(|error| refusal(&error))?;
    if let Err(error) = fetch.ok().await {
        let why = fetch.rejection().map(|rejection| format!(" ({})", rejection.reason.0));
        return Err(refusal(&error) + &why.unwrap_or_default());
    }
    let mut body = BytesMut::new();
    let cut = |error: SessionError| format!("cut: {error}");
    while let Some(record) = fetch.next().await.map_err(cut)? {
        let FetchRecord::Object(_) = record else { return Err("said not to exist".to_owned()) };
        while let Some(chunk) = fetch.read_payload_chunk(LARGE).await.map_err(cut)? {
            body.extend_from_slice(&chunk);
        }
    }
    Ok(body.freeze())
}

pub(super) async fn publish(relay: &Relay) -> Answer {
    let ids = 0..5;
    let (from, to) = (relay.client().await?, relay.client().await?);
    let name = namespace(&relay.node(), "1.1");
    let (writer, reader) = serve::Track::new(name.clone(), "escalations".to_owned()).produce();
    let groups = writer.subgroups().map_err(|error| error.to_string())?;
    let mut publisher = from.publisher.clone();
    let published = within("PUBLISH", async {
        let mut handle = publisher
            .publish(reader, KeyValuePairs::default())
            .await
            .map_err(|error| error.to_string())?;
        handle.ok().await.map_err(|error| refusal(&error))?;
        Ok(handle)
    })
    .await?;
    tokio::spawn(published.serve());
    let mut origin = Origin { name: "escalations".to_owned(), groups };
    let mut listener = to
        .subscribe(&name, "escalations")
        .await
        .map_err(|no| format!("PUBLISH was accepted, but {}", String::from(no)))?;
    let mut came = Came::default();
    for id in ids.clone() {
        if origin.write(id, 32, payload(id, SMALL)).is_err() {
            return Err(format!("it was accepted, and ended by group {id}"));
        }
        if !came.one(&mut listener, SMALL, ANSWER_LIMIT).await {
            break;
        }
    }
    came.all(ids)
}
