//! `[[gate]]`: which calls need which authorization before they run.

use super::error::Fault;
use super::kinds::known;
use proto::id::{AgentId, GovernedKey, Kind};

/// Rules in one configuration.
pub const GATE_RULES_MAX: usize = 1_024;
/// Patterns of one rule.
pub const GATE_CALLS_MAX: usize = 256;

/// One rule: calls that need an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRule {
    /// The calls.
    pub calls: Vec<CallPattern>,
    /// What must be granted.
    pub scope: GovernedKey,
    /// By whom.
    pub principal: GatePrincipal,
    /// Kinds whose word counts; empty for all.
    pub kinds: Vec<Kind>,
    /// Whether what nobody ever spoke of is taken for granted.
    pub unknown_allowed: bool,
}

/// Whose word a rule asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatePrincipal {
    /// The principal of whoever calls: may this node do it for them?
    Caller,
    /// This node: does it let the caller do it?
    Own,
    /// This agent: may this node do it for them, whoever calls?
    Named(AgentId),
}

/// `a2a:SKILL` or `mcp:SERVER/TOOL`; a `*` at the end stands for the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallPattern {
    text: String,
    open: bool,
}

impl CallPattern {
    pub(super) fn new(text: &str) -> Result<Self, String> {
        let (named, open) = match text.strip_suffix('*') {
            Some(named) => (named, true),
            None => (text, false),
        };
        let known = named.starts_with("a2a:") || named.starts_with("mcp:");
        if !known || named.contains('*') || (!open && named.len() == 4) {
            return Err(format!("{text:?} is no pattern of calls"));
        }
        Ok(Self { text: named.to_owned(), open })
    }

    /// Whether a call of this name is meant, such as `mcp:files/read`.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        if self.open { name.starts_with(&self.text) } else { name == self.text }
    }

    /// Whether some call whose name begins so is meant.
    #[must_use]
    pub fn reaches(&self, beginning: &str) -> bool {
        self.text.starts_with(beginning) || (self.open && beginning.starts_with(&self.text))
    }
}

/// The table as written.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GateTable {
    calls: Vec<String>,
    scope: GovernedKey,
    principal: String,
    kind: Option<Kind>,
    #[serde(default)]
    unknown: Unknown,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Unknown {
    #[default]
    Deny,
    Allow,
}

pub(crate) fn check(tables: Vec<GateTable>) -> Result<Vec<GateRule>, Fault> {
    if tables.len() > GATE_RULES_MAX {
        let what = format!("{} rules are over the limit of {GATE_RULES_MAX}", tables.len());
        return Err(Fault::new(["gate"], what, "give calls with the same needs one rule"));
    }
    let checked = tables.into_iter().enumerate().map(|(at, table)| {
        let at = at.to_string();
        table.check().map_err(|fault| fault.under(["gate", &at]))
    });
    checked.collect()
}

impl GateTable {
    fn check(self) -> Result<GateRule, Fault> {
        let fix = "such as \"a2a:*\", \"a2a:book\", \"mcp:files/*\" or \"mcp:files/read\"";
        if self.calls.is_empty() || self.calls.len() > GATE_CALLS_MAX {
            let what = format!("{} patterns; 1 to {GATE_CALLS_MAX} are taken", self.calls.len());
            return Err(Fault::new(["calls"], what, fix));
        }
        let calls = self.calls.iter().map(|text| CallPattern::new(text));
        let calls = calls.collect::<Result<_, _>>();
        let principal = match self.principal.as_str() {
            "caller" => GatePrincipal::Caller,
            "self" => GatePrincipal::Own,
            id => GatePrincipal::Named(AgentId::new(id).map_err(|error| {
                let fix = "name an agent, \"caller\" or \"self\"";
                Fault::new(["principal"], error.to_string(), fix)
            })?),
        };
        if let Some(kind) = &self.kind {
            known(kind).map_err(|fault| fault.under(["kind"]))?;
        }
        Ok(GateRule {
            calls: calls.map_err(|what: String| Fault::new(["calls"], what, fix))?,
            scope: self.scope,
            principal,
            kinds: self.kind.into_iter().collect(),
            unknown_allowed: self.unknown == Unknown::Allow,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_names_and_reaches_beginnings() {
        let pattern = |text| CallPattern::new(text).unwrap();
        assert!(pattern("mcp:files/*").covers("mcp:files/read"));
        assert!(!pattern("mcp:files/*").covers("mcp:filesystem/read"));
        assert!(pattern("mcp:files/read").covers("mcp:files/read"));
        assert!(!pattern("mcp:files/read").covers("mcp:files/read_all"));
        assert!(pattern("a2a:*").covers("a2a:book") && !pattern("a2a:*").covers("mcp:a/b"));
        assert!(pattern("a2a:book").reaches("a2a:") && pattern("a2a:*").reaches("a2a:"));
        assert!(pattern("mcp:*").reaches("mcp:files/") && !pattern("mcp:x/*").reaches("mcp:y/"));
        for wrong in ["", "*", "a2a:", "mcp:", "files/read", "a2a:*book", "mcp:**"] {
            assert!(CallPattern::new(wrong).is_err(), "{wrong}");
        }
    }
}
