//! An audit for people: one page of HTML that loads nothing and runs nothing.
//!
//! All of it is text of others, so all of it is escaped where it is written, and the page's policy forbids what
//! would have slipped through.

use serde_json::Value;
use std::fmt::Write as _;

/// What a browser may do with it (Content Security Policy Level 3): show it in its own style. In its sandbox it has no
/// origin, least of all this node's.
pub(super) const POLICY: &str = "default-src 'none'; sandbox; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1d2329;background:#fff}\
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}\
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #d5dbe1;padding:.4rem .6rem;text-align:left;\
vertical-align:top;overflow-wrap:anywhere}th{font-weight:600;background:#f3f5f7}code{font:13px/1.4 ui-monospace,monospace}\
.permit,.accepted,.live{color:#146c2e}.deny,.rejected,.stale{color:#a3131a}.escalate,.conditional{color:#8a5a00}\
.permit,.deny,.escalate,.accepted,.rejected,.conditional{font-weight:600}.link{color:#69737d}\
@media(prefers-color-scheme:dark){body{color:#e3e7eb;background:#15191d}th{background:#20262c}td,th{border-color:#39424b}\
.permit,.accepted,.live{color:#6fd08c}.deny,.rejected,.stale{color:#ff8f8f}.escalate,.conditional{color:#f0c060}}";

/// Text as HTML has it (HTML §13.3): in elements and in quoted attributes.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Would turn the direction of what follows: a decision could be made to read as another.
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// A member as text, escaped; a dash for what is not there.
fn member(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::String(text)) => escape(text),
        Some(other) => escape(&other.to_string()),
    }
}

fn code(value: &Value, name: &str) -> String {
    format!("<code>{}</code>", member(value, name))
}

/// A decision in its colour: one of the words there are, and nothing else, becomes a class.
fn decision(value: &Value) -> String {
    let word = member(value, "decision");
    let known = ["permit", "deny", "escalate", "accepted", "rejected", "conditional"];
    match known.iter().find(|known| **known == word) {
        Some(class) => format!("<span class=\"{class}\">{word}</span>"),
        None => word,
    }
}

fn link(value: &Value, name: &str) -> String {
    match value.get(name) {
        None | Some(Value::Null) => "<span class=\"link\">the first</span>".to_owned(),
        Some(_) => format!("<span class=\"link\">after</span> {}", code(value, name)),
    }
}

