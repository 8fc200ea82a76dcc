//! JSON-RPC messages of MCP, looked at from outside (MCP 2026-07-28 §Base Protocol).

use serde_json::{Map, Value, json};

/// Identifier of our MCP extension.
pub(crate) const EXTENSION: &str = "io.github.ravikiran438/abhyasa";
/// Key in `params._meta` of an obligation.
pub(crate) const OBLIGATION_KEY: &str = "io.github.ravikiran438/abhyasa.obligation";
/// Key in `_meta` of a result, or in `data` of an error, of its custody ack.
pub(crate) const ACK_KEY: &str = "io.github.ravikiran438/abhyasa.custody-ack";

/// Errors of ours: outside of what JSON-RPC and MCP reserve, -32768 to -32000.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(crate) enum Code {
    /// The message is none that can be looked at, or the obligation beside it is none, or was refused.
    Envelope = -31_400,
    /// An authorization that the call needs is withheld.
    Withheld = -31_403,
    /// The answer is over the limit of a message. The call ran, and the session goes on.
    TooLong = -31_413,
    /// There are too many calls.
    Overloaded = -31_429,
    /// The way to the server broke: whether the call ran is not known.
    Lost = -31_502,
    /// The server, or the node before it, is not there: the call did not run.
    Unavailable = -31_503,
}

/// What a message is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Form {
    Request { id: Value, method: String },
    Notification { method: String },
    Response { id: Value },
}

/// One message.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Message {
    pub(crate) form: Form,
    members: Map<String, Value>,
    /// Bytes of the text it was read from.
    pub(crate) len: usize,
}

/// Why a text is no message.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MessageError {
    #[error("no JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("no JSON-RPC 2.0 message; batches are not taken")]
    Form,
}

impl Message {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, MessageError> {
        let message = Self::of(serde_json::from_slice(text)?)?;
        Ok(Self { len: text.len(), ..message })
    }

