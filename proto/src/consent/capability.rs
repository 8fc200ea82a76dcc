//! What a caller is, as far as it bears on how it understands a policy.

use super::limits::{CAPABILITIES_MAX, TERM_LEN_MAX};
use super::text::{ContentHash, Extra, List, Text};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Model, tools and configuration of a caller (Anumati §3.6). Its hash is what a consent record is
/// bound to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapabilityManifest {
    /// Hash of its canonical JSON in which this member is empty.
    #[serde(default = "ContentHash::unset")]
    pub caller_capability_hash: ContentHash,
    /// What influences its reasoning: system prompt, temperature and the like.
    #[serde(default, deserialize_with = "config")]
    pub config: BTreeMap<String, Value>,
    /// The model.
    pub model: Text<TERM_LEN_MAX>,
    /// Its tools. Their order says nothing, so it does not count in the hash.
    pub tools: List<Text<TERM_LEN_MAX>, 0, CAPABILITIES_MAX>,
    /// What this version does not know.
    #[serde(flatten)]
    pub extra: Extra,
}

fn config<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Value>, D::Error> {
    let config = BTreeMap::<String, Value>::deserialize(from)?;
    match config.len() {
        len if len > CAPABILITIES_MAX => Err(D::Error::custom(format_args!(
            "config of {len} members is over the limit of {CAPABILITIES_MAX}"
        ))),
        _ => Ok(config),
    }
}
