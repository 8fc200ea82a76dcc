//! Tools, prompts and resources that the conformance suite of MCP asks a server for, beside our own:
//! what a server without prompts, sampling or elicitation cannot show of its transport. For tests
//! only: `abhyasa node --conformance` serves them, and nothing else does.
#![expect(deprecated, reason = "the suite asks for what versions before 2026-07-28 had")]

mod fixtures;

use super::{Server, stopped};
use fixtures::{
    PNG, WAV, content, elicitation, embedded, form, from, image, input, prompts, required, roots,
    sampling, text, tools, user,
};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientCapabilities, ClientResult,
    CompleteRequestParams, CompleteResult, CompletionInfo, ContentBlock, CreateMessageRequest,
    ElicitRequest, ErrorData, GetPromptRequestParams, GetPromptResponse, GetPromptResult,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    LoggingLevel, LoggingMessageNotificationParam, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    ServerConfig, ServerRequest, SetLevelRequestParams, SubscribeRequestParams, SubscriptionFilter,
    Tool, UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{RoleServer, ServerHandler};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::broadcast;

/// Between two notifications of one tool.
const PAUSE: Duration = Duration::from_millis(50);
/// States of calls that wait for the client's input; the oldest are forgotten.
const STATES_MAX: usize = 64;
/// Signals to streams that did not take them yet.
const SIGNALS_MAX: usize = 16;
/// A resource that may be subscribed to, and never changes.
const WATCHED: &str = "test://watched-resource";

/// A list that was said to have changed.
#[derive(Clone, Copy, Debug)]
enum Changed {
    Tools,
    Prompts,
}

/// What the servers of all clients share.
#[derive(Debug)]
pub(super) struct Shared {
    changed: broadcast::Sender<Changed>,
    /// Rounds by the state that the client must give back.
    states: Mutex<(u64, VecDeque<(String, u64)>)>,
}

impl Shared {
    /// A state that nobody can make but us: it is looked up.
    fn keep(&self, round: u64) -> String {
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        states.0 += 1;
        let state = format!("state-{}", states.0);
        states.1.push_back((state.clone(), round));
        if states.1.len() > STATES_MAX {
            states.1.pop_front();
        }
        state
    }

    fn round(&self, state: &str) -> Result<u64, ErrorData> {
        let states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let found = states.1.iter().find(|(kept, _)| kept == state).map(|(_, round)| *round);
        found.ok_or_else(|| ErrorData::invalid_params("requestState is none of ours", None))
    }
}

/// Our server with the fixtures.
pub(super) struct Conformance {
    server: Server,
    shared: Arc<Shared>,
}

impl Conformance {
    pub(super) fn shared() -> Arc<Shared> {
        let (changed, _) = broadcast::channel(SIGNALS_MAX);
        Arc::new(Shared { changed, states: Mutex::default() })
    }

    pub(super) const fn new(server: Server, shared: Arc<Shared>) -> Self {
        Self { server, shared }
    }

    /// Asks the client something, which only clients before 2026-07-28 let a server do.
    async fn ask(
        &self,
        request: ServerRequest,
        context: &RequestContext<RoleServer>,
        say: impl FnOnce(ClientResult) -> String,
    ) -> CallToolResult {
        match context.peer.send_request(request).await {
            Ok(result) => text(say(result)),
            Err(error) => CallToolResult::error(vec![ContentBlock::text(error.to_string())]),
        }
    }

