//! `[[consent]]`: callees to whose usage policies this node consents, as the caller.

use super::address::HttpUrl;
use super::error::Fault;
use super::peers::PeerConfig;
use proto::consent::{
    CLAIMS_MAX, CONTEXT_COUNT_MAX, ClaimId, Context, PrincipalId, TERM_LEN_MAX, Text, USES_MAX,
};
use proto::id::AgentId;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Tables of `[[consent]]` in one configuration.
pub const CONSENT_CALLEES_MAX: usize = 1_024;
/// Seconds a record may hold.
const VALID_SECONDS_MAX: u64 = 10 * 366 * 86_400;
/// Seconds a person has to answer.
const ANSWER_SECONDS_MAX: u64 = 366 * 86_400;
/// Seconds between two looks at a policy.
const POLL_SECONDS_MAX: u64 = 86_400;

/// What is consented to without a person.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accept {
    /// Policies of which every claim is understood.
    #[default]
    Understood,
    /// Those of whose claims each is understood and listed.
    Listed,
    /// None.
    Never,
}

/// Which changes of a policy that was consented to wait for a person (Anumati §6.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Review {
    /// Those that take away or change a claim, or come under other laws; what is only added does not.
    #[default]
    Tiered,
    /// Also those that add a prohibition or an obligation.
    Material,
}

/// Who decides on an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decides {
    /// This node.
    #[default]
    Local,
    /// The callee, where it is stricter.
    Delegated,
}

/// A use that is intended.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IntendedUse {
    /// The action, such as `odrl:aggregate`.
    pub action: Text<TERM_LEN_MAX>,
    /// What it is done to.
    pub asset: Text<TERM_LEN_MAX>,
}

/// Consent to one callee's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConsentTo {
    /// Whose policy.
    pub callee: AgentId,
    /// Where it is, over HTTP; else it is reached over HTTP/3 at the peer's address.
    pub url: Option<HttpUrl>,
    /// The bearer token to show there.
    pub token_file: Option<PathBuf>,
    /// What is consented to without a person.
    pub accept: Accept,
    /// The claims that are.
    pub claims: BTreeSet<ClaimId>,
    /// Who decides on an action.
    pub mode: Decides,
    /// On whose behalf we act.
    pub principal: Option<PrincipalId>,
    /// File with what we are: a capability manifest, JSON.
    pub manifest: Option<PathBuf>,
    /// What is known of every action.
    pub facts: Context,
    /// What we intend; claims against it are disputed.
    pub uses: Vec<IntendedUse>,
    /// Seconds a record holds.
    pub valid_seconds: u64,
    /// Seconds between two looks at the policy.
    pub poll_seconds: u64,
    /// Which changes wait for a person.
    pub review: Review,
    /// Seconds she has to answer.
    pub answer_seconds: u64,
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConsentTable {
    callee: AgentId,
    url: Option<HttpUrl>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    accept: Accept,
    #[serde(default)]
    claims: BTreeSet<ClaimId>,
    #[serde(default)]
    mode: Decides,
    principal: Option<PrincipalId>,
    manifest: Option<PathBuf>,
    #[serde(default)]
    facts: BTreeMap<String, String>,
    #[serde(default)]
    uses: Vec<IntendedUse>,
    valid_seconds: Option<u64>,
    poll_seconds: Option<u64>,
    #[serde(default)]
    review: Review,
    answer_seconds: Option<u64>,
}

pub(crate) fn check(
    tables: Vec<ConsentTable>,
    peers: &[PeerConfig],
    base: &Path,
) -> Result<Vec<ConsentTo>, Fault> {
    if tables.len() > CONSENT_CALLEES_MAX {
        let what = format!("{} tables are over the limit of {CONSENT_CALLEES_MAX}", tables.len());
        return Err(Fault::new(["consent"], what, "split the node"));
    }
    let mut seen = BTreeSet::new();
    let mut checked = Vec::new();
    for (at, table) in tables.into_iter().enumerate() {
        let at = at.to_string();
        let one = table.check(peers, base).map_err(|fault| fault.under(["consent", &at]))?;
        if !seen.insert(one.callee.clone()) {
            let what = format!("{} is listed twice", one.callee);
            return Err(Fault::new(["consent", &at, "callee"], what, "give each callee one table"));
        }
        checked.push(one);
    }
    Ok(checked)
}

impl ConsentTable {
    fn check(self, peers: &[PeerConfig], base: &Path) -> Result<ConsentTo, Fault> {
        let within = |key: &'static str, value: u64, max: u64| {
            if (1..=max).contains(&value) {
                return Ok(value);
            }
            let what = format!("{key} is {value}");
            Err(Fault::new([key], what, format!("use a value from 1 to {max}")))
        };
        let dialled = peers.iter().any(|peer| peer.id == self.callee && peer.address.is_some());
        if self.url.is_none() && !dialled {
            let what = format!("{} has no url here, and is no peer with an address", self.callee);
            return Err(Fault::new(
                ["callee"],
                what,
                "add url = \"https://…\", or an address to its [[peers]] table",
            ));
        }
        if self.url.is_none() && self.token_file.is_some() {
            let what = "token_file is of a url, and over HTTP/3 the certificate says who we are";
            return Err(Fault::new(["token_file"], what, "leave it out, or add url"));
        }
        if self.claims.len() > CLAIMS_MAX {
            let what = format!("{} claims are over the limit of {CLAIMS_MAX}", self.claims.len());
            return Err(Fault::new(["claims"], what, "a policy has no more"));
        }
        if self.uses.len() > USES_MAX {
            let what = format!("{} uses are over the limit of {USES_MAX}", self.uses.len());
            return Err(Fault::new(["uses"], what, "name fewer"));
        }
        let fix = format!("at most {CONTEXT_COUNT_MAX} names, each with a text");
        let facts = Context::new(self.facts).map_err(|what| Fault::new(["facts"], what, fix))?;
        Ok(ConsentTo {
            callee: self.callee,
            url: self.url,
            token_file: self.token_file.map(|file| base.join(file)),
            accept: self.accept,
            claims: self.claims,
            mode: self.mode,
            principal: self.principal,
            manifest: self.manifest.map(|file| base.join(file)),
            facts,
            uses: self.uses,
            valid_seconds: within(
                "valid_seconds",
                self.valid_seconds.unwrap_or(30 * 86_400),
                VALID_SECONDS_MAX,
            )?,
            poll_seconds: within(
                "poll_seconds",
                self.poll_seconds.unwrap_or(60),
                POLL_SECONDS_MAX,
            )?,
            review: self.review,
            answer_seconds: within(
                "answer_seconds",
                self.answer_seconds.unwrap_or(86_400),
                ANSWER_SECONDS_MAX,
            )?,
        })
    }
}
