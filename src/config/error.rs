//! A bad configuration names the file, the line, what is wrong and the fix.

use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::de::{DeTable, DeValue};

/// Bytes in a configuration file; a longer one is refused unread.
pub const CONFIG_LEN_MAX: u64 = 4 * 1024 * 1024;

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Missing or unreadable.
    #[error("cannot read {}: {source}\n  fix: name an existing file with --config, or make one with `abhyasa init DIR`", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Over [`CONFIG_LEN_MAX`].
    #[error("{} of {len} bytes is over the limit of {CONFIG_LEN_MAX}", file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// A line is wrong.
    #[error("{}:{line}:{column}: {what}\n{line:>5} | {text}\n  fix: {fix}", file.display())]
    Invalid {
        /// The file.
        file: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The line itself.
        text: String,
        /// What is wrong.
        what: String,
        /// What to do about it.
        fix: String,
    },
}

/// A broken rule and the way of keys that leads to it; lists are entered by position.
#[derive(Debug, PartialEq)]
pub(crate) struct Fault {
    path: Vec<String>,
    what: String,
    fix: String,
}

impl Fault {
    pub(crate) fn new<const N: usize>(
        path: [&str; N],
        what: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { path: path.map(str::to_owned).to_vec(), what: what.into(), fix: fix.into() }
    }

    /// The same fault, seen from further out.
    pub(crate) fn under<const N: usize>(mut self, outer: [&str; N]) -> Self {
        self.path.splice(0..0, outer.map(str::to_owned));
        self
    }

    /// Names the line in `text`.
    pub(crate) fn at(self, file: &Path, text: &str) -> ConfigError {
        let span = DeTable::parse(text).ok().and_then(|root| {
            let path: Vec<&str> = self.path.iter().map(String::as_str).collect();
            find(&DeValue::Table(root.into_inner()), &path)
        });
        invalid(file, text, span, self.what, self.fix)
    }
}

/// The place of the deepest part of `path` that is written in the file: for a missing setting
/// that is its table.
fn find(value: &DeValue<'_>, path: &[&str]) -> Option<Range<usize>> {
    let (first, rest) = path.split_first()?;
    let next = match value {
        DeValue::Table(table) => table.get(*first)?,
        DeValue::Array(items) => items.get(first.parse::<usize>().ok()?)?,
        _ => return None,
    };
    Some(find(next.get_ref(), rest).unwrap_or_else(|| next.span()))
}

/// A text that is no TOML, or has the wrong keys or types.
pub(crate) fn unparsable(file: &Path, text: &str, error: &toml::de::Error) -> ConfigError {
    let message = error.message().to_owned();
    let fix = if message.starts_with("missing field `node`") {
        "say who this node is: [node] and, below it, id = \"spiffe://example.org/agent/a\""
    } else if message.starts_with("missing field") {
        "add the missing key to this table"
    } else if message.starts_with("unknown field") || message.starts_with("unknown variant") {
        "use one of the names listed, or delete the line"
    } else {
        "compare with the commented sample that `abhyasa init DIR` writes: it has every key with its unit and default"
    };
    invalid(file, text, error.span(), message, fix.to_owned())
}

fn invalid(
    file: &Path,
    text: &str,
    span: Option<Range<usize>>,
    what: String,
    fix: String,
) -> ConfigError {
    let before = text.get(..span.map_or(0, |s| s.start)).unwrap_or(text);
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    let line_text = text.get(start..).and_then(|rest| rest.lines().next()).unwrap_or_default();
    ConfigError::Invalid {
        file: file.to_owned(),
        line: before.matches('\n').count() + 1,
        column: before.get(start..).unwrap_or_default().chars().count() + 1,
        text: line_text.to_owned(),
        what,
        fix,
    }
}
