use super::*;
use crate::acap::jws::tests::{ed25519, p256};
use crate::store::{FaultStore, FjallStore, Storage as _, StoreOptions};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::Ed25519KeyPair;
use bytes::Bytes;
use proptest::prelude::*;
use proto::batch;
use proto::id::AgentId;
use std::convert::Infallible;
use std::path::Path;

pub(crate) const T0: u64 = 1_772_614_800_000;

pub(crate) fn side(path: &Path) -> SideStore {
    let owner = AgentId::new("spiffe://example.org/agent/a").unwrap();
    let store = FjallStore::open(path, &owner, &StoreOptions::default()).unwrap();
    store.side().unwrap().unwrap()
}

fn hash(number: u64) -> ContentHash {
    ContentHash::of(&number.to_be_bytes())
}

/// A key that can be had again.
fn key(der: &[u8]) -> SigningKey {
    SigningKey::from_pkcs8(der, None).unwrap()
}

fn der() -> Vec<u8> {
    Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap().as_ref().to_vec()
}

/// Nodes made from leaves.
fn nodes(leaves: &[Bytes]) -> impl Fn(u32, u64) -> Result<Hash, Infallible> {
    |level, at| {
        let from = usize::try_from(at << level).unwrap();
        Ok(batch::root(&leaves[from..from + (1 << level)]))
    }
}

/// The leaves of the reference tests of certificate transparency.
fn reference() -> Vec<Bytes> {
    let hex = "|00|10|2021|3031|40414243|5051525354555657|606162636465666768696a6b6c6d6e6f";
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    hex.split('|').map(|text| text.as_bytes().chunks(2).map(byte).collect()).collect()
}

fn hex(hashes: &[Hash]) -> Vec<String> {
    hashes.iter().map(|hash| Digest(*hash).to_string()[7..].to_owned()).collect()
}

/// Proofs of the reference tests of certificate transparency (RFC 6962, whose tree RFC 9162 keeps).
#[test]
fn proofs_are_those_of_certificate_transparency() {
    const N01: &str = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7";
    const N23: &str = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e";
    const N47: &str = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4";
    const L4: &str = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b";
    const N67: &str = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0";
    const N03: &str = "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7";
    const N1: &str = "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125";
    const L0: &str = "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d";
    const N45: &str = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a";
    let leaves = reference();
    let nodes = nodes(&leaves);
    let inclusions: [(u64, u64, &[&str]); 5] = [
        (0, 1, &[]),
        (0, 8, &[N01, N23, N47]),
        (5, 8, &[L4, N67, N03]),
        (2, 3, &[N1]),
        (1, 5, &[L0, N23, L4]),
    ];
    for (index, size, expected) in inclusions {
        let path = tree::inclusion(&nodes, index, size).unwrap();
        assert_eq!(hex(&path), expected, "leaf {index} of {size}");
        let root = tree::root(&nodes, size).unwrap();
        let item = &leaves[usize::try_from(index).unwrap()];
        assert!(batch::verify_path(&root, index, size, item, &path));
    }
    let consistencies: [(u64, u64, &[&str]); 4] =
        [(1, 1, &[]), (1, 8, &[N01, N23, N47]), (6, 8, &[N45, N67, N03]), (2, 5, &[N23, L4])];
    for (first, second, expected) in consistencies {
        let path = tree::consistency(&nodes, first, second).unwrap();
        assert_eq!(hex(&path), expected, "{first} to {second}");
        let root = |size| tree::root(&nodes, size).unwrap();
        let (old, new) = (root(first), root(second));
        assert!(tree::verify_consistency((first, &old), (second, &new), &path));
    }
}

