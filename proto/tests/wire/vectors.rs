//! WR-1: golden bytes. A change of the wire shows as a vector that no longer matches; old vectors
//! are never rewritten. `ABHYASA_BLESS=1` writes the vectors that have no file yet.

use super::diag::diag;
use super::samples::{self, Sample};
use super::{cddl::Schema, recode};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors")
}

/// Every vector there is: name, rule, bytes, notation. The comment's first word is the rule.
fn stored() -> Vec<(String, String, Bytes, String)> {
    let mut stored = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "cbor") {
            continue;
        }
        let text = fs::read_to_string(path.with_extension("diag")).unwrap();
        let (comment, notation) = text.split_once(" /\n").unwrap();
        let rule = comment.trim_start_matches("/ ").split('.').next().unwrap().to_owned();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        stored.push((name, rule, fs::read(&path).unwrap().into(), notation.to_owned()));
    }
    stored
}

fn bless(Sample(name, rule, comment, bytes): &Sample) {
    let path = folder().join(name).with_extension("cbor");
    if !path.exists() {
        fs::write(&path, bytes).unwrap();
        let text = format!("/ {rule}. {comment} /\n{}\n", diag(bytes));
        fs::write(path.with_extension("diag"), text).unwrap();
    }
}

#[test]
fn wr1_what_we_encode_is_what_the_vectors_hold() {
    let samples = samples::all();
    if std::env::var_os("ABHYASA_BLESS").is_some() {
        samples.iter().for_each(bless);
    }
    for Sample(name, _, _, bytes) in &samples {
        let path = folder().join(name).with_extension("cbor");
        let stored = fs::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(diag(bytes), diag(&stored), "{name} is encoded in another way than stored");
        assert_eq!(*bytes, stored, "{name} is encoded in another way than stored");
    }
    let names: BTreeSet<_> = samples.iter().map(|sample| sample.0).collect();
    assert_eq!(names.len(), samples.len(), "two samples of one name");
}

#[test]
fn wr1_every_vector_is_read_written_back_and_in_the_schema() {
    let schema = Schema::load();
    let stored = stored();
    assert!(stored.len() >= samples::all().len(), "vectors are missing");
    for (name, rule, bytes, notation) in stored {
        let again = recode(&rule, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(again, bytes, "{name} is not written back as read");
        assert_eq!(diag(&bytes).trim(), notation.trim(), "{name} and its notation differ");
        schema.check(&rule, &bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn wr1_a_vector_cut_short_or_run_long_is_refused() {
    for (name, rule, bytes, _) in stored() {
        for len in 0..bytes.len() {
            assert!(recode(&rule, &bytes.slice(..len)).is_err(), "{name} cut at {len} was read");
        }
        let long: Bytes = [&bytes[..], &[0]].concat().into();
        assert!(recode(&rule, &long).is_err(), "{name} with a byte after it was read");
    }
}
