//! What the fixtures say, mostly as the JSON that the suite expects.

use rmcp::model::{
    CallToolResponse, CallToolResult, ContentBlock, ErrorData, InputRequiredResult, JsonObject,
    Tool,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// A red pixel.
pub(super) const PNG: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
/// No sound.
pub(super) const WAV: &str = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA=";
pub(super) fn from<T: DeserializeOwned>(value: Value) -> Result<T, ErrorData> {
    serde_json::from_value(value)
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))
}

pub(super) fn text(said: impl Into<String>) -> CallToolResult {
    CallToolResult::success(vec![ContentBlock::text(said)])
}

pub(super) fn content(parts: Value) -> Result<CallToolResult, ErrorData> {
    Ok(CallToolResult::success(from(parts)?))
}

pub(super) fn image() -> Value {
    json!({ "type": "image", "data": PNG, "mimeType": "image/png" })
}

pub(super) fn embedded(uri: &str, mime_type: &str, text: &str) -> Value {
    json!({ "type": "resource", "resource": { "uri": uri, "mimeType": mime_type, "text": text } })
}

pub(super) fn user(text: &str) -> Value {
    json!({ "role": "user", "content": { "type": "text", "text": text } })
}

pub(super) fn elicitation(message: &str, member: &str, kind: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { member: { "type": kind } }, "required": [member] });
    json!({ "method": "elicitation/create", "params": { "mode": "form", "message": message, "requestedSchema": schema } })
}

pub(super) fn sampling(prompt: &str) -> Value {
    json!({ "method": "sampling/createMessage", "params": { "messages": [user(prompt)], "maxTokens": 100 } })
}

pub(super) fn roots() -> Value {
    json!({ "method": "roots/list", "params": {} })
}

pub(super) fn input(wanted: Value, state: Option<String>) -> Result<CallToolResponse, ErrorData> {
    Ok(CallToolResponse::InputRequired(required(wanted, state)?))
}

pub(super) fn required(
    wanted: Value,
    state: Option<String>,
) -> Result<InputRequiredResult, ErrorData> {
    Ok(InputRequiredResult::new(Some(from(wanted)?), state))
}

/// The form of an elicitation: what is said, its members, those that are needed.
pub(super) fn form(tool: &str, message: String) -> (String, Value, Value) {
    let titled = |values: [(&str, &str); 3]| -> Value {
        values.iter().map(|(value, title)| json!({ "const": value, "title": title })).collect()
    };
    let options = json!(["option1", "option2", "option3"]);
    match tool {
        "test_elicitation_sep1034_defaults" => (
            "All have defaults".to_owned(),
            json!({
                "name": { "type": "string", "default": "John Doe" },
                "age": { "type": "integer", "default": 30 },
                "score": { "type": "number", "default": 95.5 },
                "status": { "type": "string", "enum": ["active", "inactive", "pending"], "default": "active" },
                "verified": { "type": "boolean", "default": true },
            }),
            json!([]),
        ),
        "test_elicitation_sep1330_enums" => (
            "Choose".to_owned(),
            json!({
                "untitledSingle": { "type": "string", "enum": options.clone() },
                "titledSingle": { "type": "string", "oneOf": titled([
                    ("value1", "First Option"), ("value2", "Second Option"), ("value3", "Third Option"),
                ]) },
                "legacyEnum": {
                    "type": "string",
                    "enum": ["opt1", "opt2", "opt3"],
                    "enumNames": ["Option One", "Option Two", "Option Three"],
                },
                "untitledMulti": { "type": "array", "items": { "type": "string", "enum": options } },
                "titledMulti": { "type": "array", "items": { "anyOf": titled([
                    ("value1", "First Choice"), ("value2", "Second Choice"), ("value3", "Third Choice"),
                ]) } },
            }),
            json!([]),
        ),
        _ => (
            message,
            json!({
                "username": { "type": "string", "description": "User's response" },
                "email": { "type": "string", "description": "User's email address" },
            }),
            json!(["username", "email"]),
        ),
    }
}

/// Tools by name, and the schema of their arguments where they have any.
pub(super) fn tools() -> Result<Vec<Tool>, ErrorData> {
    let word = |name: &str| json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name] });
    let none = json!({ "type": "object", "properties": {} });
    let mut tools: Vec<(&'static str, Value)> = vec![
        ("test_sampling", word("prompt")),
        ("test_elicitation", word("message")),
        (
            "test_custom_header",
            json!({
                "type": "object",
                "properties": { "value": { "type": "string", "x-mcp-header": "Value" } },
                "required": ["value"],
            }),
        ),
        (
            "json_schema_2020_12_tool",
            json!({
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "$defs": { "address": {
                    "$anchor": "address",
                    "type": "object",
                    "properties": { "street": { "type": "string" }, "city": { "type": "string" } },
                } },
                "properties": {
                    "name": { "type": "string" },
                    "address": { "$ref": "#/$defs/address" },
                },
                "allOf": [{ "anyOf": [{ "required": ["name"] }, { "required": ["address"] }] }],
                "if": { "required": ["address"] },
                "then": { "properties": { "address": { "required": ["street"] } } },
                "else": { "required": ["name"] },
                "additionalProperties": false,
            }),
        ),
    ];
    let plain = [
        "test_simple_text",
        "test_image_content",
        "test_audio_content",
        "test_embedded_resource",
        "test_multiple_content_types",
        "test_tool_with_logging",
        "test_tool_with_progress",
        "test_error_handling",
        "test_elicitation_sep1034_defaults",
        "test_elicitation_sep1330_enums",
        "test_missing_capability",
        "test_logging_tool",
        "test_streaming_elicitation",
        "test_trigger_tool_change",
        "test_trigger_prompt_change",
        "test_reconnection",
        "test_input_required_result_elicitation",
        "test_input_required_result_sampling",
        "test_input_required_result_list_roots",
        "test_input_required_result_request_state",
        "test_input_required_result_tampered_state",
        "test_input_required_result_multiple_inputs",
        "test_input_required_result_multi_round",
        "test_input_required_result_capabilities",
    ];
    tools.extend(plain.map(|name| (name, none.clone())));
    let tool = |(name, schema): (&'static str, Value)| {
        let schema: JsonObject = from(schema)?;
        Ok(Tool::new(name, "A fixture of the conformance suite.", schema))
    };
    tools.into_iter().map(tool).collect()
}

pub(super) fn prompts() -> Value {
    let prompt = |name: &str, arguments: &[&str]| {
        let arguments: Vec<Value> = arguments
            .iter()
            .map(|name| json!({ "name": name, "description": "An argument", "required": true }))
            .collect();
        json!({ "name": name, "description": "A fixture of the conformance suite.", "arguments": arguments })
    };
    json!([
        prompt("test_simple_prompt", &[]),
        prompt("test_prompt_with_arguments", &["arg1", "arg2"]),
        prompt("test_prompt_with_embedded_resource", &["resourceUri"]),
        prompt("test_prompt_with_image", &[]),
        prompt("test_input_required_result_prompt", &[]),
    ])
}