/// A table of what `row` makes of each item.
fn table(heads: &[&str], items: &[&Value], row: impl Fn(&Value) -> Vec<String>) -> String {
    if items.is_empty() {
        return "<p>None on this page.</p>".to_owned();
    }
    let mut out = String::from("<table><tr>");
    // Writing to a string cannot fail.
    for head in heads {
        let _ = write!(out, "<th scope=\"col\">{head}</th>");
    }
    out.push_str("</tr>");
    for item in items {
        out.push_str("<tr>");
        for cell in row(item) {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>");
    }
    out + "</table>"
}

/// What a record answers: the claims that are not simply understood, and how many are.
fn answers(record: &Value) -> String {
    let answers = record.get("parsed_claims").and_then(Value::as_array);
    let answers = answers.map_or(&[][..], Vec::as_slice);
    let is = |answer: &Value, name: &str| answer.get(name).and_then(Value::as_bool) == Some(true);
    let plain = |answer: &&Value| is(answer, "understood") && !is(answer, "disputed");
    let mut out = format!("{} of {} agreed", answers.iter().filter(plain).count(), answers.len());
    for answer in answers.iter().filter(|answer| !plain(answer)) {
        let what = if is(answer, "disputed") { "disputed" } else { "not understood" };
        let why = member(answer, "dispute_reason");
        let _ = write!(out, "<br>{} {what}: {why}", code(answer, "claim_id"));
    }
    out
}

fn event_cells(event: &Value) -> Vec<String> {
    let clause = format!("{}<br>{}", member(event, "clause_evaluated"), code(event, "claim_id"));
    let id = format!("{}<br>{}", code(event, "event_id"), link(event, "prev_event_id"));
    vec![
        member(event, "timestamp"),
        decision(event),
        member(event, "action"),
        clause,
        member(event, "reasoning"),
        id,
        code(event, "consent_record_id"),
    ]
}

/// The page of an audit, as [`audit`](super::Acap::audit) gives it.
pub(super) fn page(audit: &Value) -> String {
    let items = audit.get("items").and_then(Value::as_array);
    let of = |kind: &str| -> Vec<&Value> {
        let items = items.into_iter().flatten();
        let found = items.filter(|item| item.get("kind").and_then(Value::as_str) == Some(kind));
        found.filter_map(|item| item.get(kind)).collect()
    };
    let caller = member(audit, "caller_agent_id");
    let mut out = format!(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Consent of {caller}</title>\
         <style>{STYLE}</style></head><body><h1>Consent of {caller}</h1>\
         <p>to the policy of {}, version {}.</p><table>",
        member(audit, "callee_agent_id"),
        member(audit, "policy_version"),
    );
    for (name, what) in [
        ("state", "State now"),
        ("ended", "The last record ended by"),
        ("withdrawn_by", "Withdrawn by obligation"),
        ("records", "Consent records"),
        ("events", "Adherence events"),
        ("attempts", "Calls at the gate"),
    ] {
        let _ =
            write!(out, "<tr><th scope=\"row\">{what}</th><td>{}</td></tr>", member(audit, name));
    }
    out.push_str("</table><h2>Consent chain</h2>");
    let heads = ["Accepted at", "Decision", "Policy", "Claims", "Holds until", "Record"];
    out += &table(&heads, &of("record"), |record| {
        let policy =
            format!("{}<br>{}", member(record, "policy_version"), code(record, "policy_hash"));
        let id = format!("{}<br>{}", code(record, "record_id"), link(record, "prev_record_id"));
        vec![
            member(record, "accepted_at"),
            decision(record),
            policy,
            answers(record),
            member(record, "valid_until"),
            id,
        ]
    });
    let heads = ["At", "Decision", "Action", "Clause", "Reasoning", "Event", "Under record"];
    out.push_str("<h2>What the caller decided</h2>");
    out += &table(&heads, &of("event"), event_cells);
    out.push_str("<h2>What the gate did</h2>");
    out += &table(&["At", "Decision", "Call", "Why", "Event"], &of("attempt"), |attempt| {
        let event = attempt.get("event").filter(|event| event.is_object());
        let id = event.map_or_else(
            || "none: there was no record to rest on".to_owned(),
            |event| format!("{}<br>{}", code(event, "event_id"), link(event, "prev_event_id")),
        );
        vec![
            member(attempt, "at"),
            decision(attempt),
            code(attempt, "call"),
            member(attempt, "why"),
            id,
        ]
    });
    if let Some(next) = audit.get("next").and_then(Value::as_str) {
        let _ = write!(out, "<p><a href=\"?after={}\">Next page</a></p>", escape(next));
    }
    out + "</body></html>"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Each text on the page is one of others, wherever it stands.
    #[test]
    fn what_others_wrote_is_text_and_nothing_else() {
        let bad = "<script>alert('x')</script>\"' onload=\"x\u{202e}&";
        let event = json!({
            "event_id": bad, "prev_event_id": bad, "consent_record_id": bad, "action": bad,
            "clause_evaluated": bad, "claim_id": bad, "decision": bad, "reasoning": bad, "timestamp": bad,
        });
        let record = json!({
            "record_id": bad, "prev_record_id": bad, "policy_version": bad, "policy_hash": bad,
            "decision": bad, "accepted_at": bad, "valid_until": bad, "parsed_claims": [
                { "claim_id": bad, "understood": true, "disputed": true, "dispute_reason": bad },
                { "claim_id": bad, "understood": false, "disputed": false, "dispute_reason": bad },
            ],
        });
        let attempt =
            json!({ "at": bad, "call": bad, "decision": bad, "why": bad, "event": event });
        let html = page(&json!({
            "caller_agent_id": bad, "callee_agent_id": bad, "state": bad, "ended": bad, "withdrawn_by": bad,
            "policy_version": bad, "records": 1, "events": 1, "attempts": 1, "next": bad, "items": [
                { "kind": "record", "record": record }, { "kind": "event", "event": event },
                { "kind": "attempt", "attempt": attempt },
            ],
        }));
        // Of every tag on the page the beginning is one of ours.
        let ours = [
            "!DOCTYPE html",
            "html lang=\"en\"",
            "/html",
            "head",
            "/head",
            "meta charset=\"utf-8\"",
            "meta name=\"viewport\" content=\"width=device-width\"",
            "title",
            "/title",
            "style",
            "/style",
            "body",
            "/body",
            "h1",
            "/h1",
            "h2",
            "/h2",
            "p",
            "/p",
            "table",
            "/table",
            "tr",
            "/tr",
            "th scope=\"col\"",
            "th scope=\"row\"",
            "/th",
            "td",
            "/td",
            "code",
            "/code",
            "br",
            "span class=\"link\"",
            "/span",
            "/a",
        ];
        let mut links = 0;
        for tag in html.split('<').skip(1) {
            let (tag, _) = tag.split_once('>').unwrap();
            if tag.starts_with("a href=\"?after=&lt;script&gt;") && tag.matches('"').count() == 2 {
                links += 1;
                continue;
            }
            assert!(ours.contains(&tag), "{tag}");
        }
        assert_eq!(links, 1);
        assert!(html.matches("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&#39; onload=&quot;x\u{fffd}&amp;").count() > 30);
        assert!(!html.contains('\u{202e}'));
    }

    #[test]
    fn a_caller_without_chains_has_a_page_too() {
        let html = page(&json!({ "caller_agent_id": "a", "items": [], "next": null }));
        assert_eq!(html.matches("None on this page.").count(), 3);
        assert!(!html.contains("Next page"));
    }
}