#[test]
fn every_small_tree_continues_every_smaller_one_and_no_other() {
    let leaves: Vec<Bytes> = (0..40u8).map(|leaf| Bytes::from(vec![leaf])).collect();
    let nodes = nodes(&leaves);
    let root = |size| tree::root(&nodes, size).unwrap();
    for second in 0..=40 {
        let whole = usize::try_from(second).unwrap();
        assert_eq!(root(second), batch::root(&leaves[..whole]));
        for first in 0..=second {
            let path = tree::consistency(&nodes, first, second).unwrap();
            let good = |path: &[Hash], old: &Hash, new: &Hash| {
                tree::verify_consistency((first, old), (second, new), path)
            };
            let (old, new) = (root(first), root(second));
            assert!(good(&path, &old, &new), "{first} to {second}");
            assert!(!good(&path, &[7; 32], &new), "{first} to {second}: another beginning");
            if first > 0 {
                assert!(!good(&path, &old, &[7; 32]), "{first} to {second}: another end");
            }
            for at in 0..path.len() {
                let mut bad = path.clone();
                bad[at][0] ^= 1;
                assert!(!good(&bad, &old, &new), "{first} to {second}: step {at}");
            }
            if let Some((_, short)) = path.split_last() {
                assert!(!good(short, &old, &new));
            }
            assert!(!good(&[&path[..], &[[0; 32]]].concat(), &old, &new), "a step too many");
        }
        assert!(!tree::verify_consistency(
            (second + 1, &root(second)),
            (second, &root(second)),
            &[]
        ));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]
    /// Whatever is appended, in whatever batches: each leaf is proved, each head continues each earlier one, and
    /// after a restart the log goes on.
    #[test]
    fn a_log_grows_and_proves_it(
        batches in prop::collection::vec(prop::collection::vec(0..60u64, 0..20), 1..12),
        restart in 0..12usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let der = der();
        let mut log = Log::open(side(dir.path()), key(&der)).unwrap();
        let mut model: Vec<u64> = Vec::new();
        let mut heads: Vec<TreeHead> = Vec::new();
        for (number, batch) in batches.iter().enumerate() {
            if number == restart {
                drop(log);
                log = Log::open(side(dir.path()), key(&der)).unwrap();
                prop_assert_eq!(log.head().map_or(0, |head| head.tree_size), model.len() as u64);
            }
            for leaf in batch {
                if !model.contains(leaf) {
                    model.push(*leaf);
                }
            }
            let hashes: Vec<ContentHash> = batch.iter().map(|leaf| hash(*leaf)).collect();
            // The clock may go back; heads do not.
            let now = Time::from_ms(T0 - number as u64 * 1_000);
            if model.is_empty() {
                continue;
            }
            for (leaf, place) in batch.iter().zip(log.append(&hashes, now).unwrap()) {
                let at = model.iter().position(|known| known == leaf).unwrap() as u64;
                prop_assert_eq!(place.index, at);
                let path: Vec<Hash> = place.path.iter().map(|step| step.0).collect();
                let (root, size) = (&place.head.root_hash.0, place.head.tree_size);
                let text = hash(*leaf);
                prop_assert!(batch::verify_path(root, at, size, text.as_str().as_bytes(), &path));
            }
            let head = log.head().unwrap();
            prop_assert_eq!(head.verify(), Ok(()));
            prop_assert_eq!(head.tree_size, model.len() as u64);
            let leaves: Vec<Bytes> = model
                .iter()
                .map(|leaf| Bytes::copy_from_slice(hash(*leaf).as_str().as_bytes()))
                .collect();
            prop_assert_eq!(head.root_hash.0, batch::root(&leaves));
            for old in &heads {
                let path = log.consistency(old.tree_size, head.tree_size).unwrap();
                let path: Vec<Hash> = path.iter().map(|step| step.0).collect();
                let (first, second) = (&old.root_hash.0, &head.root_hash.0);
                prop_assert!(tree::verify_consistency((old.tree_size, first), (head.tree_size, second), &path));
                prop_assert!(old.timestamp.time() <= head.timestamp.time());
            }
            heads.push(head);
        }
        prop_assert!(log.check().is_ok());
    }
}

/// Each kind of entry that somebody with the disk can change or take.
#[test]
fn a_log_that_was_tampered_with_is_caught() {
    let key_of = |level: u32, at: u64| node_key(level, at);
    type Change = (&'static str, Vec<u8>, Option<Vec<u8>>, &'static str);
    let changes: Vec<Change> = vec![
        ("leaf", numbered(ENTRY, 2), Some(hash(99).as_str().into()), "leaf 2 is"),
        ("no leaf", numbered(ENTRY, 2), None, "lacks leaf 2"),
        ("its hash", key_of(0, 2), Some(vec![0; 32]), "leaf 2 is"),
        ("node", key_of(2, 0), Some(vec![0; 32]), "the root of its 7 leaves"),
        ("no node", key_of(2, 0), None, "lacks node 2/0"),
        ("head", numbered(HEAD, 3), Some(b"{}".to_vec()), "no tree head"),
        ("no last head", vec![LAST], None, "its size is more"),
    ];
    for (what, at, value, says) in changes {
        let dir = tempfile::tempdir().unwrap();
        let der = der();
        let tables = side(dir.path());
        let log = Log::open(tables.clone(), key(&der)).unwrap();
        for part in [0..3, 3..7] {
            log.append(&part.map(hash).collect::<Vec<_>>(), Time::from_ms(T0)).unwrap();
        }
        assert!(log.check().is_ok());
        let change = SideWrite { table: SideTable::ConsentLog, key: at, value };
        tables.commit([change].iter()).unwrap();
        let error = match Log::open(tables, key(&der)) {
            Err(error) => error,
            Ok(log) => log.check().unwrap_err(),
        };
        assert!(error.to_string().contains(says), "{what}: {error}");
    }
}

