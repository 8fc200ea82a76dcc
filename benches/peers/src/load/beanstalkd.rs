//! beanstalkd: put; reserve, effect, delete. Its protocol is lines over TCP.

use super::effect::EffectLog;
use super::{Args, Duty, Flow, Sample};
use anyhow::{Context as _, bail, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufStream};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// Seconds a reserved job may take.
const TIME_TO_RUN_S: u32 = 60;
/// Bytes of a job at most, as the server's default.
const JOB_LEN_MAX: usize = 65_535;

/// What the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Using,
    Watching,
    Inserted(u64),
    Reserved { id: u64, bytes: usize },
    Deleted,
}

impl Reply {
    fn parse(line: &str) -> anyhow::Result<Self> {
        let line = line.strip_suffix("\r\n").with_context(|| format!("cut off: {line:?}"))?;
        let mut words = line.split(' ');
        let reply = match words.next() {
            Some("USING") => return Ok(Self::Using),
            Some("WATCHING") => return Ok(Self::Watching),
            Some("INSERTED") => Self::Inserted(number(words.next(), line)?),
            Some("RESERVED") => Self::Reserved {
                id: number(words.next(), line)?,
                bytes: usize::try_from(number(words.next(), line)?)?,
            },
            Some("DELETED") => Self::Deleted,
            _ => bail!("beanstalkd answered {line:?}"),
        };
        ensure!(words.next().is_none(), "beanstalkd answered {line:?}");
        Ok(reply)
    }
}

fn number(word: Option<&str>, line: &str) -> anyhow::Result<u64> {
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no number where one was expected: {line:?}"))
}

struct Client {
    stream: BufStream<TcpStream>,
    line: String,
}

impl Client {
    async fn connect(address: SocketAddr, tube: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut client = Self { stream: BufStream::new(stream), line: String::new() };
        client.send(format!("use {tube}\r\nwatch {tube}\r\n").as_bytes()).await?;
        client.expect(Reply::Using).await?;
        client.expect(Reply::Watching).await?;
        Ok(client)
    }

    async fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        self.stream.write_all(bytes).await?;
        Ok(self.stream.flush().await?)
    }

    async fn reply(&mut self) -> anyhow::Result<Reply> {
        self.line.clear();
        self.stream.read_line(&mut self.line).await?;
        Reply::parse(&self.line)
    }

    async fn expect(&mut self, wanted: Reply) -> anyhow::Result<()> {
        let reply = self.reply().await?;
        ensure!(reply == wanted, "beanstalkd answered {reply:?} instead of {wanted:?}");
        Ok(())
    }

    async fn reserve(&mut self) -> anyhow::Result<(u64, Vec<u8>)> {
        self.send(b"reserve\r\n").await?;
        let Reply::Reserved { id, bytes } = self.reply().await? else {
            bail!("beanstalkd answered {:?} to reserve", self.line)
        };
        ensure!(bytes <= JOB_LEN_MAX, "a job of {bytes} bytes");
        let mut job = vec![0; bytes + 2];
        self.stream.read_exact(&mut job).await?;
        job.truncate(bytes);
        Ok((id, job))
    }
}

pub(super) async fn load(args: &Args) -> anyhow::Result<Sample> {
    let address = args.address()?;
    let connections = args.connections(args.in_flight);
    // The server takes one command of a connection after the other; those that wait are pipelined.
    let depth = (args.in_flight / connections).max(1);
    let mut senders = Vec::new();
    let mut receivers = Vec::new();
    for _ in 0..connections {
        senders.push(Client::connect(address, &args.queue).await?);
        if args.duty == Duty::Applied {
            receivers.push(Client::connect(address, &args.queue).await?);
        }
    }
    let effects = EffectLog::open(&args.dir)?;
    let flow = Flow::new(args)?;
    let mut tasks = JoinSet::new();
    for mut client in senders {
        let (flow, duty) = (flow.clone(), args.duty);
        tasks.spawn(async move {
            while flow.admit(depth).await? {
                let payload = flow.payload();
                let mut put = format!("put 0 0 {TIME_TO_RUN_S} {}\r\n", payload.len()).into_bytes();
                put.extend_from_slice(&payload);
                put.extend_from_slice(b"\r\n");
                client.send(&put.repeat(depth)).await?;
                for _ in 0..depth {
                    let reply = client.reply().await?;
                    ensure!(matches!(reply, Reply::Inserted(_)), "{reply:?} to put");
                    if duty == Duty::Accepted {
                        flow.done(&payload)?;
                    }
                }
            }
            Ok(())
        });
    }
    for mut client in receivers {
        let (flow, effects) = (flow.clone(), effects.clone());
        tasks.spawn(async move {
            loop {
                let (id, job) = client.reserve().await?;
                effects.commit(job.clone()).await?;
                client.send(format!("delete {id}\r\n").as_bytes()).await?;
                client.expect(Reply::Deleted).await?;
                flow.done(&job)?;
            }
        });
    }
    flow.run(tasks).await.context("beanstalkd")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_apart() {
        assert_eq!(Reply::parse("INSERTED 42\r\n").unwrap(), Reply::Inserted(42));
        let reserved = Reply::Reserved { id: 7, bytes: 256 };
        assert_eq!(Reply::parse("RESERVED 7 256\r\n").unwrap(), reserved);
        assert_eq!(Reply::parse("DELETED\r\n").unwrap(), Reply::Deleted);
        assert_eq!(Reply::parse("USING t\r\n").unwrap(), Reply::Using);
        assert_eq!(Reply::parse("WATCHING 2\r\n").unwrap(), Reply::Watching);
    }

    #[test]
    fn what_is_no_success_is_an_error() {
        // BURIED and DRAINING: the job was not taken as asked.
        for line in [
            "BURIED 3\r\n",
            "DRAINING\r\n",
            "OUT_OF_MEMORY\r\n",
            "INSERTED\r\n",
            "INSERTED x\r\n",
            "INSERTED 4 5\r\n",
            "RESERVED 7\r\n",
            "NOT_FOUND\r\n",
            "INSERTED 4",
            "",
        ] {
            assert!(Reply::parse(line).is_err(), "{line:?}");
        }
    }
}
