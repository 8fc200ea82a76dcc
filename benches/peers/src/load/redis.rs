//! Redis streams: XADD; XREADGROUP, effect, XACK. Pipelined.

use super::effect::EffectLog;
use super::{Args, Duty, Flow, Sample};
use anyhow::{Context as _, bail};
use redis::{Value, cmd};
use tokio::task::JoinSet;

const GROUP: &str = "receivers";
/// Entries of one read.
const READ_MAX: usize = 512;
/// Consumers of the group.
const CONSUMERS: usize = 4;
/// How long a read waits for entries, in milliseconds.
const BLOCK_MS: u64 = 1000;

pub(super) async fn load(args: &Args) -> anyhow::Result<Sample> {
    let client = redis::Client::open(format!("redis://{}/", args.address()?))?;
    let connect = || async {
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await
    };
    let mut setup = connect().await?;
    let mut create = cmd("XGROUP");
    create.arg("CREATE").arg(&args.queue).arg(GROUP).arg("0").arg("MKSTREAM");
    create.exec_async(&mut setup).await?;
    let callers = args.callers();
    let mut connections = Vec::new();
    for _ in 0..args.connections(callers) {
        connections.push(connect().await?);
    }
    let mut readers = Vec::new();
    if args.duty == Duty::Applied {
        for _ in 0..CONSUMERS.min(args.in_flight) {
            readers.push((connect().await?, connect().await?));
        }
    }
    let effects = EffectLog::open(&args.dir)?;
    let flow = Flow::new(args)?;
    let mut tasks = JoinSet::new();
    for (_, connection) in (0..callers).zip(connections.iter().cycle()) {
        let (flow, mut connection) = (flow.clone(), connection.clone());
        let (queue, batch, duty) = (args.queue.clone(), args.batch(), args.duty);
        tasks.spawn(async move {
            while flow.admit(batch).await? {
                let mut pipe = redis::pipe();
                let payload = flow.payload();
                for _ in 0..batch {
                    pipe.cmd("XADD").arg(&queue).arg("*").arg("d").arg(&payload).ignore();
                }
                pipe.exec_async(&mut connection).await?;
                for _ in 0..if duty == Duty::Accepted { batch } else { 0 } {
                    flow.done(&payload)?;
                }
            }
            Ok(())
        });
    }
    for (number, (mut reader, acker)) in readers.into_iter().enumerate() {
        let (flow, effects, queue) = (flow.clone(), effects.clone(), args.queue.clone());
        tasks.spawn(async move {
            let mut read = cmd("XREADGROUP");
            read.arg("GROUP").arg(GROUP).arg(number).arg("COUNT").arg(READ_MAX);
            read.arg("BLOCK").arg(BLOCK_MS).arg("STREAMS").arg(&queue).arg(">");
            let mut applying: JoinSet<anyhow::Result<()>> = JoinSet::new();
            loop {
                let entries = entries(read.query_async(&mut reader).await?)?;
                if entries.is_empty() {
                    continue;
                }
                let (flow, effects, mut acker) = (flow.clone(), effects.clone(), acker.clone());
                let queue = queue.clone();
                applying.spawn(async move {
                    effects.commit(entries.iter().flat_map(|(_, p)| p.clone()).collect()).await?;
                    let mut ack = cmd("XACK");
                    ack.arg(&queue).arg(GROUP);
                    for (id, _) in &entries {
                        ack.arg(id);
                    }
                    let acked: usize = ack.query_async(&mut acker).await?;
                    anyhow::ensure!(acked == entries.len(), "{acked} of {} acked", entries.len());
                    entries.iter().try_for_each(|(_, payload)| flow.done(payload))
                });
                while let Some(applied) = applying.try_join_next() {
                    applied??;
                }
            }
        });
    }
    flow.run(tasks).await.context("redis")
}

type Entry = (Vec<u8>, Vec<u8>);

/// Ids and payloads of what XREADGROUP answers: `[[stream, [[id, [field, payload]]…]]]`.
fn entries(answer: Value) -> anyhow::Result<Vec<Entry>> {
    let streams = match answer {
        Value::Nil => return Ok(Vec::new()),
        Value::Array(streams) => streams,
        other => bail!("XREADGROUP answered {other:?}"),
    };
    let mut found = Vec::new();
    for stream in streams {
        let Value::Array(stream) = stream else { bail!("XREADGROUP: no stream") };
        let Some(Value::Array(entries)) = stream.into_iter().nth(1) else {
            bail!("XREADGROUP: no entries")
        };
        for entry in entries {
            let (id, fields): (Vec<u8>, Vec<Vec<u8>>) = redis::from_redis_value(entry)?;
            found.push((id, fields.into_iter().nth(1).context("XREADGROUP: no payload")?));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn what_was_read_is_told_apart() {
        let entry =
            |id, data| Value::Array(vec![bulk(id), Value::Array(vec![bulk("d"), bulk(data)])]);
        let entries_of = Value::Array(vec![entry("1-0", "one"), entry("1-1", "two")]);
        let answer = Value::Array(vec![Value::Array(vec![bulk("s"), entries_of])]);
        let found = entries(answer).unwrap();
        assert_eq!(found, [(b"1-0".to_vec(), b"one".to_vec()), (b"1-1".to_vec(), b"two".to_vec())]);
        assert!(entries(Value::Nil).unwrap().is_empty());
        assert!(entries(Value::Okay).is_err());
    }
}