#[test]
fn a_log_that_was_set_back_is_caught_before_it_signs_again() {
    let dir = tempfile::tempdir().unwrap();
    let der = der();
    let tables = side(dir.path());
    let log = Log::open(tables.clone(), key(&der)).unwrap();
    log.append(&[hash(1)], Time::from_ms(T0)).unwrap();
    let old = tables.get(SideTable::ConsentLog, &[LAST]).unwrap();
    log.append(&[hash(2)], Time::from_ms(T0)).unwrap();
    let back = SideWrite { table: SideTable::ConsentLog, key: vec![LAST], value: old };
    tables.commit([back].iter()).unwrap();
    let error = Log::open(tables.clone(), key(&der)).unwrap_err();
    assert!(error.to_string().contains("its size is more, and 1 was signed"), "{error}");
    // And a log of another key is another log.
    assert!(Log::open(tables, ed25519()).is_err());
}

#[test]
fn limits_and_what_is_not_there_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let log = Log::open(side(dir.path()), p256()).unwrap();
    let many: Vec<ContentHash> = (0..=LOG_BATCH_MAX as u64).map(hash).collect();
    let error = log.append(&many, Time::from_ms(T0)).unwrap_err();
    assert!(error.to_string().contains("1025 hashes"), "{error}");
    assert!(log.append(&many[1..], Time::from_ms(T0)).is_ok());
    assert!(matches!(
        log.consistency(5, 2_000),
        Err(LogError::Beyond { size: 1_024, asked: 2_000 })
    ));
    assert!(matches!(log.consistency(5, 4), Err(LogError::Beyond { .. })));
    assert!(matches!(log.inclusion(1_024, 1_024), Err(LogError::Beyond { .. })));
    assert!(log.inclusion(1_023, 1_024).is_ok());
    let head = log.head().unwrap();
    assert_eq!(head.verify(), Ok(()));
    let forged = TreeHead { tree_size: 1_023, ..head.clone() };
    assert!(matches!(forged.verify(), Err(HeadFault::Signature { .. })));
    let other = TreeHead { log_id: Text::new("ethereum:mainnet").unwrap(), ..head };
    assert!(matches!(other.verify(), Err(HeadFault::Log { .. })));
}

/// Nothing is told of what may not be on the disk, and the next start goes on from what is there.
#[test]
fn cr1_a_failed_append_is_told_of_nowhere_and_ends_the_log_until_the_next_start() {
    for (plan, kept) in [("fail@2", 1), ("fail-kept@2", 2), ("full@2", 1)] {
        let dir = tempfile::tempdir().unwrap();
        let der = der();
        {
            let owner = AgentId::new("spiffe://example.org/agent/a").unwrap();
            let store = FjallStore::open(dir.path(), &owner, &StoreOptions::default()).unwrap();
            let store = FaultStore::new(store, plan.parse().unwrap());
            let log = Log::open(store.side().unwrap().unwrap(), key(&der)).unwrap();
            log.append(&[hash(1)], Time::from_ms(T0)).unwrap();
            let failed = log.append(&[hash(2)], Time::from_ms(T0));
            assert!(matches!(failed, Err(LogError::Store(_))), "{plan}");
            assert_eq!(log.head().unwrap().tree_size, 1, "{plan}");
            for again in [1, 2, 3] {
                let after = log.append(&[hash(again)], Time::from_ms(T0));
                assert!(matches!(after, Err(LogError::Broken)), "{plan}");
            }
        }
        let log = Log::open(side(dir.path()), key(&der)).unwrap();
        assert_eq!(log.head().unwrap().tree_size, kept, "{plan}");
        assert!(log.check().is_ok());
        let place = log.append(&[hash(2)], Time::from_ms(T0)).unwrap();
        assert_eq!((place[0].index, log.head().unwrap().tree_size), (1, 2), "{plan}");
    }
}
