//! Diagnostic notation (RFC 8949 §8, with `<< >>` of RFC 8610 G.3), from a decoder that is not ours.

use ciborium::Value;

pub fn value(bytes: &[u8]) -> Value {
    ciborium::from_reader(bytes).unwrap()
}

pub fn encode(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).unwrap();
    bytes
}

pub fn diag(bytes: &[u8]) -> String {
    render(&value(bytes), 0)
}

fn render(value: &Value, depth: usize) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(value) => value.to_string(),
        Value::Integer(value) => i128::from(*value).to_string(),
        Value::Float(value) => format!("{value:?}"),
        Value::Text(text) => serde_json::to_string(text).unwrap(),
        Value::Bytes(bytes) => match ciborium::from_reader::<Value, _>(&bytes[..]) {
            Ok(inner @ Value::Map(_)) if encode(&inner) == *bytes => {
                format!("<<{}>>", render(&inner, depth))
            }
            _ => format!("h'{}'", bytes.iter().map(|b| format!("{b:02x}")).collect::<String>()),
        },
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(|item| render(item, depth + 1)).collect();
            enclose('[', &items, ']', depth)
        }
        Value::Map(members) => {
            let member = |(key, value): &(Value, Value)| {
                format!("{}: {}", render(key, depth + 1), render(value, depth + 1))
            };
            enclose('{', &members.iter().map(member).collect::<Vec<_>>(), '}', depth)
        }
        other => panic!("no notation for {other:?}"),
    }
}

/// On one line if that is short, else an item a line.
fn enclose(open: char, items: &[String], close: char, depth: usize) -> String {
    let line = items.join(", ");
    if line.len() <= 72 && !line.contains('\n') {
        return format!("{open}{line}{close}");
    }
    let (inner, outer) = ("  ".repeat(depth + 1), "  ".repeat(depth));
    format!("{open}\n{inner}{}\n{outer}{close}", items.join(&format!(",\n{inner}")))
}

#[test]
fn notation_is_that_of_rfc_8949() {
    let bytes = super::hex("a4 6161 f93c00 6162 83 f6 20 f4 6163 41ff 6164 43 a10002");
    assert_eq!(diag(&bytes), r#"{"a": 1.0, "b": [null, -1, false], "c": h'ff', "d": <<{0: 2}>>}"#);
}
