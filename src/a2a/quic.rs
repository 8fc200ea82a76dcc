//! A2A over native QUIC, a binding of its own (docs/a2a-quic.md): a call is one bidirectional stream.
//! A line of JSON asks, and lines of JSON-RPC answer; each event of a stream has its number beside it,
//! to go on from.

use super::A2a;
use super::dispatch::{Answer, Answered, Asked, EVENT, Told, Unread, refusal, response};
use super::fault::{Fault, Kind};
use super::stream;
use crate::calls::{self, Code, Incoming, LineError, Lines, Serving};
use proto::id::AgentId;
use quinn::{RecvStream, SendStream, StoppedError, VarInt};
use serde_json::{Map, Value};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// This binding on agent cards (A2A §5.8). A change that breaks clients needs another.
pub(crate) const BINDING: &str =
    "https://ravikiran438.github.io/abhyasa-protocol/bindings/a2a-quic/v1";
/// How long the line that asks may take from its first byte to its last.
pub(crate) const ASKING_TIME_MAX: Duration = Duration::from_secs(30);
/// How long who asked may take to take a line of the answer.
pub(crate) const TAKING_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of calls that are not answered yet, of all connections; a further one is refused.
pub(crate) const ASKED_LEN_MAX: usize = 128 * 1024 * 1024;

impl A2a {
    /// Serves calls until the server stops; then lets those in progress end.
    pub(crate) async fn serve_quic(
        self: Arc<Self>,
        serving: Serving,
        incoming: mpsc::Receiver<Incoming>,
    ) {
        let room = self.asked.clone();
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
        let read = |line: Vec<u8>| Asked::read(&line, Told::ByStream);
        let asked = match line.map_err(Unread::from).and_then(read) {
            Ok(asked) => asked,
            Err(Unread { id, fault }) => return tell(send, refusal(&id, &fault)).await,
        };
        let Answered { id, beside, answer } =
            self.a2a.answer(peer, asked, &self.serving.stop).await;
        drop(held);
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
