use super::*;
use serde_json::json;

pub(crate) fn ed25519() -> SigningKey {
    let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    SigningKey::from_pkcs8(der.as_ref(), None).unwrap()
}

pub(crate) fn p256() -> SigningKey {
    let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
    SigningKey::from_pkcs8(der.unwrap().as_ref(), Some("key-1")).unwrap()
}

/// RFC 8037 Appendix A.4: payload, key and signature.
#[test]
fn the_example_of_rfc_8037_verifies() {
    let key = PublicKey::from_jwk(&json!({
        "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }));
    let key = key.unwrap();
    let jws = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.\
        hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    let payload = b"Example of Ed25519 signing";
    assert_eq!(Jws::parse(jws).unwrap().verify(payload, &key), Ok(()));
    let detached = jws.replace("RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc", "");
    assert_eq!(Jws::parse(&detached).unwrap().verify(payload, &key), Ok(()));
    assert_eq!(Jws::parse(&detached).unwrap().verify(b"another", &key), Err(JwsError::Wrong));
    assert_eq!(
        Jws::parse(jws).unwrap().verify(b"another", &key),
        Err(JwsError::Payload { expected: 7, found: 26 })
    );
}

/// RFC 7515 Appendix A.3.
#[test]
fn the_example_of_rfc_7515_verifies() {
    let key = PublicKey::from_jwk(&json!({
        "kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
        "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0" }));
    let jws = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.\
        DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    let payload =
        "{\"iss\":\"joe\",\r\n \"exp\":1300819380,\r\n \"http://example.com/is_root\":true}";
    let key = key.unwrap();
    assert_eq!(Jws::parse(jws).unwrap().verify(payload.as_bytes(), &key), Ok(()));
    // The same key as a compressed point.
    let short = PublicKey::from_multikey(&key.to_multikey()).unwrap();
    assert_eq!(short.bytes.len(), P256_COMPRESSED_LEN);
    assert_eq!(Jws::parse(jws).unwrap().verify(payload.as_bytes(), &short), Ok(()));
}

#[test]
fn keys_are_named_as_the_did_key_method_names_them() {
    // Samples of the method (did:key v0.7, test vectors).
    for did in [
        "did:key:z6MkiTBz1ymuepAQ4HEHYSF1H8quG5GLVVQR3djdX3mDooWp",
        "did:key:zDnaerDaTF5BXEavCrfRZEk316dpbLsfPDZ3WJ5hRTPFU2169",
    ] {
        let multikey = did.strip_prefix("did:key:").unwrap();
        assert_eq!(PublicKey::from_multikey(multikey).unwrap().to_did(), did);
    }
    let key = ed25519();
    assert_eq!(PublicKey::from_multikey(&key.public().to_multikey()), Ok(key.public()));
    for bad in ["", "z", "z6Mk", "f6MkiTBz1", "zQ3shokFTS3brHcDQrn82RUDfCZESWL1ZdCEJwekUDPQiYBme"] {
        assert!(matches!(PublicKey::from_multikey(bad), Err(JwsError::Key(_))), "{bad}");
    }
    assert!(PublicKey::from_multikey(&format!("z{}", "1".repeat(100_000))).is_err());
}

#[test]
fn both_algorithms_sign_and_neither_is_taken_for_the_other() {
    let (first, second) = (ed25519(), p256());
    for key in [&first, &second] {
        for jws in [key.sign(b"{}").unwrap(), key.sign_attached(b"{}").unwrap()] {
            let jws = Jws::parse(&jws).unwrap();
            assert_eq!(jws.kid(), Some(key.kid()));
            assert_eq!(jws.verify(b"{}", &key.public()), Ok(()));
            assert!(jws.verify(b"[]", &key.public()).is_err());
        }
    }
    let jws = Jws::parse(&first.sign(b"{}").unwrap()).unwrap();
    assert_eq!(
        jws.verify(b"{}", &second.public()),
        Err(JwsError::OtherKey { said: Algorithm::EdDsa, key: Algorithm::Es256 })
    );
    assert_eq!(jws.verify(b"{}", &ed25519().public()), Err(JwsError::Wrong));
}

#[test]
fn what_a_header_may_not_say_is_refused() {
    let with = |header: &str| {
        let signature = URL_SAFE_NO_PAD.encode([0; 64]);
        Jws::parse(&format!("{}..{signature}", URL_SAFE_NO_PAD.encode(header))).map(|_| ())
    };
    assert_eq!(with(r#"{"alg":"EdDSA"}"#), Ok(()));
    for alg in ["none", "HS256", "RS256", ""] {
        let error = with(&format!(r#"{{"alg":"{alg}"}}"#));
        assert_eq!(error, Err(JwsError::Algorithm(alg.to_owned())));
    }
    for header in [
        r#"{"alg":"EdDSA","crit":["exp"],"exp":1}"#,
        r#"{"alg":"EdDSA","b64":false}"#,
        r#"{"alg":"EdDSA","alg":"ES256"}"#,
        r#"{"kid":"1"}"#,
        "[]",
    ] {
        assert!(matches!(with(header), Err(JwsError::Header(_))), "{header}");
    }
    let long = format!(r#"{{"alg":"EdDSA","x":"{}"}}"#, "x".repeat(HEADER_LEN_MAX));
    assert!(matches!(with(&long), Err(JwsError::Header(_))));
    for bad in ["", "a.b", "a..b.c", "e30=..AA"] {
        assert!(matches!(Jws::parse(bad), Err(JwsError::Shape(_))), "{bad}");
    }
    assert!(Jws::parse(&"x".repeat(SIGNATURE_LEN_MAX + 1)).is_err());
}

#[test]
fn keys_of_other_kinds_are_refused() {
    let good = json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
    assert!(PublicKey::from_jwk(&good).is_ok());
    for (member, value) in [
        ("kty", json!("RSA")),
        ("crv", json!("X25519")),
        ("x", json!("AA")),
        ("x", json!("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHUR!")),
        ("use", json!("enc")),
        ("alg", json!("ES256")),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        assert!(PublicKey::from_jwk(&bad).is_err(), "{bad}");
    }
    let off_curve = json!({ "kty": "EC", "crv": "P-256", "x": good["x"], "y": good["x"] });
    assert!(PublicKey::from_jwk(&off_curve).is_err());
}
