//! The effect of a receiver whose queue has no place for it: a log of its own, one fdatasync for
//! all that wait, as cheap as a durable effect can be.

use anyhow::Context as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use tokio::sync::{mpsc, oneshot};

/// As the control: the size does not change while it is appended to.
const LOG_LEN: u64 = 1 << 30;
/// Effects that wait at most.
const WAITING_MAX: usize = 8192;

type Effect = (Vec<u8>, oneshot::Sender<()>);

/// Where effects are made durable. Ends with the process if the disk fails.
#[derive(Clone, Debug)]
pub(super) struct EffectLog(mpsc::Sender<Effect>);

impl EffectLog {
    pub(super) fn open(dir: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
        let path = dir.join("effects.log");
        let mut file = File::create(&path).with_context(|| path.display().to_string())?;
        file.set_len(LOG_LEN)?;
        file.sync_all()?;
        let (tx, mut rx) = mpsc::channel::<Effect>(WAITING_MAX);
        std::thread::Builder::new().name("effects".into()).spawn(move || {
            let (mut bytes, mut waiting) = (Vec::new(), Vec::new());
            while let Some((effect, done)) = rx.blocking_recv() {
                bytes.extend_from_slice(&effect);
                waiting.push(done);
                while let Ok((effect, done)) = rx.try_recv() {
                    bytes.extend_from_slice(&effect);
                    waiting.push(done);
                }
                if let Err(error) = file.write_all(&bytes).and_then(|()| file.sync_data()) {
                    eprintln!("{}: {error}", path.display());
                    std::process::exit(1);
                }
                bytes.clear();
                for done in waiting.drain(..) {
                    let _ = done.send(());
                }
            }
        })?;
        Ok(Self(tx))
    }

    /// Returns once the effect is on the disk.
    pub(super) async fn commit(&self, effect: Vec<u8>) -> anyhow::Result<()> {
        let (done, committed) = oneshot::channel();
        self.0.send((effect, done)).await.ok().context("the effect log has ended")?;
        committed.await.context("the effect log has ended")
    }
}
