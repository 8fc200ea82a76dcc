//! Model Context Protocol (MCP): custody as tools and resources.
//!
//! One server for every way a client may come: Streamable HTTP for the operator's agents, byte
//! streams for peers. It speaks 2026-07-28, where each request stands alone, and the versions before
//! it, where a client has a session. A disconnected client ends a call, never an obligation.

mod changes;
mod conformance;
pub(crate) mod forward;
pub(crate) mod http;
mod lines;
mod resources;
mod schema;
mod sessions;
mod tools;
mod views;

pub use crate::bridge::{ConnectError, MoqtTransport};
pub(crate) use lines::serve_on;
pub use lines::{LinesError, serve_lines};

use crate::node::NodeHandle;
use proto::id::AgentId;
use resources::Topic;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ResourceUpdatedNotificationParam,
    ServerCapabilities, ServerConfig, SubscribeRequestParams, SubscriptionFilter,
    UnsubscribeRequestParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, Peer, RoleServer, ServerHandler};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch::Receiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

/// What our name is in `serverInfo`.
const NAME: &str = "abhyasa";
/// The code of a request that finds too many before it. Outside of the range that JSON-RPC keeps.
const BUSY: ErrorCode = ErrorCode(429);

const INSTRUCTIONS: &str = "Custody of governance obligations: an obligation that is issued here is \
    applied, declined or escalated, and never silently lost. Ask check_authorization before you act on \
    what an agent was allowed to do: anything but allowed=true means no. Ask check_admissibility before \
    you issue; issue_obligation answers once the obligation is durable, and may be repeated under the \
    same obligation_id. What is not confirmed in time waits in list_escalations for a person.";

const PEER_INSTRUCTIONS: &str = "What a peer of this node may know: whether this node lets it do \
    something (check_authorization), and where the obligations between the two stand \
    (obligation_status).";

/// Who calls, which decides what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Who may use the API: everything.
    Operator,
    /// A peer, known by its certificate: only to read what concerns itself.
    Peer(AgentId),
}

/// The MCP server of one client.
pub(crate) struct Server {
    node: NodeHandle,
    caller: Caller,
    /// Told when the node stops.
    stop: Receiver<bool>,
    /// Calls of this client at a time.
    places: Arc<Semaphore>,
    /// What a client with a session wants to be told of.
    watched: Arc<Mutex<BTreeSet<Topic>>>,
    /// Tells it; ends with this server.
    telling: Mutex<JoinSet<()>>,
}

impl Server {
    pub(crate) fn new(node: NodeHandle, caller: Caller, stop: Receiver<bool>) -> Self {
        let places = node.config().mcp.requests_max.min(Semaphore::MAX_PERMITS);
        Self {
            node,
            caller,
            stop,
            places: Arc::new(Semaphore::new(places)),
            watched: Arc::default(),
            telling: Mutex::default(),
        }
    }

    /// Returns when the node stops.
    pub(crate) async fn stopped(&self) {
        stopped(self.stop.clone()).await;
    }

    /// A place for one more call. A stream of bytes has no other bound on them.
    fn place(&self) -> Result<OwnedSemaphorePermit, ErrorData> {
        self.places.clone().try_acquire_owned().map_err(|_| {
            let max = self.node.config().mcp.requests_max;
            let message =
                format!("{max} requests are being answered, the limit (mcp.requests_max)");
            let after = self.node.config().custody.refuse_retry_after_ms;
            ErrorData::new(BUSY, message, Some(json!({ "retry_after_ms": after })))
        })
    }

    /// The resource of a URI that may be subscribed to.
    fn topic(&self, uri: &str) -> Option<Topic> {
        match self.caller {
            Caller::Operator => Topic::of(uri),
            Caller::Peer(_) => None,
        }
    }

    fn watched(&self) -> std::sync::MutexGuard<'_, BTreeSet<Topic>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to tell a client with a session, once.
    fn tell(&self, peer: Peer<RoleServer>) {
        let mut telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        if !telling.is_empty() {
            return;
        }
        let (mut changes, watched) =
            (changes::Changes::new(self.node.clone()), self.watched.clone());
        telling.spawn(async move {
            loop {
                let changed = changes.next().await;
                let wanted = watched.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for topic in changed.intersection(&wanted) {
                    let param = ResourceUpdatedNotificationParam::new(topic.uri());
                    if peer.notify_resource_updated(param).await.is_err() {
                        return; // the session is over
                    }
                }
            }
        });
    }
}

/// Returns when the flag is set; never if nobody can set it any more.
pub(crate) async fn stopped(mut stop: Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending().await
    }
}

fn unknown_resource(uri: &str) -> ErrorData {
    let message = format!("there is no resource {uri} here; resources/list names those there are");
    ErrorData::resource_not_found(message, Some(json!({ "uri": uri })))
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let (capabilities, instructions) = match self.caller {
            Caller::Operator => (
                ServerCapabilities::builder()
                    .enable_tools()
                    .enable_resources()
                    .enable_resources_subscribe()
                    .build(),
                INSTRUCTIONS,
            ),
            Caller::Peer(_) => {
                (ServerCapabilities::builder().enable_tools().build(), PEER_INSTRUCTIONS)
            }
        };
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(NAME, env!("CARGO_PKG_VERSION")))
            .with_instructions(instructions)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult { tools: tools::list(&self.caller), ..Default::default() })
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let _place = self.place()?;
        let given_up = async {
            tokio::select! {
                () = context.ct.cancelled() => {}
                () = self.stopped() => {}
            }
        };
        let arguments = request.arguments.unwrap_or_default();
        let result = tools::call(self, &request.name, arguments, given_up).await?;
        Ok(result.into())
    }

    async fn list_resources(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult { resources: resources::list(&self.caller), ..Default::default() })
    }

    async fn list_resource_templates(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let resource_templates = resources::templates(&self.caller);
        Ok(ListResourceTemplatesResult { resource_templates, ..Default::default() })
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let _place = self.place()?;
        if self.caller != Caller::Operator {
            return Err(unknown_resource(&request.uri));
        }
        resources::read(&self.node, &request.uri).map(Into::into)
    }

    fn accepted_subscription_filter(
        &self,
        requested: &SubscriptionFilter,
    ) -> Option<SubscriptionFilter> {
        let uris = requested.resource_subscriptions.iter().flatten();
        let known: Vec<String> = uris.filter(|uri| self.topic(uri).is_some()).cloned().collect();
        let mut accepted = SubscriptionFilter::new();
        accepted.resource_subscriptions = Some(known);
        Some(accepted)
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        let _place = self.place()?;
        let uris = context.accepted().resource_subscriptions.iter().flatten();
        let wanted: BTreeSet<Topic> = uris.filter_map(|uri| self.topic(uri)).collect();
        let mut changes = changes::Changes::new(self.node.clone());
        loop {
            let changed = tokio::select! {
                biased;
                () = context.cancelled() => return Ok(()),
                () = self.stopped() => return Ok(()),
                changed = changes.next() => changed,
            };
            for topic in changed.intersection(&wanted) {
                if context.sink().notify_resource_updated(topic.uri()).await.is_err() {
                    return Ok(()); // the client is gone
                }
            }
        }
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let topic = self.topic(&request.uri).ok_or_else(|| unknown_resource(&request.uri))?;
        self.watched().insert(topic);
        self.tell(context.peer);
        Ok(())
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        let topic = self.topic(&request.uri).ok_or_else(|| unknown_resource(&request.uri))?;
        self.watched().remove(&topic);
        Ok(())
    }
}
