//! What a new version of a policy may change.

use crate::setup::*;
use abhyasa_proto::consent::*;
use serde_json::{Value, json};

fn document(version: &str, supersedes: Option<&str>, claims: &[Value]) -> PolicyDocument {
    parsed::<PolicyDocument>(&policy_json(version, supersedes, claims)).sealed()
}

fn permission(id: &str, since: &str) -> Value {
    claim_json(id, "permission", "odrl:use", None, since)
}

fn prohibition(id: &str, constraint: &str, since: &str) -> Value {
    claim_json(id, "prohibition", "odrl:aggregate", Some(constraint), since)
}

#[test]
fn a_diff_says_what_became_of_each_claim() {
    let old = document(
        "1.0.0",
        None,
        &[permission("a", "1.0.0"), permission("b", "1.0.0"), permission("c", "1.0.0")],
    );
    let mut renumbered = permission("b", "1.0.0");
    renumbered["clause_ref"] = json!("§9");
    let new = document(
        "1.1.0",
        Some("1.0.0"),
        &[permission("d", "1.1.0"), renumbered, permission("a", "1.0.0")],
    );
    let diff = PolicyDiff::between(&old, &new).unwrap();
    let of = |id: &str| diff.claims[&claim(id)];
    assert_eq!(of("a"), ClaimChange::Kept);
    assert_eq!(of("b"), ClaimChange::Renumbered);
    assert_eq!(of("c"), ClaimChange::Retired);
    assert_eq!(of("d"), ClaimChange::Added);
    assert!(diff.material, "a permission is gone");
    let since: Vec<_> =
        new.claims_since(&old.version).map(|claim| claim.claim_id.as_str()).collect();
    assert_eq!(since, ["d"], "who has only the new document finds what was added");
}

#[test]
fn only_what_narrows_is_material() {
    let base = [permission("a", "1.0.0")];
    let old = document("1.0.0", None, &base);
    let with = |claim: Value| document("2.0.0", Some("1.0.0"), &[base[0].clone(), claim]);
    let material = |new: &PolicyDocument| PolicyDiff::between(&old, new).unwrap().material;
    assert!(!material(&with(permission("b", "2.0.0"))));
    assert!(material(&with(prohibition("b", "odrl:purpose is x", "2.0.0"))));
    assert!(material(&with(claim_json("b", "obligation", "a2a:notify_principal", None, "2.0.0"))));
    let mut laws = policy_json("2.0.0", Some("1.0.0"), &base);
    laws["jurisdictions"] = json!(["GDPR"]);
    assert!(material(&parsed(&laws)));
}

#[test]
fn a_claim_that_changes_its_meaning_under_its_id_is_refused() {
    let old = prohibition("a", "odrl:purpose is x", "1.0.0");
    let first = document("1.0.0", None, std::slice::from_ref(&old));
    let changes: [(&str, Value); 8] = [
        ("action", json!("odrl:distribute")),
        ("asset", json!("odrl:All")),
        ("rule_type", json!("permission")),
        ("constraint", json!("odrl:purpose is y")),
        ("constraint", Value::Null),
        ("escalate_on_deny", json!(true)),
        ("category", json!("health")),
        ("what_we_do_not_know", json!(1)),
    ];
    for (member, changed) in changes {
        let mut claim_ = old.clone();
        claim_[member] = changed;
        let mut lineage = Lineage::new(first.clone()).unwrap();
        let error = lineage.publish(document("2.0.0", Some("1.0.0"), &[claim_])).unwrap_err();
        let (version, since) = (PolicyVersion::new("2.0.0").unwrap(), first.version.clone());
        assert_eq!(error, DiffError::Meaning { version, claim: claim("a"), since }, "{member}");
        assert_eq!(*lineage.latest(), first, "nothing was published");
    }
}

#[test]
fn a_retired_id_stays_taken() {
    let mut lineage = Lineage::new(document(
        "1.0.0",
        None,
        &[permission("a", "1.0.0"), permission("b", "1.0.0")],
    ))
    .unwrap();
    lineage.publish(document("1.1.0", Some("1.0.0"), &[permission("b", "1.0.0")])).unwrap();
    let again =
        document("1.2.0", Some("1.1.0"), &[permission("b", "1.0.0"), permission("a", "1.2.0")]);
    let error = lineage.publish(again).unwrap_err();
    assert_eq!(error.to_string(), "policy 1.2.0: claim a was retired by 1.1.0; its id stays taken");
    let fresh =
        document("1.2.0", Some("1.1.0"), &[permission("b", "1.0.0"), permission("a2", "1.2.0")]);
    assert!(lineage.publish(fresh).is_ok());
}

