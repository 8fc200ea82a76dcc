//! `[kinds."…"]`: how each kind is carried, and who applies it.

use super::address::HttpUrl;
use super::error::Fault;
use proto::backoff::Backoff;
use proto::id::Kind;
use proto::limits::DEADLINE_SECONDS_MAX;
use proto::profile::{OnDecline, Profile, ProfileError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A kind this node has a polarity rule for, with the values it has when the file says nothing.
pub(crate) struct KindDefaults {
    pub(crate) name: &'static str,
    pub(crate) deadline_seconds: u64,
    pub(crate) max_retries: u32,
    pub(crate) backoff_base_ms: u64,
    pub(crate) backoff_cap_ms: u64,
    pub(crate) jitter_percent: u16,
}

const HOUR: KindDefaults = KindDefaults {
    name: "anumati.consent",
    deadline_seconds: 3_600,
    max_retries: 80,
    backoff_base_ms: 1_000,
    backoff_cap_ms: 60_000,
    jitter_percent: 20,
};

/// The kinds of this build. A name in the file that is not here is a spelling mistake: without a
/// polarity rule nothing of that kind is admissible (AC-1).
pub(crate) const KINDS: [KindDefaults; 3] = [
    HOUR,
    KindDefaults { name: "oauth.token", ..HOUR },
    KindDefaults {
        name: "phala.belief_update",
        deadline_seconds: 86_400,
        max_retries: 200,
        backoff_cap_ms: 600_000,
        ..HOUR
    },
];

/// How long a webhook may take when the file does not say, in milliseconds.
pub(crate) const WEBHOOK_TIMEOUT_MS: u64 = 5_000;
/// How long it may take at most.
const WEBHOOK_TIMEOUT_MS_MAX: u64 = 300_000;

/// How obligations of one kind are carried and applied.
#[derive(Clone, Debug, PartialEq)]
pub struct KindConfig {
    /// Deadline, retries, backoff and what a decline does: coherent (AB-2).
    pub profile: Profile,
    /// Who applies what we receive.
    pub handler: HandlerConfig,
    /// Whether what we issue is sealed to its target where it goes by a relay.
    pub seal: bool,
}

/// Who applies obligations of a kind that are addressed to us.
#[derive(Clone, Debug, PartialEq)]
pub enum HandlerConfig {
    /// The node itself: authorizations and weights, in the commit of the ledger.
    Builtin,
    /// A service beside it, with the obligation id as idempotency key.
    Webhook(WebhookConfig),
}

/// A service that applies, declines or defers.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookConfig {
    /// Where obligations are posted.
    pub url: HttpUrl,
    /// Milliseconds a call may take; a slower one is in doubt.
    pub timeout_ms: u64,
    /// Whether the service can be asked about an id, to settle what is in doubt. If not, such
    /// effects are surfaced for reconciliation.
    pub query: bool,
    /// File with the bearer token to show to the service.
    pub token_file: Option<PathBuf>,
}

/// The table as written. What is absent keeps the default of the kind.
#[derive(Clone, Debug, Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KindTable {
    deadline_seconds: Option<u64>,
    max_retries: Option<u32>,
    backoff_base_ms: Option<u64>,
    backoff_cap_ms: Option<u64>,
    jitter_percent: Option<u16>,
    on_decline: OnDecline,
    handler: Option<HandlerTable>,
    seal: bool,
}

#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HandlerTable {
    r#type: HandlerType,
    url: Option<HttpUrl>,
    timeout_ms: Option<u64>,
    query: Option<bool>,
    token_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum HandlerType {
    Builtin,
    Webhook,
}

/// Every known kind, from the file or by default.
pub(crate) fn check(
    mut tables: BTreeMap<String, KindTable>,
    base: &Path,
) -> Result<BTreeMap<Kind, KindConfig>, Fault> {
    let mut kinds = BTreeMap::new();
    for defaults in &KINDS {
        let table = tables.remove(defaults.name).unwrap_or_default();
        let config = table.check(defaults, base).map_err(|f| f.under(["kinds", defaults.name]))?;
        kinds.insert(kind(defaults.name)?, config);
    }
    match tables.into_keys().next() {
        None => Ok(kinds),
        Some(name) => Err(unknown(&name).under(["kinds", &name])),
    }
}

/// A kind named elsewhere in the file.
pub(crate) fn known(kind: &Kind) -> Result<(), Fault> {
    if KINDS.iter().any(|known| known.name == kind.as_str()) {
        Ok(())
    } else {
        Err(unknown(kind.as_str()))
    }
}

