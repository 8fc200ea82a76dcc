//! `abhyasa moq sub` and `abhyasa moq pub`.

use super::super::run::Signals;
use super::super::{Global, output};
use crate::clock::{Clock as _, SystemClock};
use crate::config::NodeConfig;
use crate::moq::check::Relay;
use crate::moq::hand::{ByHand, is_in};
use anyhow::{Context as _, bail};
use proto::id::AgentId;
use proto::time::Time;
use proto::track::{Namespace, PREFIX};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::sync::mpsc;
use url::Url;

/// Bytes of one line that is published.
const LINE_LEN_MAX: u64 = 256 * 1024;
/// Lines read before they can be published.
const LINES_READY_MAX: usize = 16;

/// What is subscribed to, and where.
#[derive(Debug, clap::Args)]
pub(in super::super) struct SubArgs {
    /// A relay, as moqt://HOST:PORT with a path where it has scopes; or the id of a peer, which is dialled as the
    /// configuration says.
    at: String,
    /// The track: escalations, status, events, metrics, policy, or the name of another.
    track: Option<String>,
    /// Whose track, at a relay.
    #[arg(long, value_name = "ID")]
    of: Option<AgentId>,
    /// The namespace it is in, its fields joined with slashes, in place of those that are announced.
    #[arg(long, value_name = "A/B/C", conflicts_with = "of")]
    namespace: Option<String>,
    /// PEM file with the CA that the relay's certificate is of.
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// End after so many objects, or namespaces.
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// End after so many seconds; without a signal it does not end otherwise.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// What is published, and where.
#[derive(Debug, clap::Args)]
pub(in super::super) struct PubArgs {
    /// The relay: moqt://HOST:PORT, with a path where it has scopes.
    url: Url,
    /// The track.
    track: String,
    /// The namespace, its fields joined with slashes.
    #[arg(long, value_name = "A/B/C")]
    namespace: String,
    /// PEM file with the CA that the relay's certificate is of.
    #[arg(long, value_name = "FILE")]
    ca: PathBuf,
}

impl SubArgs {
    /// Success if something was printed.
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let mut signals = Signals::new()?;
        let mut printed = 0;
        let limit = Duration::from_secs(self.seconds.unwrap_or(u64::MAX));
        tokio::select! {
            done = self.print(global, &mut printed) => done?,
            () = signals.next() => {}
            () = tokio::time::sleep(limit) => {}
        }
        Ok(if printed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn print(&self, global: &Global, printed: &mut u64) -> anyhow::Result<()> {
        let by_hand = self.session(global).await?;
        let Some(track) = &self.track else {
            let prefix = self.prefix();
            let mut namespaces = by_hand.namespaces(&prefix).await?;
            while let Some((there, fields)) = namespaces.recv().await {
                let joined = fields.join("/");
                output::line(&match (global.json, there) {
                    (true, _) => json!({ "namespace": fields, "there": there }).to_string(),
                    (false, true) => joined,
                    (false, false) => format!("{joined} is gone"),
                });
                if self.enough(printed) {
                    return Ok(());
                }
            }
            bail!("the session ended");
        };
        if let Some(namespace) = &self.namespace {
            self.track(&by_hand, &fields(namespace), track, global.json, printed).await?;
            return Ok(());
        }
        let mut namespaces = by_hand.namespaces(&self.prefix()).await?;
        while let Some((there, fields)) = namespaces.recv().await {
            // A node that comes back has another namespace.
            if there
                && is_in(track, &fields)
                && self.track(&by_hand, &fields, track, global.json, printed).await?
            {
                return Ok(());
            }
        }
        bail!("the session ended")
    }

    async fn session(&self, global: &Global) -> anyhow::Result<ByHand> {
        let file = global.config_file();
        if self.at.starts_with("moqt:") {
            let ca = self
                .ca
                .as_ref()
                .context("a relay needs --ca, the CA that its certificate is of")?;
            let relay = Relay::new(self.at.parse()?, ca).await?;
            let config = if file.exists() { Some(NodeConfig::load(&file)?) } else { None };
            return ByHand::with_relay(&relay, config.as_ref()).await;
        }
        let peer = AgentId::new(&self.at)
            .with_context(|| format!("{} is neither a moqt:// URL nor a peer's id", self.at))?;
        ByHand::with_peer(&NodeConfig::load(&file)?, &peer).await
    }

    /// What namespaces begin with.
    fn prefix(&self) -> Vec<String> {
        match (&self.namespace, &self.of) {
            (Some(namespace), _) => fields(namespace),
            (None, Some(of)) => Namespace::prefix_of(of).into(),
            (None, None) => PREFIX.map(str::to_owned).into(),
        }
    }

    /// Prints a track until its end. Whether that was enough.
    async fn track(
        &self,
        by_hand: &ByHand,
        fields: &[String],
        track: &str,
        json: bool,
        printed: &mut u64,
    ) -> anyhow::Result<bool> {
        let clock = SystemClock::starting_at_least(Time::default());
        let mut objects = by_hand.objects(fields, track).await?;
        while let Some(seen) = objects.recv().await {
            let told = by_hand.tell(&seen?, clock.now());
            output::line(&if json { told.to_string() } else { text(&told) });
            if self.enough(printed) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn enough(&self, printed: &mut u64) -> bool {
        *printed += 1;
        self.count.is_some_and(|count| *printed >= count)
    }
}

impl PubArgs {
    pub(super) async fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let relay = Relay::new(self.url, &self.ca).await?;
        let by_hand = ByHand::with_relay(&relay, None).await?;
        let (tx, lines) = mpsc::channel(LINES_READY_MAX);
        let reading = tokio::spawn(async move {
            let mut input = BufReader::new(tokio::io::stdin());
            loop {
                let mut line = Vec::new();
                let read = (&mut input).take(LINE_LEN_MAX + 1).read_until(b'\n', &mut line).await?;
                if read as u64 > LINE_LEN_MAX {
                    bail!("a line of more than {LINE_LEN_MAX} bytes");
                }
                if read == 0 {
                    return Ok(());
                }
                if line.last() == Some(&b'\n') {
                    line.pop();
                }
                if tx.send(line.into()).await.is_err() {
                    return Ok(());
                }
            }
        });
        let mut signals = Signals::new()?;
        let fields = fields(&self.namespace);
        let count = tokio::select! {
            published = by_hand.publish(&fields, &self.track, lines) => published?,
            () = signals.next() => return Ok(ExitCode::FAILURE),
        };
        if reading.is_finished() {
            reading.await??;
        }
        output::line(&match global.json {
            true => json!({ "groups": count }).to_string(),
            false => format!("{count} groups published"),
        });
        Ok(ExitCode::SUCCESS)
    }
}

fn fields(joined: &str) -> Vec<String> {
    joined.split('/').map(str::to_owned).collect()
}

/// An object for people: what it is on one line, and each item on one of its own.
fn text(told: &Value) -> String {
    let cell = |member: &str| output::cell(told, member);
    let at = format!("group {} object {}", cell("group"), cell("object"));
    let mut lines = vec![match told.get("issuer") {
        Some(_) => format!(
            "{at}: {} of {} for {}, signature {}",
            cell("content"),
            cell("issuer"),
            cell("audience"),
            cell("signature")
        ),
        None => match told.get("signature") {
            Some(_) => format!("{at}: {} bytes, signature {}", cell("bytes"), cell("signature")),
            None => format!("{at}: {} bytes: {}", cell("bytes"), cell("payload")),
        },
    }];
    for item in told.get("items").and_then(Value::as_array).into_iter().flatten() {
        match item {
            Value::String(text) => lines.extend(text.lines().map(|line| format!("  {line}"))),
            item => lines.push(format!("  {item}")),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_told_with_its_items_below() {
        let told = json!({ "group": 1, "object": 2, "bytes": 9, "signature": "good", "issuer": "a", "audience": "*", "content": "events", "items": [{"event": "x"}, "m 1\nn 2"] });
        assert_eq!(
            text(&told),
            "group 1 object 2: events of a for *, signature good\n  {\"event\":\"x\"}\n  m 1\n  n 2"
        );
        let told = json!({ "group": 1, "object": 0, "bytes": 2, "payload": "hi" });
        assert_eq!(text(&told), "group 1 object 0: 2 bytes: hi");
    }
}
