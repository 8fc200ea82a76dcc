//! `[acap]` and `[[policy_claims]]`: which usage policy callers consent to, and what it governs.

use super::error::Fault;
use super::gate::{CallPattern, GATE_CALLS_MAX};
use super::section::section;
use proto::consent::{CLAIMS_MAX, ClaimId};
use proto::id::GovernedKey;
use std::path::PathBuf;

/// Tables of `[[policy_claims]]` in one configuration.
pub const POLICY_CLAIMS_MAX: usize = 1_024;

/// Who decides on an adherence event (Anumati §4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcapMode {
    /// The caller; its events are recorded.
    Local,
    /// This node; the caller waits for its permit.
    Delegated,
}

impl AcapMode {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Delegated => "delegated",
        }
    }
}

/// For how many calls a permit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Permits {
    /// For all, until the next event.
    Standing,
    /// For one.
    Once,
}

impl Permits {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Once => "once",
        }
    }
}

/// What becomes of calls in flight when consent ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grace {
    /// They finish.
    Finish,
    /// They are stopped.
    Stop,
}

impl Grace {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finish => "finish",
            Self::Stop => "stop",
        }
    }
}

/// Whether what callers say has to be signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Signatures {
    /// Signatures are kept as they come.
    Off,
    /// One that is there must be good.
    Optional,
    /// There must be one.
    Required,
}

impl Signatures {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Optional => "optional",
            Self::Required => "required",
        }
    }
}

/// What of the chains goes into the node's transparency log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Anchoring {
    /// Nothing; there is no log.
    Off,
    /// Each document under a head of its own.
    Record,
    /// Many under one head.
    Batch,
    /// Consent records only, many under one head.
    Consent,
}

impl Anchoring {
    /// Its word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Record => "record",
            Self::Batch => "batch",
            Self::Consent => "consent",
        }
    }
}

section! {
    /// Consent of callers to a usage policy (Anumati; on the wire ACAP). Once it is enabled, a peer that has
    /// not consented to the policy, or says that it may not do what it asks for, reaches no skill and no tool.
    AcapConfig "acap" {
        /// Whether consent is asked for.
        enabled: bool = false;
        /// File with the policy, as JSON. It is held against the versions served before: a claim that
        /// changes its meaning needs a new id, and a policy that changes a new version.
        policy: Option<PathBuf> = None;
        /// Who decides on an adherence event: "local" is the caller, "delegated" is this node.
        mode: AcapMode = AcapMode::Local;
        /// For how many calls an event that permits is: "standing" for all until the next event of its claim, "once" for
        /// one, so that each call has events of its own (Anumati §4.1 step 4).
        permit: Permits = Permits::Standing;
        /// What becomes of calls in flight when another thing than a revocation ends consent, such as a new policy:
        /// "finish" or "stop". A revocation under custody always stops them.
        grace: Grace = Grace::Finish;
        /// Whether every change of policy or caller ends consent. Else the valid_until of a record says which.
        strict: bool = true;
        /// What an obligation of the kind anumati.consent revokes to withdraw the consent of whoever acts for
        /// its issuer, or, if it is ours, that of its target.
        scope: String = "acap.consent".into();
        /// Whether the agent card has usage_policy also at its top level, where the protocol's first
        /// implementation looks for it. A2A's schema of the card knows no such member.
        usage_policy_in_card: bool = false;
        /// Whether who calls the agent from this machine without a token is the operator, who needs no consent. Else
        /// what claims govern is only for peers, and for who has the token of the API, if one is set.
        local_callers: bool = false;
        /// What becomes of the signatures of callers: "off" keeps them as they come, "optional" refuses a bad one,
        /// "required" what is not signed. Keys are those of signing_keys of the peer, or what a did: or https: name says.
        signatures: Signatures = Signatures::Off;
        /// PEM file (PKCS #8, Ed25519 or P-256) with the key by which this node signs what it says as a caller.
        /// Without it nothing is signed.
        signing_key: Option<PathBuf> = None;
        /// File with a JWKS of further keys to publish beside it, such as those that signed before, with their
        /// exp, or revoked.
        published_keys: Option<PathBuf> = None;
        /// What of the chains is anchored in a transparency log that the node runs, signed by signing_key: "off",
        /// "record" (each under a head of its own), "batch", or "consent" (records only).
        anchor: Anchoring = Anchoring::Off;
        /// How long documents are collected for one batch, in milliseconds.
        anchor_interval_ms: u64 = 1_000, 1 => 86_400_000;
        /// Bytes of the records and events of one caller. A further one is refused.
        caller_len_max: u64 = 1_073_741_824, 65_536 => 1_099_511_627_776;
        /// Callers whose consent is kept. The consent of a further one is refused.
        callers_max: usize = 10_000, 1 => 1_000_000;
        /// Records in the chain of one caller. A further one is refused, until the operator lets the chain go on.
        records_max: u64 = 10_000, 1 => 1_000_000;
        /// Adherence events under one record. A further one is refused until there is a new record.
        events_max: u64 = 100_000, 1 => 1_000_000;
        /// Calls put on record under one record, also those that were refused. A further one is refused.
        attempts_max: u64 = 1_000_000, 1 => 1_000_000_000;
    }
}

/// Calls, and the claims that govern them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyClaims {
    /// The calls.
    pub calls: Vec<CallPattern>,
    /// The claims.
    pub claims: Vec<ClaimId>,
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimsTable {
    calls: Vec<String>,
    claims: Vec<ClaimId>,
}

pub(crate) fn check(
    acap: &AcapConfig,
    tables: Vec<ClaimsTable>,
) -> Result<Vec<PolicyClaims>, Fault> {
    if acap.enabled && acap.policy.is_none() {
        let fix = "add policy = \"usage-policy.json\" to [acap]";
        return Err(Fault::new(["acap", "enabled"], "enabled, and there is no policy", fix));
    }
    GovernedKey::new(&acap.scope).map_err(|error| {
        Fault::new(["acap", "scope"], error.to_string(), "such as scope = \"acap.consent\"")
    })?;
    if tables.len() > POLICY_CLAIMS_MAX {
        let what = format!("{} tables are over the limit of {POLICY_CLAIMS_MAX}", tables.len());
        let fix = "give calls with the same claims one table";
        return Err(Fault::new(["policy_claims"], what, fix));
    }
    let checked = tables.into_iter().enumerate().map(|(at, table)| {
        let at = at.to_string();
        table.check().map_err(|fault| fault.under(["policy_claims", &at]))
    });
    checked.collect()
}

impl ClaimsTable {
    fn check(self) -> Result<PolicyClaims, Fault> {
        let fix = "such as \"a2a:*\", \"a2a:book\", \"mcp:files/*\" or \"mcp:files/read\"";
        if self.calls.is_empty() || self.calls.len() > GATE_CALLS_MAX {
            let what = format!("{} patterns; 1 to {GATE_CALLS_MAX} are taken", self.calls.len());
            return Err(Fault::new(["calls"], what, fix));
        }
        if self.claims.is_empty() || self.claims.len() > CLAIMS_MAX {
            let what = format!("{} claims; 1 to {CLAIMS_MAX} are taken", self.claims.len());
            return Err(Fault::new(["claims"], what, "name claims of the policy"));
        }
        let calls = self.calls.iter().map(|text| CallPattern::new(text));
        let calls = calls.collect::<Result<_, _>>();
        let calls = calls.map_err(|what: String| Fault::new(["calls"], what, fix))?;
        Ok(PolicyClaims { calls, claims: self.claims })
    }
}
