//! A2A over native QUIC, a binding of its own (docs/a2a-quic.md): a call is one bidirectional stream.
//! A line of JSON asks, and lines of JSON-RPC answer; each event of a stream has its number beside it,
//! to go on from.

use super::A2a;
use super::dispatch::{Answer, Call, Told, Unread, object, refusal, response, wrong};
use super::fault::{Fault, Kind};
use super::operations::Caller;
use super::parameters::{check_version, extensions};
use super::record::json;
use super::stream;
use crate::calls::{self, Code, Incoming, LineError, Lines, Serving};
use proto::id::AgentId;
use quinn::{RecvStream, SendStream, StoppedError, VarInt};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// This binding on agent cards (A2A §5.8). A change that breaks clients needs another.
pub(crate) const BINDING: &str =
    "https://ravikiran438.github.io/abhyasa-protocol/bindings/a2a-quic/v1";
/// The call for the public agent card, which is at a well-known place over HTTP. It is no operation
/// of A2A: neither a version nor an extension is asked for, since who reads the card learns them.
pub(crate) const GET_CARD: &str = "GetAgentCard";
/// Names of the members of a line beside those of JSON-RPC.
pub(crate) const PARAMETERS: &str = "a2a-service-parameters";
pub(crate) const EVENT: &str = "event";

/// How long the line that asks may take from its first byte to its last.
const ASKING_TIME_MAX: Duration = Duration::from_secs(30);
/// How long who asked may take to take a line of the answer.
const TAKING_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of calls that are not answered yet, of all connections; a further one is refused.
const ASKED_LEN_MAX: usize = 128 * 1024 * 1024;

impl A2a {
    /// Serves calls until the server stops; then lets those in progress end.
    pub(crate) async fn serve_quic(
        self: Arc<Self>,
        serving: Serving,
        incoming: mpsc::Receiver<Incoming>,
    ) {
        let room = Arc::new(Semaphore::new(ASKED_LEN_MAX));
        let server = Arc::new(Server { a2a: self, serving: serving.clone(), room });
        let call = move |peer, send, recv| server.clone().call(peer, send, recv);
        serving.calls(incoming, call).await;
    }
}

/// What every call has.
struct Server {
    a2a: Arc<A2a>,
    serving: Serving,
    /// Room for what was asked and is not answered, in bytes.
    room: Arc<Semaphore>,
}

/// One call with what came beside it.
#[derive(Debug)]
struct Asked {
    call: Call,
    parameters: BTreeMap<String, String>,
}

impl Asked {
    fn read(line: &[u8]) -> Result<Self, Unread> {
        let mut request = object(line)?;
        let beside = request.remove(PARAMETERS);
        let call = Call::of(request, Told::ByStream)?;
        let wrong = |what| wrong(call.id.clone(), what);
        let mut parameters = BTreeMap::new();
        match beside {
            None => {}
            Some(Value::Object(members)) => {
                for (name, value) in members {
                    let Value::String(value) = value else {
                        return Err(wrong("a service parameter must be a string"));
                    };
                    // Names are the same in either case (A2A §3.2.6).
                    if parameters.insert(name.to_ascii_lowercase(), value).is_some() {
                        return Err(wrong("a service parameter is there twice"));
                    }
                }
            }
            Some(_) => return Err(wrong("a2a-service-parameters must be an object")),
        }
        Ok(Self { call, parameters })
    }

    fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }
}

impl Server {
    /// Answers one call.
    async fn call(self: Arc<Self>, peer: AgentId, mut send: SendStream, recv: RecvStream) {
        let mut lines = Lines::within(recv, self.a2a.request_len_max(), self.room.clone());
        let line = tokio::select! {
            biased;
            () = self.serving.stopped() => return reset(&mut send, Code::Stopping),
            line = asking(&mut lines) => line,
        };
        let Some(line) = line else { return }; // gone
        let held = lines.room();
        if line.is_err() {
            stop(lines.source(), Code::Malformed);
        }
        let stopped = send.stopped();
        let answered = tokio::select! {
            biased;
            () = hung_up(lines.source(), stopped) => Err(Code::Canceled),
            answered = self.answer(peer, line, held, &mut send) => answered,
        };
        match answered {
            Ok(()) => drop(send.finish()),
            Err(code) => reset(&mut send, code),
        }
        stop(lines.source(), Code::Done); // whatever else it says
    }

