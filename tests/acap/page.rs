//! The audit as a page: for whom the audit is, and with nothing on it that a caller could have written into it.

use super::{BOB, CAROL, PROFILING, Server, USE, code, config, event, first, record};
use crate::common::{World, id};
use reqwest::{Method, header};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn what_a_caller_wrote_is_shown_and_not_run() {
    let world = World::new();
    let server = Server::start(config(&world, "")).await;
    let bad = "<img src=x onerror=alert(1)>";
    let mut consent = record("r-1", None, &first(), &[PROFILING], json!({}));
    consent.parsed_claims = {
        let mut answers = consent.parsed_claims.to_vec();
        answers[1].dispute_reason = Some(abhyasa::proto::consent::Text::new(bad).unwrap());
        abhyasa::proto::consent::List::new(answers).unwrap()
    };
    assert_eq!(server.consent(&consent).await.0, 201);
    let permit = event("e-1", None, "r-1", USE, "permit", json!({ "reasoning": bad }));
    assert_eq!(server.adhere(&permit).await.0, 201);
    assert_eq!(server.call("book", json!({})).await, Ok(()));

    let get = async |path: String, token: Option<&str>| {
        let request = server.request(Method::GET, &path);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        let response = request.send().await.unwrap();
        let headers = response.headers().clone();
        (response.status().as_u16(), headers, response.text().await.unwrap())
    };
    let path = format!("/acap/page/{}", id("bob"));
    let (status, headers, html) = get(path.clone(), None).await;
    assert_eq!(status, 200);
    assert_eq!(headers[header::CONTENT_TYPE], "text/html; charset=utf-8");
    let policy = headers[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    assert!(policy.starts_with("default-src 'none'; sandbox;"), "{policy}");
    assert_eq!(html.matches("&lt;img src=x onerror=alert(1)&gt;").count(), 2, "{html}");
    assert!(!html.contains("<img") && !html.contains("<script"));
    for shown in ["r-1", "e-1", "a2a:book", "1 of 2 agreed", "§2.1"] {
        assert!(html.contains(shown), "{shown}: {html}");
    }
    let (_, _, own) = get(path.clone(), Some(BOB)).await;
    assert_eq!(own, html);
    let (status, _, refused) = get(path.clone(), Some(CAROL)).await;
    assert_eq!(code(&(status, serde_json::from_str::<Value>(&refused).unwrap())), (403, "caller"));

    // Page by page it shows all of it.
    let (_, _, first_page) = get(format!("{path}?limit=1"), None).await;
    let (_, next) = first_page.split_once("href=\"").unwrap();
    let (next, _) = next.split_once('"').unwrap();
    let (status, _, second_page) = get(format!("{path}{next}&limit=1"), None).await;
    assert_eq!(status, 200);
    assert!(first_page.contains("1 of 2 agreed") && !first_page.contains("a2a:book"));
    assert!(second_page.contains("e-1") && !second_page.contains("1 of 2 agreed"));
    server.stop().await;
}
