//! Lists that a client may read and be told of, a page at a time.

use super::{Caller, unknown_resource};
use crate::api::cells::{CellParams, authorization_page};
use crate::api::error::ApiError;
use crate::api::lists::{PageParams, pending_page};
use crate::api::operator::{InboxParams, inbox};
use crate::node::NodeHandle;
use axum::http::{StatusCode, Uri};
use rmcp::ErrorData;
use rmcp::model::{ReadResourceResult, Resource, ResourceContents, ResourceTemplate};
use serde::Serialize;
use serde_json::json;

/// What every resource is.
const JSON: &str = "application/json";

/// A resource that changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Topic {
    Pending,
    Escalations,
    Authorizations,
}

impl Topic {
    pub(super) const ALL: [Self; 3] = [Self::Pending, Self::Escalations, Self::Authorizations];

    pub(super) const fn uri(self) -> &'static str {
        match self {
            Self::Pending => "abhyasa://pending",
            Self::Escalations => "abhyasa://escalations",
            Self::Authorizations => "abhyasa://authorizations",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Escalations => "escalations",
            Self::Authorizations => "authorizations",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Pending => "Obligations under custody, in order of issue.",
            Self::Escalations => {
                "Escalations that nobody has acknowledged, oldest first: obligations that were not \
                 confirmed in time, with the fail-safe that was applied."
            }
            Self::Authorizations => {
                "Authorizations, granted and withheld: what this node lets agents do, and what they let \
                 it do."
            }
        }
    }

    /// The resource of a URI without a page.
    pub(super) fn of(uri: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|topic| topic.uri() == uri)
    }

    /// The resource of a URI, and the page it asks for (RFC 6570: `{?after}`).
    fn page_of(uri: &str) -> Option<(Self, Option<String>)> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Query {
            after: Option<String>,
        }
        let Some((base, _)) = uri.split_once('?') else { return Some((Self::of(uri)?, None)) };
        let parsed: Uri = uri.parse().ok()?;
        let query = axum::extract::Query::<Query>::try_from_uri(&parsed).ok()?;
        Some((Self::of(base)?, query.0.after))
    }
}

pub(super) fn list(caller: &Caller) -> Vec<Resource> {
    if *caller != Caller::Operator {
        return Vec::new();
    }
    let resource = |topic: Topic| {
        let about = format!("{} The first page; `next` in it leads on.", topic.about());
        Resource::new(topic.uri(), topic.name()).with_description(about).with_mime_type(JSON)
    };
    Topic::ALL.map(resource).into()
}

pub(super) fn templates(caller: &Caller) -> Vec<ResourceTemplate> {
    if *caller != Caller::Operator {
        return Vec::new();
    }
    let template = |topic: Topic| {
        let about = format!("{} `after` is the `next` of the page before.", topic.about());
        ResourceTemplate::new(
            format!("{}{{?after}}", topic.uri()),
            format!("{}-page", topic.name()),
        )
        .with_description(about)
        .with_mime_type(JSON)
    };
    Topic::ALL.map(template).into()
}

/// A page of a resource, as the API gives it.
pub(super) fn read(node: &NodeHandle, uri: &str) -> Result<ReadResourceResult, ErrorData> {
    let (topic, after) = Topic::page_of(uri).ok_or_else(|| unknown_resource(uri))?;
    let text = match topic {
        Topic::Pending => {
            text(pending_page(node.store(), &PageParams { after, ..Default::default() }))
        }
        Topic::Escalations => text(inbox(node, &InboxParams { after, ..Default::default() })),
        Topic::Authorizations => {
            text(authorization_page(node.store(), &CellParams { after, ..Default::default() }))
        }
    }?;
    Ok(ReadResourceResult::new(vec![ResourceContents::text(text, uri).with_mime_type(JSON)]))
}

fn text<T: Serialize>(page: Result<T, ApiError>) -> Result<String, ErrorData> {
    let page = page.map_err(|error| {
        let data = Some(json!({ "code": error.code() }));
        let message = error.message().to_owned();
        match error.status() {
            StatusCode::BAD_REQUEST => ErrorData::invalid_params(message, data),
            _ => ErrorData::internal_error(message, data),
        }
    })?;
    serde_json::to_string(&page).map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_resource_and_may_name_a_page() {
        assert_eq!(Topic::page_of("abhyasa://pending"), Some((Topic::Pending, None)));
        let page = Topic::page_of("abhyasa://escalations?after=7");
        assert_eq!(page, Some((Topic::Escalations, Some("7".to_owned()))));
        for wrong in ["abhyasa://", "abhyasa://nothing", "pending", "abhyasa://pending?befor=7"] {
            assert_eq!(Topic::page_of(wrong), None, "{wrong}");
        }
        for topic in Topic::ALL {
            assert_eq!(Topic::of(topic.uri()), Some(topic));
        }
        assert_eq!(Topic::of("abhyasa://pending?after=7"), None, "a page is not subscribed to");
    }
}
