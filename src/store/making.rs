//! The first opening of a store, which a crash may interrupt anywhere.
//!
//! fjall makes its files one after the other, and refuses what it finds half made. So one file of
//! ours is made first and goes last. A folder that has it was never used by a node: nothing in it
//! has been promised, and what does not open there is made anew.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Says that a store is being made.
const FLAG: &str = "making";
/// What fjall makes beside its journals.
const FILES: [&str; 3] = ["lock", "version", "keyspaces"];
/// The lock of a store that is open.
const LOCK: &str = "lock";

/// A store that is being made, by this process alone.
#[derive(Debug)]
pub(super) struct Making {
    path: PathBuf,
    /// Whether another process had begun, and did not finish.
    resumed: bool,
    _locked: File,
}

impl Making {
    /// Begins to make the store in `path`, or goes on where a crash has interrupted that. `None`:
    /// it was made before.
    pub(super) fn begin(path: &Path) -> io::Result<Option<Self>> {
        fs::create_dir_all(path)?;
        let flag = path.join(FLAG);
        let resumed = flag.try_exists()?;
        if !resumed && !made(path)?.is_empty() {
            return Ok(None);
        }
        let file = match File::options().write(true).create_new(!resumed).open(&flag) {
            Ok(file) => file,
            Err(error) if resumed && error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        lock(&file)?;
        // Another process may have finished between our looks.
        if resumed && !flag.try_exists()? {
            return Ok(None);
        }
        if !resumed && !made(path)?.is_empty() {
            fs::remove_file(&flag)?;
            return Ok(None);
        }
        file.sync_all()?;
        sync_folder(path)?;
        Ok(Some(Self { path: path.to_owned(), resumed, _locked: file }))
    }

    /// Whether what is there may be half made.
    pub(super) const fn resumed(&self) -> bool {
        self.resumed
    }

    /// Removes what is half made, and no other file.
    pub(super) fn clear(&self) -> io::Result<()> {
        match File::open(self.path.join(LOCK)) {
            Ok(file) => lock(&file)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        for file in made(&self.path)? {
            if file.is_dir() { fs::remove_dir_all(&file)? } else { fs::remove_file(&file)? }
        }
        sync_folder(&self.path)
    }

    /// It is made, and stays whatever happens from now on.
    pub(super) fn done(self) -> io::Result<()> {
        fs::remove_file(self.path.join(FLAG))?;
        // Else the flag may be back after a power failure, over a store that is in use.
        sync_folder(&self.path)
    }
}

/// What is there of a store.
fn made(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let file = entry?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if FILES.contains(&name) || file.extension().is_some_and(|extension| extension == "jnl") {
            found.push(file);
        }
    }
    Ok(found)
}

fn lock(file: &File) -> io::Result<()> {
    file.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => {
            io::Error::new(ErrorKind::WouldBlock, "another process is making it, or has it open")
        }
        TryLockError::Error(error) => error,
    })
}

#[cfg(unix)]
fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}
