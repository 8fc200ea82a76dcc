//! What an agent answers over HTTP, of whichever version: one JSON text, or server-sent events.

use super::agent::{Lost, Said, said};
use bytes::Bytes;
use std::time::Duration;

/// Bytes of an agent card.
pub(super) const CARD_LEN_MAX: usize = 1024 * 1024;

/// A body as it comes.
pub(super) trait Source {
    /// The next bytes, or `None` at the end.
    fn chunk(&mut self) -> impl Future<Output = Result<Option<Bytes>, Lost>> + Send;
}

/// A body within a limit, in bytes.
pub(super) async fn bounded(source: &mut impl Source, max: usize) -> Result<Vec<u8>, Lost> {
    let mut body = Vec::new();
    while let Some(chunk) = source.chunk().await? {
        if body.len() + chunk.len() > max {
            return Err(too_long(max));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn too_long(max: usize) -> Lost {
    Lost::Broken(format!("its answer is over the limit of {max} bytes"))
}

/// Whether a body of this media type is a stream of events.
pub(super) fn streams(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|text| text.starts_with("text/event-stream"))
}

/// The results of one call: a stream of events, or one.
pub(super) struct Answers<S> {
    source: S,
    events: Events,
    over: bool,
    len_max: usize,
    silent_max: Duration,
    /// Whether the ids of events are numbers to go on behind.
    numbered: bool,
}

impl<S: Source> Answers<S> {
    /// In a body of at most `len_max` bytes, or of events of that length.
    pub(super) fn new(source: S, streams: bool, len_max: usize, silent_max: Duration) -> Self {
        let events = Events { streams, ..Events::default() };
        Self { source, events, over: false, len_max, silent_max, numbered: false }
    }

    /// The same, from a node: its events have numbers.
    pub(super) fn numbered(self) -> Self {
        Self { numbered: true, ..self }
    }

    pub(super) async fn next(&mut self) -> Result<Option<Said>, Lost> {
        loop {
            if let Some(Event { id, data }) = self.events.whole(self.over, self.len_max)? {
                let said = said(&data)?;
                let event = said.event.or(id.filter(|_| self.numbered));
                return Ok(Some(Said { event, ..said }));
            }
            if self.over {
                return Ok(None);
            }
            match tokio::time::timeout(self.silent_max, self.source.chunk()).await {
                Ok(Ok(Some(chunk))) => self.events.buffer.extend_from_slice(&chunk),
                Ok(Ok(None)) => self.over = true,
                Ok(Err(error)) => return Err(error),
                Err(_) => return Err(Lost::silent()),
            }
        }
    }
}

/// What came and was not told yet.
#[derive(Debug, Default)]
struct Events {
    streams: bool,
    buffer: Vec<u8>,
    /// Bytes at its begin in which no event ends.
    searched: usize,
}

#[derive(Debug, PartialEq)]
struct Event {
    /// Its `id`, where that is a number.
    id: Option<u64>,
    data: Vec<u8>,
}

impl Events {
    /// One whole event of the buffer that has data. Of many that come in one chunk, `len_max` bounds each.
    //= BD-1
    fn whole(&mut self, over: bool, len_max: usize) -> Result<Option<Event>, Lost> {
        if !self.streams {
            if self.buffer.len() > len_max {
                return Err(too_long(len_max));
            }
            let data = (over && !self.buffer.is_empty()).then(|| std::mem::take(&mut self.buffer));
            return Ok(data.map(|data| Event { id: None, data }));
        }
        loop {
            let text = &self.buffer;
            let end = (self.searched..text.len()).find_map(|at| {
                let rest = text.get(at..)?;
                [&b"\n\n"[..], b"\r\n\r\n", b"\r\r"]
                    .into_iter()
                    .find(|end| rest.starts_with(end))
                    .map(|end| at + end.len())
            });
            if end.unwrap_or(text.len()) > len_max {
                return Err(too_long(len_max));
            }
            let Some(end) = end else {
                self.searched = text.len().saturating_sub(3); // of an end the begin may be there
                return Ok(None);
            };
            self.searched = 0;
            let event: Vec<u8> = self.buffer.drain(..end).collect();
            let lines = || event.split(|byte| matches!(byte, b'\n' | b'\r'));
            let data: Vec<&[u8]> = lines().filter_map(|line| line.strip_prefix(b"data:")).collect();
            let id = lines().filter_map(|line| line.strip_prefix(b"id:")).next_back();
            let id = id.and_then(|id| str::from_utf8(id).ok()?.trim().parse().ok());
            if !data.is_empty() {
                return Ok(Some(Event { id, data: data.join(&b'\n') }));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// A body in pieces.
    struct Pieces(Vec<&'static [u8]>);

    impl Source for Pieces {
        async fn chunk(&mut self) -> Result<Option<Bytes>, Lost> {
            let next = (!self.0.is_empty()).then(|| self.0.remove(0));
            Ok(next.map(Bytes::from_static))
        }
    }

    fn answers(pieces: &[&'static [u8]], streams: bool, len_max: usize) -> Answers<Pieces> {
        Answers::new(Pieces(pieces.to_vec()), streams, len_max, Duration::from_secs(30))
    }

    #[tokio::test]
    async fn events_end_with_an_empty_line_wherever_they_are_cut() {
        let pieces: [&[u8]; 6] = [
            b":\n\nid: 7\ndata: {\"res",
            b"ult\":1}\r\n\r",
            b"\nid:8\r\ndata: {\"result\":\r\ndata: 2}",
            b"\r\n\r\n: alive\n",
            b"\nid: x\ndata: {\"result\":3}\n\ndata: {\"result\":4,\"event\":9}\n",
            b"\ndata: {\"result\":5}\n", // cut
        ];
        for numbered in [false, true] {
            let mut answers = answers(&pieces, true, 90);
            answers.numbered = numbered;
            let mut told = Vec::new();
            while let Some(said) = answers.next().await.unwrap() {
                told.push((said.result, said.event));
            }
            let ids = if numbered { [Some(7), Some(8)] } else { [None, None] };
            let expected =
                [(json!(1), ids[0]), (json!(2), ids[1]), (json!(3), None), (json!(4), Some(9))];
            assert_eq!(told, expected);
        }
    }

    #[tokio::test]
    async fn bd1_an_answer_and_each_event_are_bounded() {
        let mut whole = answers(&[b"{\"result\"", b":1}"], false, 12);
        assert_eq!(whole.next().await.unwrap().unwrap().result, json!(1));
        assert!(whole.next().await.unwrap().is_none());
        let mut long = answers(&[b"{\"result\"", b":10}"], false, 12);
        assert!(matches!(long.next().await, Err(Lost::Broken(_))));
        let event: &[u8] = b"data:{\"result\":1}\n\n";
        let mut many = answers(&[event; 3], true, event.len());
        for _ in 0..3 {
            assert!(many.next().await.unwrap().is_some());
        }
        let mut at_once =
            answers(&[b"data:{\"result\":1}\n\ndata:{\"result\":2}\n\n"], true, event.len());
        for n in 1..3 {
            assert_eq!(at_once.next().await.unwrap().unwrap().result, json!(n));
        }
        let mut long = answers(&[event], true, event.len() - 1);
        assert!(matches!(long.next().await, Err(Lost::Broken(_))));
        let mut card = Pieces(vec![b"12345", b"67"]);
        assert!(matches!(bounded(&mut card, 6).await, Err(Lost::Broken(_))));
    }
}