    pub(crate) fn of(value: Value) -> Result<Self, MessageError> {
        let Value::Object(members) = value else { return Err(MessageError::Form) };
        if members.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Err(MessageError::Form);
        }
        let id = members.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
        let method = members.get("method").map(|method| method.as_str().map(str::to_owned));
        let form = match (id, method) {
            (Some(id), Some(Some(method))) => Form::Request { id, method },
            (None, Some(Some(method))) if !members.contains_key("id") => {
                Form::Notification { method }
            }
            (Some(id), None) => Form::Response { id },
            // An error that answers what could not be read has no id.
            (None, None) if members.contains_key("error") => Form::Response { id: Value::Null },
            _ => return Err(MessageError::Form),
        };
        Ok(Self { form, members, len: 0 })
    }

    pub(crate) fn notification(method: &str, params: Value) -> Self {
        let value = json!({ "jsonrpc": "2.0", "method": method, "params": params });
        let members = value.as_object().cloned().unwrap_or_default();
        Self { form: Form::Notification { method: method.to_owned() }, members, len: 0 }
    }

    /// An error in answer to `id`.
    pub(crate) fn error(id: &Value, code: Code, message: &str, data: Value) -> Self {
        let error = json!({ "code": code as i64, "message": message, "data": data });
        let value = json!({ "jsonrpc": "2.0", "id": id, "error": error });
        let members = value.as_object().cloned().unwrap_or_default();
        Self { form: Form::Response { id: id.clone() }, members, len: 0 }
    }

    pub(crate) fn to_vec(&self) -> Vec<u8> {
        serde_json::to_vec(&self.members).unwrap_or_default()
    }

    /// Its text, or in place of a response that grew too long an error; `None` if it was no response.
    pub(crate) fn within(&self, len_max: usize) -> Option<Vec<u8>> {
        let text = self.to_vec();
        if text.len() <= len_max {
            return Some(text);
        }
        let Form::Response { id } = &self.form else { return None };
        let what = format!("an answer of {} bytes, over the limit of {len_max}", text.len());
        Some(Self::error(id, Code::TooLong, &what, json!({})).to_vec())
    }

    /// Says in the answer to an opening that obligations may come beside calls.
    pub(crate) fn advertise(&mut self) {
        let result = self.members.get_mut("result");
        let capabilities = result.and_then(|result| result.get_mut("capabilities"));
        let Some(capabilities) = capabilities.and_then(Value::as_object_mut) else { return };
        let extensions = capabilities.entry("extensions").or_insert_with(|| json!({}));
        if let Some(extensions) = extensions.as_object_mut() {
            extensions.insert(EXTENSION.to_owned(), json!({}));
        }
    }

    /// Says in the answer to an opening which usage policy there is (Anumati §4.2).
    pub(crate) fn advertise_policy(&mut self, policy: Value) {
        let result = self.members.get_mut("result");
        let capabilities = result.and_then(|result| result.get_mut("capabilities"));
        if let Some(capabilities) = capabilities.and_then(Value::as_object_mut) {
            capabilities.insert("usagePolicy".to_owned(), policy);
        }
    }

    /// The tools in the answer to `tools/list`.
    pub(crate) fn tools(&mut self) -> Option<&mut Vec<Value>> {
        self.members.get_mut("result")?.get_mut("tools")?.as_array_mut()
    }

    /// A member of the result.
    pub(crate) fn result(&self, name: &str) -> Option<&Value> {
        self.members.get("result")?.get(name)
    }

    pub(crate) fn params(&self) -> Option<&Map<String, Value>> {
        self.members.get("params")?.as_object()
    }

    /// Text in `params`.
    pub(crate) fn param(&self, name: &str) -> Option<&str> {
        self.params()?.get(name)?.as_str()
    }

    /// Value in `params._meta`.
    pub(crate) fn meta(&self, key: &str) -> Option<&Value> {
        self.params()?.get("_meta")?.as_object()?.get(key)
    }

    /// Puts a value into `params._meta`.
    pub(crate) fn put_meta(&mut self, key: &str, value: Value) {
        let params = self.members.entry("params").or_insert_with(|| json!({}));
        let Some(params) = params.as_object_mut() else { return };
        let meta = params.entry("_meta").or_insert_with(|| json!({}));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert(key.to_owned(), value);
        }
    }

    /// Takes a value out of `params._meta`, and that with it if nothing else is there.
    pub(crate) fn take_meta(&mut self, key: &str) -> Option<Value> {
        let params = self.members.get_mut("params")?.as_object_mut()?;
        let meta = params.get_mut("_meta")?.as_object_mut()?;
        let found = meta.remove(key)?;
        if meta.is_empty() {
            params.remove("_meta");
        }
        Some(found)
    }

    /// Another value in `params._meta`, if there is one; the one that was there.
    pub(crate) fn replace_meta(&mut self, key: &str, value: Value) -> Option<Value> {
        let params = self.members.get_mut("params")?.as_object_mut()?;
        let place = params.get_mut("_meta")?.as_object_mut()?.get_mut(key)?;
        Some(std::mem::replace(place, value))
    }

    /// Another value in `_meta` of the result, if there is one.
    pub(crate) fn replace_result_meta(&mut self, key: &str, value: Value) {
        let result = self.members.get_mut("result");
        let meta = result.and_then(|result| result.get_mut("_meta"));
        if let Some(place) = meta.and_then(|meta| meta.get_mut(key)) {
            *place = value;
        }
    }

    /// Another value in `params`.
    pub(crate) fn set_param(&mut self, name: &str, value: Value) {
        if let Some(params) = self.members.get_mut("params").and_then(Value::as_object_mut) {
            params.insert(name.to_owned(), value);
        }
    }

    /// Puts a value into `_meta` of the result, or into `data` of the error.
    pub(crate) fn attach(&mut self, key: &str, value: Value) {
        let (place, within) = if self.members.contains_key("result") {
            ("result", "_meta")
        } else {
            ("error", "data")
        };
        let Some(Value::Object(outer)) = self.members.get_mut(place) else { return };
        let inner = outer.entry(within).or_insert_with(|| json!({}));
        if !inner.is_object() {
            *inner = json!({ "data": inner.take() });
        }
        if let Some(inner) = inner.as_object_mut() {
            inner.insert(key.to_owned(), value);
        }
    }

    pub(crate) fn error_code(&self) -> Option<i64> {
        self.members.get("error")?.get("code")?.as_i64()
    }

    pub(crate) fn is_error(&self) -> bool {
        self.members.contains_key("error")
    }

    /// Another id in place of its own.
    pub(crate) fn with_id(mut self, id: Value) -> Self {
        self.members.insert("id".to_owned(), id.clone());
        match &mut self.form {
            Form::Request { id: own, .. } | Form::Response { id: own } => *own = id,
            Form::Notification { .. } => {}
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Message, MessageError> {
        Message::parse(text.as_bytes())
    }

    #[test]
    fn a_message_is_told_by_its_members() {
        let form = |text| parse(text).map(|message| message.form).ok();
        assert_eq!(
            form(r#"{"jsonrpc":"2.0","id":7,"method":"ping"}"#),
            Some(Form::Request { id: json!(7), method: "ping".into() })
        );
        assert_eq!(
            form(r#"{"jsonrpc":"2.0","method":"notifications/x"}"#),
            Some(Form::Notification { method: "notifications/x".into() })
        );
        assert_eq!(
            form(r#"{"jsonrpc":"2.0","id":"a","result":{}}"#),
            Some(Form::Response { id: json!("a") })
        );
        assert_eq!(
            form(r#"{"jsonrpc":"2.0","id":null,"error":{"code":1}}"#),
            Some(Form::Response { id: Value::Null })
        );
        for wrong in [
            "[]",
            "7",
            "{",
            r#"{"id":1,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","id":[],"method":"ping"}"#,
            r#"{"jsonrpc":"2.0","method":7}"#,
            r#"{"jsonrpc":"2.0"}"#,
        ] {
            assert_eq!(form(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_not_ours_stays_as_it_is() {
        let text = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"t","_meta":{"io.github.ravikiran438/abhyasa.obligation":{"a":1},"progressToken":3},"later":[1.50]},"future":{}}"#;
        let mut message = parse(text).unwrap();
        assert_eq!(message.take_meta(OBLIGATION_KEY), Some(json!({ "a": 1 })));
        assert_eq!(message.take_meta(OBLIGATION_KEY), None);
        let sent: Value = serde_json::from_slice(&message.to_vec()).unwrap();
        assert_eq!(
            sent,
            json!({
                "jsonrpc": "2.0", "id": 1, "method": "tools/call", "future": {},
                "params": { "name": "t", "_meta": { "progressToken": 3 }, "later": [1.5] }
            })
        );
        message.take_meta("progressToken");
        assert_eq!(message.params().unwrap().get("_meta"), None);
    }

    #[test]
    fn bd1_an_answer_that_grew_too_long_is_an_error() {
        let message =
            parse(r#"{"jsonrpc":"2.0","id":"a","result":{"text":"0123456789"}}"#).unwrap();
        assert_eq!(message.within(1_000).unwrap(), message.to_vec());
        let cut: Value = serde_json::from_slice(&message.within(20).unwrap()).unwrap();
        assert_eq!((&cut["id"], &cut["error"]["code"]), (&json!("a"), &json!(-31_413)));
        assert_eq!(Message::notification("m", json!({ "long": "0123456789" })).within(20), None);
    }

    #[test]
    fn an_opening_says_that_obligations_may_come() {
        let mut message =
            parse(r#"{"jsonrpc":"2.0","id":1,"result":{"capabilities":{"tools":{}}}}"#).unwrap();
        message.advertise();
        let said: Value = serde_json::from_slice(&message.to_vec()).unwrap();
        assert_eq!(
            said["result"]["capabilities"],
            json!({ "tools": {}, "extensions": { EXTENSION: {} } })
        );
    }

    #[test]
    fn an_ack_goes_into_the_result_or_the_error() {
        let attached = |text: &str| {
            let mut message = parse(text).unwrap();
            message.attach(ACK_KEY, json!("ack"));
            serde_json::from_slice::<Value>(&message.to_vec()).unwrap()
        };
        let result = attached(r#"{"jsonrpc":"2.0","id":1,"result":{"_meta":{"a":1}}}"#);
        assert_eq!(result["result"]["_meta"], json!({ "a": 1, ACK_KEY: "ack" }));
        let error = attached(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}"#);
        assert_eq!(error["error"]["data"], json!({ ACK_KEY: "ack" }));
        let error = attached(r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"data":"text"}}"#);
        assert_eq!(error["error"]["data"], json!({ "data": "text", ACK_KEY: "ack" }));
    }
}