    async fn answer(
        &self,
        peer: AgentId,
        line: Result<Vec<u8>, Fault>,
        held: Option<OwnedSemaphorePermit>,
        send: &mut SendStream,
    ) -> Result<(), Code> {
        let asked = match line.map_err(Unread::from).and_then(|line| Asked::read(&line)) {
            Ok(asked) => asked,
            Err(Unread { id, fault }) => return tell(send, refusal(&id, &fault)).await,
        };
        let version = asked.parameter("a2a-version").map(str::to_owned);
        let caller = Caller {
            peer: Some(peer),
            extensions: extensions(asked.parameter("a2a-extensions").into_iter()),
            last_event: asked.parameter("last-event-id").and_then(|text| text.parse().ok()),
            key: asked.parameter("idempotency-key").map(str::to_owned),
        };
        let Call { id, method, params } = asked.call;
        let answer = async {
            if method == GET_CARD {
                return Ok(Answer::Whole(json(&self.a2a.card(None).await)));
            }
            check_version(version.as_deref())?;
            self.a2a.check_extensions(&caller).await?;
            self.a2a.dispatch(&caller, &method, params, &self.serving.stop).await
        };
        let answer = answer.await;
        drop(held);
        let mut beside = Map::new();
        let active = self.a2a.active(&caller).await;
        if !active.is_empty() {
            beside.insert(PARAMETERS.to_owned(), json!({ "A2A-Extensions": active.join(",") }));
        }
        match answer {
            Ok(Answer::Whole(result)) => tell(send, response(&id, &beside, &result)).await,
            Ok(Answer::Events(events)) => self.stream(&id, beside, *events, send).await,
            Err(fault) => tell(send, refusal(&id, &fault)).await,
        }
    }

    /// Tells events, each with its number. The end of the stream says that the last was the last: a
    /// server that stops ends it otherwise.
    async fn stream(
        &self,
        id: &Value,
        mut beside: Map<String, Value>,
        mut events: stream::Events,
        send: &mut SendStream,
    ) -> Result<(), Code> {
        loop {
            let event = tokio::select! {
                biased;
                () = self.serving.stopped() => return Err(Code::Stopping),
                event = events.next() => event,
            };
            match event {
                Ok(Some(event)) => {
                    beside.insert(EVENT.to_owned(), event.number.into());
                    tell(send, response(id, &beside, &event.body)).await?;
                    beside.clear(); // what was activated is said once
                }
                Ok(None) => return Ok(()),
                Err(error) => return tell(send, refusal(id, &error.into())).await,
            }
        }
    }
}

/// The line that asks, or what is wrong with it. `None`: who asked is gone.
async fn asking(lines: &mut Lines<RecvStream>) -> Option<Result<Vec<u8>, Fault>> {
    let invalid = |what: &str| Some(Err(Fault::new(Kind::InvalidRequest, what)));
    match tokio::time::timeout(ASKING_TIME_MAX, lines.next()).await {
        Ok(Ok(Some(line))) => Some(Ok(line)),
        Ok(Ok(None)) => invalid("nothing was asked"),
        Ok(Err(error @ LineError::Cut)) => invalid(&error.to_string()),
        Ok(Err(LineError::TooLong { max })) => {
            let what = format!("over the limit of {max} bytes (a2a.request_len_max)");
            Some(Err(Fault::new(Kind::TooLarge, what)))
        }
        Ok(Err(LineError::NoRoom)) => Some(Err(Fault::overloaded("too much is asked at a time"))),
        Ok(Err(LineError::Lost(_))) => None,
        Err(_) => {
            let what = format!("to ask took longer than {} s", ASKING_TIME_MAX.as_secs());
            Some(Err(Fault::new(Kind::Timeout, what)))
        }
    }
}

/// Returns when who asked does not want to hear more, or is gone. To have said all is neither.
async fn hung_up(
    recv: &mut RecvStream,
    stopped: impl Future<Output = Result<Option<VarInt>, StoppedError>>,
) {
    let reset = async {
        if matches!(recv.received_reset().await, Ok(None)) {
            std::future::pending().await
        }
    };
    let stopped = async {
        if matches!(stopped.await, Ok(None)) {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = reset => {}
        () = stopped => {}
    }
}

/// Tells one line, to who takes it in time.
async fn tell(send: &mut SendStream, line: Vec<u8>) -> Result<(), Code> {
    match tokio::time::timeout(TAKING_TIME_MAX, calls::tell(send, line)).await {
        Ok(told) => told.map_err(|_| Code::Canceled),
        Err(_) => Err(Code::Overloaded),
    }
}

fn stop(recv: &mut RecvStream, code: Code) {
    let _ = recv.stop(code.into()); // an error: it has ended already
}

fn reset(send: &mut SendStream, code: Code) {
    let _ = send.reset(code.into()); // an error: the same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_strings_whose_names_have_no_case() {
        let read = |beside: Value| {
            let line = json!({ "method": "M", "id": 7, PARAMETERS: beside }).to_string();
            Asked::read(line.as_bytes())
        };
        let asked = read(json!({ "A2A-Version": "1.0", "X": "y" })).unwrap();
        assert_eq!(
            (asked.parameter("a2a-version"), asked.parameter("x")),
            (Some("1.0"), Some("y"))
        );
        assert_eq!(asked.parameter("a2a-extensions"), None);
        for wrong in [json!([]), json!("a"), json!({ "a": 1 }), json!({ "A": "1", "a": "1" })] {
            let Unread { id, fault } = read(wrong).unwrap_err();
            assert_eq!((id, fault.kind), (json!(7), Kind::InvalidRequest));
        }
        assert!(Asked::read(br#"{"method":"M"}"#).is_ok());
    }
}