fn kind(name: &str) -> Result<Kind, Fault> {
    Kind::new(name)
        .map_err(|error| Fault::new(["kinds", name], error.to_string(), "use a shorter name"))
}

fn unknown(name: &str) -> Fault {
    let names = KINDS.map(|known| known.name).join(", ");
    Fault::new(
        [],
        format!("no polarity rule for the kind {name:?}"),
        format!("use one of: {names}"),
    )
}

impl KindTable {
    fn check(self, defaults: &KindDefaults, base: &Path) -> Result<KindConfig, Fault> {
        let seconds = self.deadline_seconds.unwrap_or(defaults.deadline_seconds);
        let percent = self.jitter_percent.unwrap_or(defaults.jitter_percent);
        let backoff = Backoff {
            base_ms: self.backoff_base_ms.unwrap_or(defaults.backoff_base_ms),
            cap_ms: self.backoff_cap_ms.unwrap_or(defaults.backoff_cap_ms),
            jitter_permille: percent.saturating_mul(10),
        };
        let retries = self.max_retries.unwrap_or(defaults.max_retries);
        let mut profile =
            Profile::new(seconds.saturating_mul(1000), retries, backoff).map_err(incoherent)?;
        profile.on_decline = self.on_decline;
        let handler = match self.handler {
            None => HandlerConfig::Builtin,
            Some(table) => table.check(base).map_err(|f| f.under(["handler"]))?,
        };
        Ok(KindConfig { profile, handler, seal: self.seal })
    }
}

/// Points at the setting to change.
fn incoherent(error: ProfileError) -> Fault {
    let (key, fix) = match error {
        ProfileError::Deadline { .. } => {
            ("deadline_seconds", format!("use a value from 1 to {DEADLINE_SECONDS_MAX}"))
        }
        ProfileError::Backoff { base_ms, cap_ms, .. } if base_ms == 0 || cap_ms < base_ms => {
            ("backoff_base_ms", "keep 1 <= backoff_base_ms <= backoff_cap_ms".to_owned())
        }
        ProfileError::Backoff { .. } => ("jitter_percent", "use a value from 0 to 99".to_owned()),
        ProfileError::CapPastDeadline { .. } => {
            ("backoff_cap_ms", "lower backoff_cap_ms or raise deadline_seconds".to_owned())
        }
        ProfileError::RetriesTooFew { needed, .. } => {
            ("max_retries", format!("set max_retries = {needed} or more, or raise backoff_cap_ms"))
        }
        ProfileError::RetriesTooMany { max, .. } => ("max_retries", format!("use at most {max}")),
        _ => ("deadline_seconds", "see the message".to_owned()),
    };
    Fault::new([key], error.to_string(), fix)
}

impl HandlerTable {
    fn check(self, base: &Path) -> Result<HandlerConfig, Fault> {
        if self.r#type == HandlerType::Builtin {
            let stray = [
                ("url", self.url.is_some()),
                ("timeout_ms", self.timeout_ms.is_some()),
                ("query", self.query.is_some()),
                ("token_file", self.token_file.is_some()),
            ];
            return match stray.into_iter().find(|(_, set)| *set) {
                None => Ok(HandlerConfig::Builtin),
                Some((key, _)) => Err(Fault::new(
                    [key],
                    format!("the builtin handler has no {key}"),
                    "set type = \"webhook\" or delete the key",
                )),
            };
        }
        let Some(url) = self.url else {
            let fix =
                "add url = \"http://127.0.0.1:9000/obligations\" with the address of the service";
            return Err(Fault::new(["url"], "the webhook handler has no url", fix));
        };
        let timeout_ms = self.timeout_ms.unwrap_or(WEBHOOK_TIMEOUT_MS);
        if !(1..=WEBHOOK_TIMEOUT_MS_MAX).contains(&timeout_ms) {
            return Err(Fault::new(
                ["timeout_ms"],
                format!("timeout_ms is {timeout_ms}"),
                format!("use a value from 1 to {WEBHOOK_TIMEOUT_MS_MAX}"),
            ));
        }
        if self.token_file.is_some() && !url.is_private() {
            let fix = "use https, or a service on this machine";
            return Err(Fault::new(
                ["url"],
                format!("{url} would get the token in clear text"),
                fix,
            ));
        }
        let token_file = self.token_file.map(|file| base.join(file));
        let query = self.query.unwrap_or(true);
        Ok(HandlerConfig::Webhook(WebhookConfig { url, timeout_ms, query, token_file }))
    }
}
