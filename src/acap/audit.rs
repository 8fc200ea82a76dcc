//! Audit: what one caller and one callee have agreed and done, as lines of JSON that anybody can check offline.
//!
//! An export begins with whose it is and ends with the count and digest of its lines. Between stand the versions of the
//! policy, the chain of records, the trail of events, and the tree heads of the logs they are anchored in, with the
//! proofs that each continues the one before it. Keys are not in it: whose key it is has to be known from elsewhere,
//! or a forger would send his own.

mod export;
mod verify;

pub use export::Exporter;
pub use verify::{VerifyOptions, verify};

use super::log::{Digest, TreeHead};
use proto::consent::{
    AdherenceEvent, ConsentRecord, ContentHash, DOCUMENT_LEN_MAX, PolicyDocument, Stamp,
};
use proto::id::AgentId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The version of the format.
pub const EXPORT_VERSION: u64 = 1;
/// Bytes of an export; a longer one is refused.
pub const EXPORT_LEN_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of a line: a document and what says that it is one. A longer line is passed over, and said to be.
pub const LINE_LEN_MAX: usize = DOCUMENT_LEN_MAX + 1_024;
/// Findings that are told in full; of further ones it says how many.
pub const FINDINGS_MAX: usize = 100;

/// One line of an export.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Line {
    /// The first: whose it is.
    Export(Header),
    /// A version of the policy, the oldest first.
    Policy {
        /// It.
        document: PolicyDocument,
    },
    /// A consent record, the oldest first.
    Record {
        /// It.
        document: ConsentRecord,
    },
    /// An adherence event, the oldest first.
    Event {
        /// It.
        document: AdherenceEvent,
    },
    /// A tree head of a log.
    TreeHead {
        /// It.
        head: TreeHead,
    },
    /// That one tree of a log continues another (RFC 9162 §2.1.4).
    Consistency {
        /// Which log.
        log_id: String,
        /// Leaves of the earlier tree.
        first: u64,
        /// Leaves of the later one.
        second: u64,
        /// The proof.
        path: Vec<Digest>,
    },
    /// The last: how much there is.
    End {
        /// Lines before it.
        lines: u64,
        /// The SHA-256 of their bytes, line ends included.
        digest: ContentHash,
    },
}

/// Whose an export is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Of the format.
    pub version: u64,
    /// Who consents.
    pub caller: AgentId,
    /// To whose policy.
    pub callee: AgentId,
    /// When it was made.
    pub exported_at: Stamp,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// In which line, from 1.
    pub line: u64,
    /// Which document or part.
    pub what: String,
    /// Which rule it breaks.
    pub rule: Rule,
    /// What is wrong, in words.
    pub says: String,
    /// What belongs there, where it is one value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// What is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub found: Option<String>,
}

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Each line is one of the format.
    Format,
    /// Nothing is cut off.
    End,
    /// A policy has the hash it says (Anumati §3.1).
    PolicyHash,
    /// Versions follow each other, and claims keep their meaning (Anumati §3.1).
    PolicyVersions,
    /// Records are a chain (Anumati §3.2).
    Chain,
    /// A record answers the policy it cites (Anumati §3.2).
    Claims,
    /// Events are a trail that rests on the chain (Anumati §3.3).
    Trail,
    /// Signatures are those of the caller (Anumati §3.4).
    Signature,
    /// Anchors are over their documents, and in their logs (Anumati §3.4).
    Anchor,
    /// Tree heads are signed, and there is one for each size (RFC 9162 §4.10).
    TreeHead,
    /// Each tree of a log continues the one before it (RFC 9162 §2.1.4).
    Consistency,
}

impl Rule {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::End => "end",
            Self::PolicyHash => "policy_hash",
            Self::PolicyVersions => "policy_versions",
            Self::Chain => "chain",
            Self::Claims => "claims",
            Self::Trail => "trail",
            Self::Signature => "signature",
            Self::Anchor => "anchor",
            Self::TreeHead => "tree_head",
            Self::Consistency => "consistency",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}: {}: {}", self.line, self.what, self.rule.as_str(), self.says)?;
        if let Some(expected) = &self.expected {
            write!(f, "\n    expected {expected}")?;
        }
        if let Some(found) = &self.found {
            write!(f, "\n    found    {found}")?;
        }
        Ok(())
    }
}

/// What a check came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Whether nothing is wrong.
    pub good: bool,
    /// The first [`FINDINGS_MAX`] things that are wrong, in the order of the checks.
    pub findings: Vec<Finding>,
    /// How many there are.
    pub count: u64,
    /// What was not wrong and yet should be known.
    pub notes: Vec<String>,
    /// Versions of the policy.
    pub policies: usize,
    /// Consent records.
    pub records: usize,
    /// Adherence events.
    pub events: usize,
    /// Documents that are signed.
    pub signed: usize,
    /// Documents that are anchored in a log, with their proofs.
    pub anchored: usize,
}

impl Report {
    fn add(&mut self, line: u64, what: impl Into<String>, rule: Rule, says: impl ToString) {
        self.differ(line, what, rule, says, None);
    }

    fn differ(
        &mut self,
        line: u64,
        what: impl Into<String>,
        rule: Rule,
        says: impl ToString,
        values: Option<(String, String)>,
    ) {
        self.count += 1;
        if self.findings.len() < FINDINGS_MAX {
            let (expected, found) = values.unzip();
            let (what, says) = (what.into(), says.to_string());
            self.findings.push(Finding { line, what, rule, says, expected, found });
        }
    }
}

#[cfg(test)]
mod tests;
