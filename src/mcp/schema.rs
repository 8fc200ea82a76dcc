//! JSON Schemas of arguments and results, from the same declarations as the API's document.

use crate::api::extract::Page;
use rmcp::model::JsonObject;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::ToSchema;
use utoipa::openapi::{RefOr, Schema};

/// Where the document has its schemas, and where a schema of its own has them.
const COMPONENTS: &str = "#/components/schemas/";
const DEFS: &str = "#/$defs/";

/// The schema of `T`: an object that refers to nothing outside.
pub(super) fn of<T: ToSchema>() -> Arc<JsonObject> {
    let mut named = Vec::new();
    T::schemas(&mut named);
    whole::<T>(named)
}

/// The schema of a page of `T`, which itself does not name its items.
pub(super) fn of_page<T: ToSchema>() -> Arc<JsonObject> {
    let mut named = vec![(T::name().into_owned(), T::schema())];
    Page::<T>::schemas(&mut named);
    whole::<Page<T>>(named)
}

fn whole<T: ToSchema>(named: Vec<(String, RefOr<Schema>)>) -> Arc<JsonObject> {
    let named: BTreeMap<String, _> = named.into_iter().collect();
    let mut root = to_value(&T::schema());
    let defs: JsonObject =
        named.iter().map(|(name, schema)| (name.clone(), to_value(schema))).collect();
    let Some(members) = root.as_object_mut() else { return Arc::default() };
    // MCP takes nothing else at the root, also where a schema says it by its alternatives.
    members.insert("type".to_owned(), json!("object"));
    if !defs.is_empty() {
        members.insert("$defs".to_owned(), defs.into());
    }
    Arc::new(std::mem::take(members))
}

fn to_value(schema: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(schema).unwrap_or_default();
    refer(&mut value);
    value
}

/// Makes references lead to where the schemas are now.
fn refer(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if let Some(Value::String(to)) = members.get_mut("$ref")
                && let Some(name) = to.strip_prefix(COMPONENTS)
            {
                *to = format!("{DEFS}{name}");
            }
            members.values_mut().for_each(refer);
        }
        Value::Array(items) => items.iter_mut().for_each(refer),
        _ => {}
    }
}