    async fn call_fixture(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|all| all.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let result = match &*request.name {
            "test_simple_text" => text("This is a simple text response for testing."),
            "test_image_content" => content(json!([image()]))?,
            "test_audio_content" => {
                content(json!([{ "type": "audio", "data": WAV, "mimeType": "audio/wav" }]))?
            }
            "test_embedded_resource" => content(json!([embedded(
                "test://embedded-resource",
                "text/plain",
                "This is an embedded resource content."
            )]))?,
            "test_multiple_content_types" => content(json!([
                { "type": "text", "text": "Multiple content types test:" },
                image(),
                embedded("test://mixed-content-resource", "application/json", r#"{"test":"data","value":123}"#),
            ]))?,
            "test_tool_with_logging" => {
                for said in
                    ["Tool execution started", "Tool processing data", "Tool execution completed"]
                {
                    log(context, LoggingLevel::Info, said).await;
                    tokio::time::sleep(PAUSE).await;
                }
                text("Logged three times.")
            }
            "test_tool_with_progress" => {
                for progress in [0.0, 50.0, 100.0] {
                    if let Some(token) = context.meta.get_progress_token() {
                        let progress =
                            ProgressNotificationParam::new(token, progress).with_total(100.0);
                        let _ = context.peer.notify_progress(progress).await;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                text("Done.")
            }
            "test_error_handling" => CallToolResult::error(vec![ContentBlock::text(
                "This tool intentionally returns an error for testing",
            )]),
            "test_custom_header" => text(argument("value")),
            "json_schema_2020_12_tool" | "test_reconnection" => text("Done."),
            "test_sampling" => {
                let params = from(json!({
                    "messages": [user(&argument("prompt"))], "maxTokens": 100
                }))?;
                let request =
                    ServerRequest::CreateMessageRequest(CreateMessageRequest::new(params));
                self.ask(request, context, |result| {
                    let said = match result {
                        ClientResult::CreateMessageResult(result) => {
                            let said =
                                result.message.content.first().and_then(|part| part.as_text());
                            said.map(|part| part.text.clone())
                        }
                        _ => None,
                    };
                    format!("LLM response: {}", said.unwrap_or_default())
                })
                .await
            }
            "test_elicitation"
            | "test_elicitation_sep1034_defaults"
            | "test_elicitation_sep1330_enums" => {
                let simple = request.name == "test_elicitation";
                let (message, properties, required) = form(&request.name, argument("message"));
                let params = from(json!({
                    "message": message,
                    "requestedSchema": { "type": "object", "properties": properties, "required": required },
                }))?;
                let request = ServerRequest::ElicitRequest(ElicitRequest::new(params));
                self.ask(request, context, move |result| {
                    let front = if simple { "User response" } else { "Elicitation completed" };
                    match result {
                        ClientResult::ElicitResult(result) => {
                            let action = serde_json::to_value(&result.action).unwrap_or_default();
                            let content = serde_json::to_value(&result.content).unwrap_or_default();
                            let action = action.as_str().unwrap_or_default().to_owned();
                            format!("{front}: action={action}, content={content}")
                        }
                        _ => front.to_owned(),
                    }
                })
                .await
            }
            "test_missing_capability" => {
                let declared = context.meta.client_capabilities().unwrap_or_default();
                if declared.sampling.is_none() {
                    let needed = ClientCapabilities::builder().enable_sampling().build();
                    return Err(ErrorData::missing_required_client_capability(needed));
                }
                text("Sampling is declared.")
            }
            "test_logging_tool" => {
                if let Some(level) = context.meta.log_level() {
                    log(context, level, "as was asked for").await;
                }
                text("Done.")
            }
            "test_trigger_tool_change" => self.changed(Changed::Tools),
            "test_trigger_prompt_change" => self.changed(Changed::Prompts),
            "test_streaming_elicitation" => {
                return input(
                    json!({ "value": elicitation("A value, please", "value", "string") }),
                    None,
                );
            }
            _ => return self.call_with_input(&request, context),
        };
        Ok(result.into())
    }

    fn changed(&self, what: Changed) -> CallToolResult {
        let _ = self.shared.changed.send(what); // nobody need listen
        text("Told.")
    }

    /// Tools that are called again with what the client was asked for.
    fn call_with_input(
        &self,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = |key: &str| {
            request
                .input_responses
                .as_ref()
                .and_then(|all| all.get(key))
                .filter(|one| one.is_object())
        };
        let round =
            request.request_state.as_deref().map(|state| self.shared.round(state)).transpose()?;
        let name = elicitation("What is your name?", "name", "string");
        let done = |said: String| Ok(text(said).into());
        match &*request.name {
            "test_input_required_result_elicitation" => match given("user_name") {
                Some(name) => {
                    let name = name.pointer("/content/name").and_then(Value::as_str);
                    done(format!("Hello, {}!", name.unwrap_or("whoever you are")))
                }
                None => input(json!({ "user_name": name }), None),
            },
            "test_input_required_result_sampling" => match given("capital_question") {
                Some(said) => done(said.to_string()),
                None => {
                    let question = sampling("What is the capital of France?");
                    input(json!({ "capital_question": question }), None)
                }
            },
            "test_input_required_result_list_roots" => match given("client_roots") {
                Some(roots) => done(roots.to_string()),
                None => input(json!({ "client_roots": roots() }), None),
            },
            "test_input_required_result_request_state"
            | "test_input_required_result_tampered_state" => match (given("confirm"), round) {
                (Some(_), Some(_)) => done("state-ok".to_owned()),
                _ => {
                    let confirm = elicitation("Please confirm", "ok", "boolean");
                    input(json!({ "confirm": confirm }), Some(self.shared.keep(1)))
                }
            },
            "test_input_required_result_multiple_inputs" => {
                let all = ["user_name", "greeting", "client_roots"]
                    .into_iter()
                    .all(|key| given(key).is_some());
                if all && round.is_some() {
                    return done("All three were given.".to_owned());
                }
                let greeting = sampling("Generate a greeting");
                let wanted =
                    json!({ "user_name": name, "greeting": greeting, "client_roots": roots() });
                input(wanted, Some(self.shared.keep(1)))
            }
            "test_input_required_result_multi_round" => match round {
                Some(2) if given("step2").is_some() => done("Both steps were taken.".to_owned()),
                Some(1) if given("step1").is_some() => {
                    let step =
                        elicitation("Step 2: What is your favorite color?", "color", "string");
                    input(json!({ "step2": step }), Some(self.shared.keep(2)))
                }
                _ => {
                    let step = elicitation("Step 1: What is your name?", "name", "string");
                    input(json!({ "step1": step }), Some(self.shared.keep(1)))
                }
            },
            "test_input_required_result_capabilities" => {
                if request.input_responses.is_some() {
                    return done("Given.".to_owned());
                }
                let can = context.meta.client_capabilities().unwrap_or_default();
                let wanted = [
                    (can.elicitation.is_some(), "user_name", name),
                    (can.sampling.is_some(), "greeting", sampling("Generate a greeting")),
                    (can.roots.is_some(), "client_roots", roots()),
                ];
                let wanted: BTreeMap<&str, Value> = wanted
                    .into_iter()
                    .filter_map(|(can, key, request)| can.then_some((key, request)))
                    .collect();
                if wanted.is_empty() {
                    return done("The client can be asked nothing.".to_owned());
                }
                input(json!(wanted), None)
            }
            other => Err(ErrorData::invalid_params(format!("there is no tool {other} here"), None)),
        }
    }
}

async fn log(context: &RequestContext<RoleServer>, level: LoggingLevel, said: &str) {
    let told = context
        .peer
        .notify_logging_message(LoggingMessageNotificationParam::new(level, json!(said)));
    let _ = told.await;
}

impl ServerHandler for Conformance {
    fn get_info(&self) -> ServerConfig {
        let mut info = self.server.get_info();
        let more = json!({
            "prompts": { "listChanged": true }, "logging": {}, "completions": {},
            "tools": { "listChanged": true }, "resources": { "subscribe": true },
        });
        if let Ok(capabilities) = from(more) {
            info.capabilities = capabilities;
        }
        info
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools().ok()?.into_iter().find(|tool| tool.name == name)
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let mut all = self.server.list_tools(request, context).await?;
        all.tools.extend(tools()?);
        Ok(all)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        match self.get_tool(&request.name) {
            Some(_) => self.call_fixture(request, &context).await,
            None => self.server.call_tool(request, context).await,
        }
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let mut all = self.server.list_resources(request, context).await?;
        let more: Vec<rmcp::model::Resource> = from(json!([
            { "uri": "test://static-text", "name": "static-text", "description": "A text", "mimeType": "text/plain" },
            { "uri": "test://static-binary", "name": "static-binary", "description": "A picture", "mimeType": "image/png" },
            { "uri": WATCHED, "name": "watched", "description": "Never changes", "mimeType": "text/plain" },
        ]))?;
        all.resources.extend(more);
        Ok(all)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let mut all = self.server.list_resource_templates(request, context).await?;
        all.resource_templates.push(from(json!({
            "uriTemplate": "test://template/{id}/data", "name": "template", "description": "By id",
            "mimeType": "application/json",
        }))?);
        Ok(all)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let uri = request.uri.clone();
        let id = uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data"));
        let content = match (&*uri, id) {
            ("test://static-text", _) => json!({
                "uri": uri, "mimeType": "text/plain", "text": "This is the content of the static text resource.",
            }),
            ("test://static-binary", _) => {
                json!({ "uri": uri, "mimeType": "image/png", "blob": PNG })
            }
            (WATCHED, _) => json!({ "uri": uri, "mimeType": "text/plain", "text": "Still here." }),
            (_, Some(id)) => {
                let text =
                    json!({ "id": id, "templateTest": true, "data": format!("Data for ID: {id}") });
                json!({ "uri": uri, "mimeType": "application/json", "text": text.to_string() })
            }
            _ => return self.server.read_resource(request, context).await,
        };
        Ok(ReadResourceResult::new(vec![from(content)?]).into())
    }

    async fn list_prompts(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Ok(ListPromptsResult { prompts: from(prompts())?, ..Default::default() })
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let argument = |name: &str| {
            let value = request.arguments.as_ref().and_then(|all| all.get(name));
            value.and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let said = |content: Value| json!({ "role": "user", "content": content });
        let messages = match request.name.as_str() {
            "test_simple_prompt" => json!([user("This is a simple prompt for testing.")]),
            "test_prompt_with_arguments" => json!([user(&format!(
                "Prompt with arguments: arg1='{}', arg2='{}'",
                argument("arg1"),
                argument("arg2")
            ))]),
            "test_prompt_with_embedded_resource" => {
                let text = "Embedded resource content for testing.";
                let resource = embedded(&argument("resourceUri"), "text/plain", text);
                json!([said(resource), user("Please process the embedded resource above.")])
            }
            "test_prompt_with_image" => {
                json!([said(image()), user("Please analyze the image above.")])
            }
            "test_input_required_result_prompt" => {
                let given =
                    request.input_responses.as_ref().and_then(|all| all.get("user_context"));
                let Some(given) = given.filter(|given| given.is_object()) else {
                    let wanted =
                        elicitation("What context should the prompt use?", "context", "string");
                    let wanted = required(json!({ "user_context": wanted }), None)?;
                    return Ok(GetPromptResponse::InputRequired(wanted));
                };
                json!([user(&given.to_string())])
            }
            other => {
                return Err(ErrorData::invalid_params(
                    format!("there is no prompt {other} here"),
                    None,
                ));
            }
        };
        Ok(GetPromptResult::new(from(messages)?).into())
    }

    async fn complete(
        &self,
        _: CompleteRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CompleteResult, ErrorData> {
        let values = ["paris", "park", "party"].map(str::to_owned).into();
        let completion = CompletionInfo::new(values);
        Ok(CompleteResult::new(completion.map_err(|error| ErrorData::internal_error(error, None))?))
    }

    async fn set_level(
        &self,
        _: SetLevelRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        Ok(())
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if request.uri == WATCHED {
            return Ok(());
        }
        self.server.subscribe(request, context).await
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        if request.uri == WATCHED {
            return Ok(());
        }
        self.server.unsubscribe(request, context).await
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let mut accepted = self.server.accepted_subscription_filter(requested)?;
        accepted.tools_list_changed = requested.tools_list_changed;
        accepted.prompts_list_changed = requested.prompts_list_changed;
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let wants = context.accepted();
        let (tools, prompts) = (wants.tools_list_changed, wants.prompts_list_changed);
        if tools != Some(true) && prompts != Some(true) {
            return self.server.listen(context).await;
        }
        let mut changed = self.shared.changed.subscribe();
        loop {
            let what = tokio::select! {
                () = context.cancelled() => return Ok(()),
                () = stopped(self.server.stop.clone()) => return Ok(()),
                what = changed.recv() => what,
            };
            let told = match what {
                Ok(Changed::Tools) if tools == Some(true) => {
                    context.sink().notify_tool_list_changed().await
                }
                Ok(Changed::Prompts) if prompts == Some(true) => {
                    context.sink().notify_prompt_list_changed().await
                }
                Ok(_) | Err(broadcast::error::RecvError::Lagged(_)) => continue,
                Err(broadcast::error::RecvError::Closed) => return Ok(()),
            };
            if told.is_err() {
                return Ok(());
            }
        }
    }
}
