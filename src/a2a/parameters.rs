//! Service parameters (A2A §3.2.6): what comes beside a call, whatever carries it.

use super::fault::{Fault, Kind};

/// Versions of A2A that are spoken, each without its patch number (A2A §3.6).
pub(crate) const VERSION: &str = "1.0";
/// The version of a client that names none (A2A §3.6.2).
const VERSION_UNNAMED: &str = "0.3";
/// Extensions that a call may name; further ones are not looked at.
const EXTENSIONS_MAX: usize = 64;

/// Whether a version is ours, whatever its patch number.
pub(crate) fn is_our_version(text: &str) -> bool {
    text == VERSION
        || text.strip_prefix(VERSION).and_then(|patch| patch.strip_prefix('.')).is_some_and(
            |patch| !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit()),
        )
}

/// Refuses versions that are not ours (A2A §3.6.2): `named` is that of `A2A-Version`.
pub(crate) fn check_version(named: Option<&str>) -> Result<(), Fault> {
    let version = named.map(str::trim).filter(|text| !text.is_empty()).unwrap_or(VERSION_UNNAMED);
    if is_our_version(version) {
        return Ok(());
    }
    let what = format!("A2A {version} is not spoken here; A2A-Version: {VERSION} is");
    Err(Fault::new(Kind::VersionNotSupported, what).with("supportedVersions", VERSION))
}

/// The URIs in the values of `A2A-Extensions`.
pub(crate) fn extensions<'a>(values: impl Iterator<Item = &'a str>) -> Vec<String> {
    values
        .flat_map(|list| list.split(','))
        .map(str::trim)
        .filter(|uri| !uri.is_empty())
        .take(EXTENSIONS_MAX)
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_ours_whatever_its_patch() {
        for ours in ["1.0", "1.0.0", "1.0.17"] {
            assert!(is_our_version(ours), "{ours}");
        }
        for other in ["", "0.3", "1", "1.1", "1.00", "1.0.", "1.0.x", "11.0", "2.0"] {
            assert!(!is_our_version(other), "{other}");
        }
    }

    #[test]
    fn bd1_extensions_are_told_apart_and_no_more_than_a_few_are_looked_at() {
        assert_eq!(extensions(["a:1, b:2", "", " ,c:3"].into_iter()), ["a:1", "b:2", "c:3"]);
        let many = "u,".repeat(EXTENSIONS_MAX + 1);
        assert_eq!(extensions([many.as_str()].into_iter()).len(), EXTENSIONS_MAX);
    }
}
