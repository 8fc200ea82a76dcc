//! What the commands print: JSON for machines, aligned tables for people.

use proto::time::Time;
use serde_json::Value;
use std::io::Write as _;

/// Prints one line; returns whether anyone still reads.
pub(super) fn line(text: &str) -> bool {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).is_ok()
}

/// The text of a member for people: plain, times in RFC 3339, nothing for what is absent.
pub(super) fn cell(item: &Value, member: &str) -> String {
    match item.pointer(&format!("/{member}")) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(ms)) if member.ends_with("_ms") && member.contains("at_") => {
            ms.as_u64().map_or_else(|| ms.to_string(), |ms| Time::from_ms(ms).to_rfc3339())
        }
        Some(other) => other.to_string(),
    }
}

/// A table of `items`: a heading and a member for each column.
pub(super) fn table(columns: &[(&str, &str)], items: &[Value]) -> String {
    let mut rows =
        vec![columns.iter().map(|(heading, _)| (*heading).to_owned()).collect::<Vec<_>>()];
    rows.extend(
        items.iter().map(|item| columns.iter().map(|(_, member)| cell(item, member)).collect()),
    );
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let padded: Vec<String> =
            row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}")).collect();
        text.push_str(padded.join("  ").trim_end());
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// A list from the API, as it is or as a table.
pub(super) fn list(json: bool, page: &Value, columns: &[(&str, &str)], none: &str) {
    if json {
        line(&page.to_string());
        return;
    }
    let items = page.get("items").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    line(&if items.is_empty() { none.to_owned() } else { table(columns, items) });
    if let Some(next) = page.get("next").and_then(Value::as_str) {
        line(&format!("more follow: --after {next}"));
    }
}

/// One object, as it is or a member a line.
pub(super) fn object(json: bool, value: &Value) {
    if json {
        line(&value.to_string());
        return;
    }
    let members = value.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let width = members.clone().map(|(member, _)| member.len()).max().unwrap_or(0);
    for (member, _) in members {
        line(&format!("{member:width$}  {}", cell(value, member)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_times_are_readable() {
        let items = [
            serde_json::json!({ "id": "ob-1", "at_ms": 0, "took_ms": 7 }),
            serde_json::json!({ "id": "größer", "at_ms": null, "deep": { "er": true } }),
        ];
        let table = table(
            &[("ID", "id"), ("AT", "at_ms"), ("TOOK", "took_ms"), ("DEEP", "deep/er")],
            &items,
        );
        let expected = "\
ID      AT                    TOOK  DEEP
ob-1    1970-01-01T00:00:00Z  7     -
größer  -                     -     true";
        assert_eq!(table, expected);
    }
}
