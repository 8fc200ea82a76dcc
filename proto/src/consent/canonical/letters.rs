//! The canonical letters of a policy, written as they come: its members in their order, and no tree of
//! values between. The policy is the longest document there is, and its hash the one most often computed.
//!
//! It is for documents whose texts need no escape and which have no members we do not know; the others
//! take the way of all values.

use crate::consent::policy::{PolicyClaim, PolicyDocument, RuleType};
use crate::consent::text::PolicyVersion;

/// Bytes of a claim, more or less: room that is there at once is not copied later.
const CLAIM_LEN_GUESS: usize = 384;
/// Bytes whose quotes are counted in one byte: at most 255.
const COUNTED: usize = 192;

/// The canonical JSON of `policy` with `document_hash` empty; none, if it is not one of these.
pub(super) fn of_policy(policy: &PolicyDocument) -> Option<Vec<u8>> {
    if !policy.extra.0.is_empty() || policy.claims.iter().any(|claim| !claim.extra.0.is_empty()) {
        return None;
    }
    let capacity = 1_024 + policy.claims.len() * CLAIM_LEN_GUESS;
    let mut to = Letters { out: Vec::with_capacity(capacity), quotes: 0 };
    to.raw("{");
    if let Some(summary) = &policy.change_summary {
        to.text("\"change_summary\":\"", summary.as_str());
        to.raw(",");
    }
    to.list("\"claims\":[", policy.claims.iter(), Letters::claim);
    to.text(",\"document_hash\":\"", "");
    to.text(",\"document_uri\":\"", policy.document_uri.as_str());
    to.text(",\"effective_date\":\"", policy.effective_date.as_str());
    if let Some(jurisdictions) = &policy.jurisdictions {
        to.list(",\"jurisdictions\":[", jurisdictions.iter(), |to, name| {
            to.quotes += 2;
            to.raw("\"");
            to.raw(name.as_str());
            to.raw("\"");
        });
    }
    to.text(",\"natural_language_uri\":\"", policy.natural_language_uri.as_str());
    to.text(",\"publisher\":\"", policy.publisher.as_str());
    if let Some(version) = &policy.supersedes {
        to.version(",\"supersedes\":\"", version);
    }
    to.version(",\"version\":\"", &policy.version);
    to.raw("}");
    to.is_plain().then_some(to.out)
}

struct Letters {
    out: Vec<u8>,
    /// Quotes that are not part of a text.
    quotes: usize,
}

impl Letters {
    fn raw(&mut self, letters: &str) {
        self.out.extend_from_slice(letters.as_bytes());
    }

    /// A member; `before` has its name and three quotes.
    fn text(&mut self, before: &'static str, text: &str) {
        self.quotes += 4;
        self.raw(before);
        self.raw(text);
        self.out.push(b'"');
    }

    fn version(&mut self, before: &'static str, version: &PolicyVersion) {
        self.quotes += 4;
        self.raw(before);
        version.write_to(&mut self.out);
        self.out.push(b'"');
    }

    fn list<T>(
        &mut self,
        before: &'static str,
        items: impl Iterator<Item = T>,
        write: impl Fn(&mut Self, T),
    ) {
        self.quotes += 2;
        self.raw(before);
        for (at, item) in items.enumerate() {
            if at > 0 {
                self.out.push(b',');
            }
            write(self, item);
        }
        self.out.push(b']');
    }

    fn claim(&mut self, claim: &PolicyClaim) {
        self.text("{\"action\":\"", claim.action.as_str());
        self.text(",\"asset\":\"", claim.asset.as_str());
        if let Some(category) = &claim.category {
            self.text(",\"category\":\"", category.as_str());
        }
        self.text(",\"claim_id\":\"", claim.claim_id.as_str());
        self.text(",\"clause_ref\":\"", claim.clause_ref.as_str());
        if let Some(constraint) = &claim.constraint {
            self.text(",\"constraint\":\"", constraint.as_str());
        }
        if let Some(dimension) = &claim.dimension {
            self.text(",\"dimension\":\"", dimension.as_str());
        }
        if let Some(version) = &claim.effective_version {
            self.version(",\"effective_version\":\"", version);
        }
        if let Some(escalate) = claim.escalate_on_deny {
            self.quotes += 2;
            self.raw(",\"escalate_on_deny\":");
            self.raw(if escalate { "true" } else { "false" });
        }
        let rule = match claim.rule_type {
            RuleType::Permission => "permission",
            RuleType::Prohibition => "prohibition",
            RuleType::Obligation => "obligation",
        };
        self.text(",\"rule_type\":\"", rule);
        if let Some(version) = &claim.since_version {
            self.version(",\"since_version\":\"", version);
        }
        self.out.push(b'}');
    }

    /// Whether no text had to be escaped (RFC 8785 §3.2.2.2): there are no quotes but ours, and none of the
    /// letters that are never there otherwise. One look over all is cheaper than one at each text.
    fn is_plain(&self) -> bool {
        let (mut quotes, mut escaped) = (0, 0);
        for bytes in self.out.chunks(COUNTED) {
            let mut count = 0u8;
            for byte in bytes {
                count += u8::from(*byte == b'"');
                escaped |= u8::from(*byte < b' ') | u8::from(*byte == b'\\');
            }
            quotes += usize::from(count);
        }
        escaped == 0 && quotes == self.quotes
    }
}
