//! The tables whose settings all have defaults, with every limit of the node.

use super::address::{A2aAgent, HttpUrl};
use super::section::section;
use proto::limits::{BATCH_COUNT_MAX, DATAGRAM_LEN_MAX, FRAME_LEN_MAX, OBLIGATION_LEN_MAX};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Ten minutes, the longest any single wait of the node may be, in milliseconds.
const WAIT_MS_MAX: u64 = 600_000;
/// One gibibyte.
const GIB: usize = 1024 * 1024 * 1024;

section! {
    /// The QUIC endpoint that peers reach us at, and from which we dial them.
    QuicConfig "quic" {
        /// UDP address to listen on. Port 0 takes a free one.
        listen: SocketAddr = loopback(4433);
        /// PEM file with our certificate, and intermediates if any. Relative names start at the
        /// directory of this file. Its identity must be node.id.
        cert: PathBuf = "node.pem".into();
        /// PEM file with the key of that certificate; refused when every user may read it.
        key: PathBuf = "node.key".into();
        /// PEM file with the CA certificates that peers must chain to.
        ca: PathBuf = "ca.pem".into();
        /// Milliseconds without any packet after which a connection is dropped. Nothing is lost:
        /// what was in flight is offered again on the next connection.
        idle_timeout_ms: u64 = 30_000, 1_000 => WAIT_MS_MAX;
        /// Milliseconds between keep-alive packets on a quiet connection, at most half of
        /// idle_timeout_ms, so that one lost packet does not end it.
        keep_alive_ms: u64 = 5_000, 100 => WAIT_MS_MAX;
        /// Milliseconds a handshake may take; a slower one is abandoned and dialled again.
        handshake_timeout_ms: u64 = 5_000, 100 => WAIT_MS_MAX;
        /// Milliseconds before the first new dial of a peer that was lost; doubles each time.
        reconnect_base_ms: u64 = 100, 1 => WAIT_MS_MAX;
        /// Milliseconds between two dials at most, however long the peer is away.
        reconnect_cap_ms: u64 = 2_000, 1 => WAIT_MS_MAX;
        /// Whether a retry over a silent connection also starts a fresh handshake, and the first
        /// to answer wins. QUIC's own probes back off for as long as an outage lasted.
        racing: bool = true;
        /// Milliseconds without a packet after which a connection counts as silent when a retry
        /// is due, and is raced.
        silent_after_ms: u64 = 1_000, 10 => WAIT_MS_MAX;
        /// Congestion control: "tolerant" is Cubic that counts a loss only beside a queue on the way
        /// or many others, "cubic" counts each, "bbr" sends at the rate the path was seen to carry.
        congestion: Congestion = Congestion::Tolerant;
        /// Connections at a time. Further ones are refused in the handshake.
        connections_max: usize = 1_024, 1 => 1_000_000;
        /// Connections of one peer at a time. The oldest is closed for a further one. With two
        /// nodes that dial each other, one each way is a need.
        connections_per_peer_max: usize = 4, 2 => 64;
        /// Streams a peer may have open on one connection, one frame each. It waits for a free
        /// one before it opens another.
        streams_max: u32 = 256, 8 => 65_536;
        /// Milliseconds from the first byte of a frame to its last. A slower stream is stopped.
        frame_timeout_ms: u64 = 10_000, 100 => WAIT_MS_MAX;
        /// Bytes of best-effort datagrams buffered per connection and direction. The oldest are
        /// dropped beyond it.
        datagram_buffer_bytes: usize = 1_048_576, DATAGRAM_LEN_MAX => GIB;
        /// Bytes queued to one connection. Beyond it best-effort frames are dropped and custody
        /// waits in the store.
        send_queue_bytes_max: usize = 16_777_216, FRAME_LEN_MAX => GIB;
    }
}

section! {
    /// The local HTTP API, metrics, and the papers' HTTP binding.
    ApiConfig "api" {
        /// TCP address to listen on. Any but a loopback address needs token_file.
        listen: SocketAddr = loopback(8433);
        /// File with the bearer token that callers must show; refused when every user may read
        /// it. Without it, everyone on this machine may call.
        token_file: Option<PathBuf> = None;
        /// Whether peers may also call as HTTP/3, at quic.listen: the papers' HTTP binding, A2A and
        /// the MCP servers behind the node, each peer known by its certificate.
        http3: bool = false;
        /// Bytes in a request body. A longer one is answered 413.
        body_len_max: usize = 8_388_608, OBLIGATION_LEN_MAX => GIB;
        /// Obligations in one batch request. A larger one is answered 413.
        batch_max: usize = 4_096, 1 => 1_000_000;
        /// Connections at a time, event streams among them. Further ones wait in the kernel.
        connections_max: usize = 256, 1 => 65_536;
        /// Seconds a request may wait for an outcome. A longer wish is cut to this.
        wait_seconds_max: u64 = 300, 1 => 3_600;
    }
}

