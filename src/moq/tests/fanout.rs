//! Where decisions to a group go.

use super::signed::{id, signatures};
use crate::init::ca::DevCa;
use crate::moq::fanout::{Groups, Hop, Place};
use proto::fanout::GroupId;
use proto::id::Kind;
use proto::obligation::Obligation;
use proto::time::Time;
use proto::track::{Epoch, GroupName};
use tokio::time::Instant;

#[tokio::test]
async fn ab1_each_session_with_a_peer_has_a_group_track_of_its_own() {
    let groups = Groups::new(signatures(&DevCa::generate().unwrap(), "a"));
    let (hop, name) = (Hop::Peer(id("m")), GroupName::new("all").unwrap());
    let epoch = |session| Epoch { boot: 1, session };
    let [first, second] = [1, 2].map(|session| Place::new(&hop, epoch(session)));
    let mut to_first = groups.served(first.clone(), name.clone(), epoch(1), 1);
    let mut to_second = groups.served(second.clone(), name.clone(), epoch(2), 2);
    let since = Instant::now();
    let decide = async |n: &str, place: &Place| {
        let gid = GroupId::new(n).unwrap();
        groups.expect(gid.clone(), name.clone());
        groups.issued(&gid, true);
        let item = Obligation {
            id: gid.member(&id("m")),
            kind: Kind::new("anumati.consent").unwrap(),
            target: id("m"),
            payload: serde_json::from_str(r#"{"decision": "revoke", "scope": "s"}"#).unwrap(),
            deadline_seconds: 600,
            max_retries: 10,
            created_at: Time::from_ms(1),
            sequence: Some(1),
        };
        groups.carries(place, &id("m"), since, &item.encode()).await
    };
    assert!(decide("one", &first).await, "the second session did not take its place");
    assert!(to_first.try_recv().is_ok() && to_second.try_recv().is_err());
    groups.unserved(&second, &name, 2);
    assert!(decide("two", &first).await);
    assert!(to_first.try_recv().is_ok());
    assert!(!decide("three", &second).await, "nobody hears it there");
    // At a relay it is one, whichever session serves it.
    let relay = Hop::Relay("r".into());
    assert_eq!(Place::new(&relay, epoch(1)), Place::new(&relay, epoch(2)));
}
