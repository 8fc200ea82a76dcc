use super::*;
use crate::track::{Epoch, Part};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn agent(id: &str) -> AgentId {
    AgentId::new(id).unwrap()
}

fn items(items: &[&'static [u8]]) -> Vec<Bytes> {
    items.iter().map(|item| Bytes::from_static(item)).collect()
}

fn some_items() -> impl Strategy<Value = Vec<Bytes>> {
    vec(vec(any::<u8>(), 1..6).prop_map(Bytes::from), 1..40)
}

fn from(publisher: &str) -> Namespace {
    let epoch = Epoch { boot: 1, session: 2 };
    Namespace { publisher: agent(publisher), epoch, part: Part::All }
}

fn statement(items: &[Bytes]) -> Statement {
    let audience = Audience::agent(agent("b")).unwrap();
    Statement::of(from("a"), audience, Content::Offers, items)
}

#[test]
fn roots_are_those_of_certificate_transparency() {
    // The leaves and roots of the reference tests of RFC 6962, whose tree RFC 9162 keeps.
    let leaves = items(&[
        b"",
        b"\x00",
        b"\x10",
        b"\x20\x21",
        b"\x30\x31",
        b"\x40\x41\x42\x43",
        b"\x50\x51\x52\x53\x54\x55\x56\x57",
        b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69\x6a\x6b\x6c\x6d\x6e\x6f",
    ]);
    let roots = [
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
        "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
        "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
        "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
        "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
        "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ];
    for (len, expected) in roots.iter().enumerate() {
        let hex: String = root(&leaves[..len]).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, *expected, "root of {len} leaves");
    }
}

proptest! {
    #[test]
    fn a_path_leads_from_its_item_to_the_root_and_no_other(
        items in some_items(),
        at in any::<Index>(),
        other in any::<Index>(),
        bit in any::<Index>(),
    ) {
        let (index, count) = (at.index(items.len()), items.len() as u64);
        let (root, item) = (root(&items), items[index].clone());
        let path = path(&items, index);
        let verify = |root: &Hash, index: usize, count: u64, item: &[u8], path: &[Hash]| {
            verify_path(root, index as u64, count, item, path)
        };
        prop_assert!(verify(&root, index, count, &item, &path));
        prop_assert!(path.len() <= 6);
        // Another index, even of the same bytes.
        let beside = other.index(items.len());
        prop_assert_eq!(verify(&root, beside, count, &item, &path), beside == index);
        prop_assert!(!verify(&root, items.len(), count, &item, &path));
        // Another item, or a root or step with one bit turned.
        prop_assert!(!verify(&root, index, count, &[&item[..], b"x"].concat(), &path));
        let flip = |hash: &Hash| {
            let (mut hash, bit) = (*hash, bit.index(256));
            hash[bit / 8] ^= 1 << (bit % 8);
            hash
        };
        prop_assert!(!verify(&flip(&root), index, count, &item, &path));
        for step in 0..path.len() {
            let mut wrong = path.clone();
            wrong[step] = flip(&wrong[step]);
            prop_assert!(!verify(&root, index, count, &item, &wrong));
            wrong.remove(step);
            prop_assert!(!verify(&root, index, count, &item, &wrong));
        }
        prop_assert!(!verify(&root, index, count, &item, &[&path[..], &[root]].concat()));
        // An inner node is no leaf.
        if let [.., below] = path[..] && items.len() > 1 {
            let inner = [&leaf(&item)[..], &below[..]].concat();
            prop_assert!(!verify(&root, 0, 1, &inner, &[]));
        }
    }

    #[test]
    fn wr1_batches_and_statements_are_read_as_they_were_written(
        signed in vec(any::<u8>(), 1..200), items in some_items()
    ) {
        let batch = Batch { signed: signed.into(), items };
        prop_assert_eq!(&Batch::decode(&batch.encode()).unwrap(), &batch);
        let statement = statement(&batch.items);
        prop_assert_eq!(&Statement::decode(&statement.encode()).unwrap(), &statement);
        prop_assert_eq!(statement.check(&batch.items), Ok(()));
    }
}

#[test]
fn wr1_an_altered_batch_is_refused_or_fails_its_check() {
    // In place of a signature, the statement as it is: what is altered there a signature would tell.
    let items = items(&[b"one", b"two", b"three"]);
    let statement = statement(&items);
    let batch = Batch { signed: statement.encode(), items };
    let bytes = batch.encode();
    let holds = |bytes: Vec<u8>| {
        Batch::decode(&bytes.into())
            .is_ok_and(|read| read.signed == batch.signed && statement.check(&read.items).is_ok())
    };
    assert!(holds(bytes.to_vec()));
    for at in 0..bytes.len() {
        assert!(!holds(bytes[..at].to_vec()), "cut at {at}");
        for with in 1..=u8::MAX {
            let mut altered = bytes.to_vec();
            altered[at] ^= with;
            assert!(!holds(altered), "byte {at} altered by {with}");
        }
    }
    assert!(!holds([&bytes[..], &[0]].concat()), "a byte more");
}

#[test]
fn items_moved_dropped_or_added_are_not_those_signed() {
    let signed = items(&[b"one", b"two", b"three"]);
    let statement = statement(&signed);
    for (found, expected) in [
        (items(&[b"two", b"one", b"three"]), BatchError::Root { count: 3 }),
        (items(&[b"one", b"two", b"three!"]), BatchError::Root { count: 3 }),
        (items(&[b"one", b"two"]), BatchError::Count { signed: 3, found: 2 }),
        (items(&[b"one", b"two", b"three", b"three"]), BatchError::Count { signed: 3, found: 4 }),
        (items(&[]), BatchError::Count { signed: 3, found: 0 }),
    ] {
        assert_eq!(statement.check(&found), Err(expected));
    }
}

#[test]
fn wr1_an_audience_has_one_reading() {
    let read = |audience: Audience| {
        let of = Statement::of(from("a"), audience, Content::Hello, &[]);
        Statement::decode(&of.encode()).map(|statement| statement.audience)
    };
    let group = Audience::Group(GroupName::new("eu").unwrap());
    for audience in [Audience::Everyone, group, Audience::agent(agent("group")).unwrap()] {
        assert_eq!(read(audience.clone()), Ok(audience));
    }
    for id in ["*", "group:", "group:eu", "group:EU"] {
        assert!(Audience::agent(agent(id)).is_err(), "{id}");
    }
    assert!(read(Audience::Agent(agent("group:EU"))).is_err(), "no group is named so");
}

#[test]
fn the_priorities_put_what_ends_custody_first() {
    let of = Content::ALL.map(Content::priority);
    assert_eq!(of, [8, 16, 96, 8, 8, 16, 32, 160, 160, 160, 160]);
    let codes = Content::ALL.map(Content::code);
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], "on the wire: they may never change");
}

#[test]
fn payloads_stay_out_of_debug_output() {
    let batch = Batch { signed: Bytes::from_static(b"calendar"), items: items(&[b"calendar"]) };
    assert_eq!(format!("{batch:?}"), "Batch { signed: 8 bytes, items: 1 }");
}