section! {
    /// Custody: how much is held, and for how long it is remembered.
    CustodyConfig "custody" {
        /// Milliseconds two clocks may differ. Nothing is applied closer to its deadline than
        /// this, and applied ids are remembered this much longer.
        max_clock_skew_ms: u64 = 500, 0 => WAIT_MS_MAX;
        /// Obligations under custody at a time, on disk. Issuing more is refused with retry-after.
        pending_max: usize = 10_000_000, 1 => 1_000_000_000;
        /// The same for one target.
        pending_per_peer_max: usize = 2_000_000, 1 => 1_000_000_000;
        /// Offers of one session that await an ack. The rest wait in the store.
        in_flight_max: usize = 8_192, 1 => 1_000_000;
        /// Bytes of those offers.
        in_flight_bytes_max: usize = 8_388_608, OBLIGATION_LEN_MAX => GIB;
        /// Whether a newer obligation of a governed key ends older ones still pending to an agent
        /// that is away, as superseded. Each is reported.
        coalesce: bool = true;
        /// Seconds the outcome of an obligation can be asked for after it ended.
        outcome_retention_seconds: u64 = 604_800, 60 => 316_224_000;
        /// Outcomes kept. The oldest are forgotten beyond it.
        outcomes_max: u64 = 1_000_000, 1 => 1_000_000_000;
        /// Best-effort ids remembered per peer. A duplicate older than these is applied again.
        best_effort_window: usize = 65_536, 1 => 16_777_216;
        /// Offers of one peer being decided by an external handler. Further ones are refused with
        /// retry-after.
        deciding_max: usize = 1_024, 1 => 1_000_000;
        /// Milliseconds a refused peer is asked to wait before it offers again.
        refuse_retry_after_ms: u64 = 1_000, 1 => WAIT_MS_MAX;
        /// Escalations that nobody has acknowledged. At the limit the node reports not ready; it
        /// never drops one.
        escalations_max: u64 = 1_000_000, 1 => 1_000_000_000;
    }
}

section! {
    /// The durable store.
    StoreConfig "store" {
        /// Inputs one commit takes. The rest go into the next commit.
        commit_batch_max: usize = 4_096, 1 => 65_536;
        /// Microseconds to wait at most for more inputs under load, within half of what a commit takes.
        /// Never waited when idle.
        commit_linger_us: u64 = 10_000, 0 => 1_000_000;
        /// Bytes of block cache.
        cache_bytes: u64 = 33_554_432, 1_048_576 => 1_099_511_627_776;
        /// Inputs queued to the driver. A full queue refuses with retry-after.
        input_queue_max: usize = 8_192, 1 => 1_000_000;
        /// Bytes of not yet flushed writes in memory, all keyspaces together.
        write_buffer_bytes: u64 = 67_108_864, 1_048_576 => 1_099_511_627_776;
    }
}

section! {
    /// What each peer may send us, before anything is written to disk. A peer over its rate is
    /// refused with retry-after. One peer may have its own values in its table.
    RatesConfig "rates" {
        /// Obligations a second.
        obligations_per_second: u64 = 200_000, 1 => 1_000_000_000;
        /// Obligations in one burst, at least those of one full frame.
        obligations_burst: u64 = 400_000, BATCH_COUNT_MAX as u64 => 1_000_000_000;
        /// Bytes a second; a burst may hold those of one second.
        bytes_per_second: u64 = 209_715_200, FRAME_LEN_MAX as u64 => 1_099_511_627_776;
    }
}

section! {
    /// Routing weights that belief updates move. An update is clipped to the bounds.
    WeightsConfig "weights" {
        /// Lowest weight.
        min: f64 = 0.0, -1_000_000.0 => 1_000_000.0;
        /// Highest weight.
        max: f64 = 1.0, -1_000_000.0 => 1_000_000.0;
        /// Weight of a key that was never updated.
        initial: f64 = 0.5, -1_000_000.0 => 1_000_000.0;
    }
}

