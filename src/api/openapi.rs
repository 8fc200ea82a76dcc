//! The OpenAPI document, made from the handlers themselves.

use super::{belief, cells, groups, issue, lists, operator, peer, transfer, watch};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::sync::LazyLock;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "abhyasa node",
        description = "Issue governance obligations and follow them to applied, declined or escalated."
    ),
    paths(
        issue::issue,
        belief::send,
        transfer::status,
        groups::issue,
        groups::status,
        lists::pending,
        lists::terminal,
        operator::escalations,
        operator::ack_escalation,
        operator::answer_review,
        operator::reconciliation,
        operator::resolve,
        cells::authorizations,
        cells::check,
        cells::weights,
        watch::peers,
        watch::events,
        watch::health,
        watch::readiness,
        watch::metrics,
        peer::offer,
        peer::custody_ack,
        document,
    ),
    security(("operator" = []), ()),
    modifiers(&Tokens)
)]
struct Document;

struct Tokens;

impl Modify for Tokens {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let components = document.components.get_or_insert_default();
        for (name, about) in [
            (
                "operator",
                "The token in api.token_file. On a loopback address without one, none is needed.",
            ),
            ("peer", "The token of a peer, in its http_token_file. Always needed."),
        ] {
            let bearer =
                HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(about)).build();
            components.add_security_scheme(name, SecurityScheme::Http(bearer));
        }
    }
}

/// This document.
#[utoipa::path(
    get, path = "/openapi.json", tag = "node", security(()),
    responses((status = 200, description = "OpenAPI 3.1", content_type = "application/json", body = Object))
)]
pub(crate) async fn document() -> Response {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| Document::openapi().to_json().unwrap_or_default());
    ([(header::CONTENT_TYPE, "application/json")], TEXT.as_str()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::ack::{AckStatus, CustodyAck, Reason};
    use proto::id::{AgentId, GovernedKey, Kind, ObligationId};
    use proto::obligation::Obligation;
    use proto::payload::Payload;
    use proto::record::{Escalation, EscalationReason, Reconcile, ReconcileKind, Resolution};
    use proto::safe_action::{SafeAction, SafeEffect};
    use proto::time::Time;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn parsed() -> Value {
        serde_json::to_value(Document::openapi()).unwrap()
    }

    #[test]
    fn the_document_lists_every_route_and_no_other() {
        let document = parsed();
        let listed: BTreeSet<(String, String)> = document["paths"]
            .as_object()
            .unwrap()
            .iter()
            .flat_map(|(path, item)| {
                item.as_object().unwrap().keys().map(|method| (method.clone(), path.clone()))
            })
            .collect();
        let served: BTreeSet<(String, String)> = crate::api::all_routes()
            .map(|(method, path)| (method.to_owned(), path.to_owned()))
            .collect();
        assert_eq!(listed, served);
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = parsed();
        let text = document.to_string();
        let references: BTreeSet<&str> = text
            .split("\"$ref\":\"#")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap())
            .collect();
        assert!(references.len() > 10);
        for reference in references {
            assert!(document.pointer(reference).is_some(), "{reference}");
        }
    }

    fn value(record: &impl serde::Serialize) -> Value {
        serde_json::to_value(record).unwrap()
    }

    /// All members a record can have are those its schema names.
    fn same_members(schema: &str, records: &[Value]) {
        let document = parsed();
        let properties =
            document["components"]["schemas"][schema]["properties"].as_object().unwrap();
        let described: BTreeSet<&String> = properties.keys().collect();
        let written: BTreeSet<&String> =
            records.iter().flat_map(|record| record.as_object().unwrap().keys()).collect();
        assert_eq!(described, written, "{schema}");
    }

    #[test]
    fn the_schemas_are_those_of_the_records() {
        let id = ObligationId::new("ob").unwrap();
        let target = AgentId::new("b").unwrap();
        let kind = Kind::new("anumati.consent").unwrap();
        let action = |effect| SafeAction {
            obligation_id: id.clone(),
            target: target.clone(),
            effect,
            rationale: Reason::EXPIRED,
            sequence: Some(1),
        };
        let key = GovernedKey::new("k").unwrap();
        let closed = action(SafeEffect::FailClosed { scope: key.clone() });
        let down = action(SafeEffect::DownWeight {
            weight_key: key,
            magnitude: proto::weight::Weight::ZERO,
        });
        same_members("SafeAction", &[value(&closed), value(&down)]);
        let escalation = Escalation {
            obligation_id: id.clone(),
            kind: kind.clone(),
            target: target.clone(),
            reason: EscalationReason::Unreachable,
            at_ms: 1,
            deadline_at_ms: 1,
            retries: 1,
            safe_action: closed.clone(),
            safe_action_applied: true,
            acknowledged_at_ms: Some(1),
            delivered_at_ms: Some(1),
            outlived: false,
        };
        same_members("Escalation", &[value(&escalation)]);
        let item = Reconcile {
            kind: ReconcileKind::InDoubt,
            obligation_id: id.clone(),
            agent: target.clone(),
            at_ms: 1,
            detail: String::new(),
            safe_action: Some(closed),
            resolution: Some(Resolution::Noted),
            resolved_at_ms: Some(1),
        };
        same_members("Reconcile", &[value(&item), serde_json::json!({ "number": 1 })]);
        let obligation = Obligation {
            id: id.clone(),
            kind,
            target: target.clone(),
            payload: Payload::EMPTY,
            deadline_seconds: 1,
            max_retries: 0,
            created_at: Time::from_ms(1),
            sequence: Some(1),
        };
        same_members("Obligation", &[value(&obligation)]);
        let ack = CustodyAck {
            obligation_id: id,
            target: target.clone(),
            status: AckStatus::Applied,
            acked_at: Time::from_ms(1),
            reason: Some(Reason::EXPIRED),
        };
        same_members("CustodyAck", &[value(&ack)]);
        let peer =
            crate::node::PeerStatus { id: target, connected: true, sessions: 1, address: None };
        same_members("Peer", &[value(&peer)]);
    }
}
