//! What of a batch is believed.

use crate::init::ca::{DevCa, valid_days};
use crate::moq::sign::{SignError, Signatures};
use crate::tls::TlsIdentity;
use bytes::Bytes;
use proto::batch::{Audience, Batch, Content};
use proto::id::AgentId;
use proto::time::Time;
use proto::track::{Epoch, Part};
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::pki_types::PrivatePkcs8KeyDer;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) fn id(name: &str) -> AgentId {
    AgentId::new(&format!("spiffe://example.org/{name}")).unwrap()
}

pub(super) fn identity(ca: &DevCa, name: &str) -> TlsIdentity {
    let issued = ca.issue(&id(name), valid_days(1)).unwrap();
    TlsIdentity::from_der(vec![issued.cert], issued.key, vec![ca.cert().clone()]).unwrap()
}

pub(super) fn signatures(ca: &DevCa, name: &str) -> Signatures {
    Signatures::new(Arc::new(identity(ca, name))).unwrap()
}

/// A certificate of its own issuing, with a key of P-256: what an operator's own CA gives out.
fn with_p256(name: &str) -> Signatures {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    let uri = id(name).as_str().try_into().unwrap();
    params.subject_alt_names = vec![rcgen::SanType::URI(uri)];
    let cert = params.self_signed(&key).unwrap();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let cert = cert.der().clone();
    let tls = TlsIdentity::from_der(vec![cert.clone()], key, vec![cert]).unwrap();
    Signatures::new(Arc::new(tls)).unwrap()
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Time::from_ms(since.as_millis() as u64)
}

const AT: (Epoch, Part) = (Epoch { boot: 1, session: 0 }, Part::All);

fn items() -> Vec<Bytes> {
    (0..5u8).map(|n| Bytes::from(vec![n; 20])).collect()
}

#[test]
fn ac1_a_batch_is_believed_as_it_was_signed_and_in_no_other_form() {
    let ca = DevCa::generate().unwrap();
    let (a, b) = (signatures(&ca, "a"), signatures(&ca, "b"));
    let to_b = Audience::agent(id("b")).unwrap();
    let (statement, object) = a.seal(AT, to_b.clone(), Content::Offers, items()).unwrap();
    let opened = b.open(&object, now()).unwrap();
    assert_eq!((opened.statement, opened.items), (statement, items()));
    // Retries are the same bytes: signatures of Ed25519 are.
    assert_eq!(a.seal(AT, to_b, Content::Offers, items()).unwrap().1, object);
    for at in 0..object.len() {
        for bit in [0x01, 0x80] {
            let mut altered = object.to_vec();
            altered[at] ^= bit;
            assert!(b.open(&altered.into(), now()).is_err(), "byte {at}");
        }
    }
    for len in 0..object.len() {
        assert!(b.open(&object.slice(..len), now()).is_err(), "{len} bytes of it");
    }
    // Signature and items of two batches do not make a third.
    let (_, other) =
        a.seal(AT, Audience::Everyone, Content::Offers, vec![items().remove(0)]).unwrap();
    let (mut mixed, other) = (Batch::decode(&object).unwrap(), Batch::decode(&other).unwrap());
    mixed.items = other.items;
    assert!(matches!(b.open(&mixed.encode(), now()), Err(SignError::Items(_))));
}

#[test]
fn ac1_only_certificates_of_our_ca_that_are_valid_sign() {
    let (ca, other) = (DevCa::generate().unwrap(), DevCa::generate().unwrap());
    let b = signatures(&ca, "b");
    let seal = |by: &Signatures| by.seal(AT, Audience::Everyone, Content::Acks, items()).unwrap().1;
    let object = seal(&signatures(&other, "a"));
    assert!(matches!(b.open(&object, now()), Err(SignError::Certificate(_))));
    let object = seal(&signatures(&ca, "a"));
    assert!(b.open(&object, now()).is_ok());
    // Known before, and no longer valid.
    let later = Time::from_ms(now().as_ms() + 3 * 24 * 3_600_000);
    assert!(matches!(b.open(&object, later), Err(SignError::Certificate(_))));
    assert!(b.open(&object, now()).is_ok(), "and still good for what was signed then");
}

#[test]
fn keys_of_p256_sign_too() {
    let a = with_p256("a");
    for n in 0..64u8 {
        let items = vec![Bytes::from(vec![n; 3])];
        let (_, object) = a.seal(AT, Audience::Everyone, Content::Offers, items.clone()).unwrap();
        assert_eq!(a.open(&object, now()).unwrap().items, items);
        let mut altered = Batch::decode(&object).unwrap();
        let last = altered.signed.len() - 1;
        let mut signed = altered.signed.to_vec();
        signed[last] ^= 1;
        altered.signed = signed.into();
        assert!(matches!(a.open(&altered.encode(), now()), Err(SignError::Signature)));
    }
}