section! {
    /// Agent2Agent (A2A) 1.0, on the address of the API: other agents reach the agent behind this
    /// node, and give it obligations inside of their messages. Off without an agent.
    A2aConfig "a2a" {
        /// Who does the work: "echo" is a small agent of our own, to try things out; a URL is where
        /// your agent serves its /.well-known/agent-card.json; the id of a peer with an address is the
        /// agent behind that peer's node, called as agent_over says.
        agent: Option<A2aAgent> = None;
        /// How the node of a peer is called that agent names: "quic", a stream for each call; "moqt", where
        /// it has `moq.enabled`; or "http3", where it has `api.http3`.
        agent_over: AgentOver = AgentOver::Quic;
        /// Name on the agent card.
        name: String = "abhyasa node".into();
        /// What the agent card says of us.
        description: String = "An agent behind an abhyasa node: tasks and obligations survive restarts.".into();
        /// Where others reach the API, as the agent card says. By default http:// and api.listen.
        public_url: Option<HttpUrl> = None;
        /// Whether a caller without our extension in A2A-Extensions is refused.
        extension_required: bool = false;
        /// Whether the skill that a message names in its metadata, as abhyasa.skill, is believed by the gate:
        /// only where the agent holds itself to it. Else a message needs what any skill needs.
        skills_believed: bool = false;
        /// Bytes of a request. A longer one is answered 413.
        request_len_max: usize = 2_097_152, 1_024 => 67_108_864;
        /// Bytes of one task with all it holds. An agent that says more fails it.
        task_len_max: usize = 4_194_304, 4_096 => 67_108_864;
        /// Messages in the history of a task. The oldest are forgotten.
        history_max: usize = 256, 1 => 65_536;
        /// Events of a task kept for streams and webhooks. One that is further behind gets the whole
        /// task in place of those it missed.
        events_max: u64 = 1_024, 2 => 1_000_000;
        /// Tasks kept. The oldest that ended are forgotten, those of the same caller first; if all go
        /// on, a new one is refused.
        tasks_max: usize = 100_000, 1 => 10_000_000;
        /// Tasks of one caller, in all its tenants, that go on at a time. A new one is refused with retry-after.
        tasks_per_caller_max: usize = 10_000, 1 => 10_000_000;
        /// Seconds a task is kept after its end. One that waits for its client so long fails.
        retention_seconds: u64 = 604_800, 60 => 316_224_000;
        /// Tasks the agent is at work on at a time. The rest wait as submitted.
        running_max: usize = 1_024, 1 => 65_536;
        /// Seconds the agent may say nothing before its task fails.
        agent_silent_seconds_max: u64 = 300, 1 => 86_400;
        /// Seconds a blocking call waits. Then it is answered with the task as it stands.
        wait_seconds_max: u64 = 300, 1 => 3_600;
        /// Streams at a time. A further one is refused with retry-after.
        streams_max: usize = 4_096, 1 => 65_536;
        /// Webhooks of one task. A further one is refused.
        push_configs_per_task_max: usize = 16, 1 => 1_024;
        /// Webhooks of all tasks. A further one is refused.
        push_configs_max: usize = 100_000, 1 => 10_000_000;
        /// Calls of webhooks under way at a time. The rest wait.
        push_calls_max: usize = 64, 1 => 4_096;
        /// Milliseconds between two tries of a webhook at most.
        push_retry_cap_ms: u64 = 300_000, 100 => 3_600_000;
        /// Seconds one event is tried. Then the webhook gets nothing more, and the log says so.
        push_give_up_seconds: u64 = 259_200, 1 => 2_592_000;
        /// Whether webhooks may be on this machine or in a private network. Else who may call us
        /// could make us call what only we can reach.
        push_to_private: bool = false;
    }
}

section! {
    /// Model Context Protocol (MCP), at /mcp on the address of the API, for the agents and tools of
    /// the operator: who may use the API may use it.
    McpConfig "mcp" {
        /// Whether it is served.
        enabled: bool = true;
        /// Bytes of a message. A longer one is answered 413, or ends the stream it came in.
        request_len_max: usize = 1_048_576, OBLIGATION_LEN_MAX => 67_108_864;
        /// Requests being answered at a time, event streams among them. A further one is refused with
        /// retry-after.
        requests_max: usize = 256, 1 => 65_536;
        /// Sessions of clients that speak a version before 2026-07-28. A further one is refused with
        /// retry-after.
        sessions_max: usize = 64, 1 => 65_536;
        /// Seconds a session may ask nothing, with no stream of it open, before it is forgotten.
        session_idle_seconds: u64 = 300, 1 => 86_400;
    }
}

section! {
    /// Where escalations are sent, beside the inbox and the log.
    EscalationConfig "escalation" {
        /// URL that gets each escalation as a POST, until it answers 2xx.
        webhook_url: Option<HttpUrl> = None;
        /// Milliseconds between two tries at most.
        webhook_retry_cap_ms: u64 = 60_000, 100 => 3_600_000;
    }
}

section! {
    /// Logs, on standard error. Payloads are never logged.
    LogConfig "log" {
        /// "text" or "json".
        format: LogFormat = LogFormat::Text;
        /// What to log, in the syntax of tracing-subscriber: "info", "warn,abhyasa=debug".
        filter: String = "info,fjall=warn,lsm_tree=warn".into();
    }
}

/// Congestion control of a connection (RFC 9002 §7 leaves it to the sender).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    /// By loss, unless the link loses by itself.
    Tolerant,
    /// By the bandwidth and the round trip that were seen; loss alone slows nothing down.
    Bbr,
    /// By loss (RFC 9438).
    Cubic,
}

/// How the node of a peer is called whose agent is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentOver {
    /// Native QUIC (docs/a2a-quic.md).
    Quic,
    /// MOQT (docs/a2a-moqt.md).
    Moqt,
    /// HTTP/3: the JSON-RPC binding, at the peer's QUIC port.
    Http3,
}

/// Form of the log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// For machines, one object a line.
    Json,
}

impl ApiConfig {
    /// Whether callers must show a token: always beyond loopback.
    #[must_use]
    pub const fn is_loopback(&self) -> bool {
        self.listen.ip().to_canonical().is_loopback()
    }
}