#[test]
fn a_new_claim_is_as_old_as_it_is() {
    let mut lineage = Lineage::new(document("1.0.0", None, &[permission("a", "1.0.0")])).unwrap();
    let back =
        document("1.1.0", Some("1.0.0"), &[permission("a", "1.0.0"), permission("b", "0.9.0")]);
    assert!(matches!(lineage.publish(back), Err(DiffError::Backdated { .. })));
    let ahead =
        document("1.1.0", Some("1.0.0"), &[permission("a", "1.0.0"), permission("b", "1.2.0")]);
    let error = lineage.publish(ahead).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy 1.1.0: claim b was introduced by 1.2.0, after this version"
    );
}

#[test]
fn versions_only_go_up_one_after_the_other() {
    let claims = [permission("a", "0.1.0")];
    let mut lineage = Lineage::new(document("1.0.0", None, &claims)).unwrap();
    for (version, supersedes) in
        [("1.0.0", None), ("0.9.0", None), ("1.0.0-rc.1", None), ("1.0.0+build.2", None)]
    {
        let error = lineage.publish(document(version, supersedes, &claims)).unwrap_err();
        assert!(matches!(error, DiffError::NotNewer { .. }), "{version}: {error}");
    }
    for supersedes in [None, Some("0.9.0")] {
        let error = lineage.publish(document("1.10.0", supersedes, &claims)).unwrap_err();
        assert!(matches!(error, DiffError::Supersedes { .. }), "{error}");
    }
    let mut other = policy_json("1.10.0", Some("1.0.0"), &claims);
    other["publisher"] = json!("did:web:another.example");
    assert!(matches!(lineage.publish(parsed(&other)), Err(DiffError::Publisher { .. })));
    lineage.publish(document("1.9.0", Some("1.0.0"), &claims)).unwrap();
    lineage.publish(document("1.10.0", Some("1.9.0"), &claims)).unwrap();
}

#[test]
fn what_a_document_says_of_itself_agrees() {
    let check =
        |claims: &[Value]| parsed::<PolicyDocument>(&policy_json("2.0.0", None, claims)).check();
    let twice = [permission("a", "1.0.0"), permission("a", "1.0.0")];
    assert_eq!(check(&twice), Err(PolicyFault::ClaimTwice { claim: claim("a") }));
    let mut none = permission("a", "1.0.0");
    none.as_object_mut().unwrap().remove("effective_version");
    assert_eq!(check(&[none]), Err(PolicyFault::NoSince { claim: claim("a") }));
    let mut both = permission("a", "1.0.0");
    both["since_version"] = json!("1.0.0");
    assert_eq!(check(std::slice::from_ref(&both)), Ok(()));
    both["since_version"] = json!("1.1.0");
    assert!(matches!(check(&[both]), Err(PolicyFault::TwoSince { .. })));
    let same = policy_json("2.0.0", Some("2.0.0"), &[permission("a", "1.0.0")]);
    assert!(matches!(parsed::<PolicyDocument>(&same).check(), Err(PolicyFault::Supersedes { .. })));
}

#[test]
fn bd1_a_line_of_policies_uses_up_so_many_ids() {
    let claims = |round: usize, since: &str| -> Vec<Value> {
        (0..CLAIMS_MAX).map(|n| permission(&format!("{round}-{n}"), since)).collect()
    };
    let mut lineage = Lineage::new(document("1.0.0", None, &claims(0, "1.0.0"))).unwrap();
    let rounds = CLAIMS_EVER_MAX / CLAIMS_MAX;
    for round in 1..rounds {
        let (version, last) = (format!("1.{round}.0"), lineage.latest().version.to_string());
        lineage.publish(document(&version, Some(&last), &claims(round, &version))).unwrap();
    }
    let (version, last) = (format!("1.{rounds}.0"), lineage.latest().version.to_string());
    let error =
        lineage.publish(document(&version, Some(&last), &claims(rounds, &version))).unwrap_err();
    assert!(
        matches!(error, DiffError::TooManyClaims { count, .. } if count == CLAIMS_EVER_MAX + CLAIMS_MAX),
        "{error}"
    );
}
