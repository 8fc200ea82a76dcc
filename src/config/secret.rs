//! Files that hold keys and tokens.

use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Bytes in a key or token file; a longer one is refused before it is read.
pub const SECRET_FILE_LEN_MAX: u64 = 64 * 1024;
/// Characters a bearer token has at least: fewer can be guessed.
pub const TOKEN_LEN_MIN: usize = 16;
/// Characters a bearer token has at most.
pub const TOKEN_LEN_MAX: usize = 1024;

/// Why a secret file is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// Missing or unreadable.
    #[error("cannot read {}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Every user of the machine may read or write it.
    #[error("{} holds a secret but its mode is {mode:04o}; fix: chmod 600 {}", file.display(), file.display())]
    Exposed {
        /// The file.
        file: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Over [`SECRET_FILE_LEN_MAX`].
    #[error("{} of {len} bytes is over the limit of {SECRET_FILE_LEN_MAX}", file.display())]
    TooLong {
        /// The file.
        file: PathBuf,
        /// Its length in bytes.
        len: u64,
    },
    /// No usable bearer token.
    #[error("{} must hold one line of {TOKEN_LEN_MIN} to {TOKEN_LEN_MAX} visible ASCII characters without spaces, has {len}; fix: openssl rand -hex 32 > {}", file.display(), file.display())]
    BadToken {
        /// The file.
        file: PathBuf,
        /// Characters found, white space around them cut off.
        len: usize,
    },
}

/// The bytes of a file that only its owner and group may read.
///
/// # Errors
/// [`SecretError`]: unreadable, too long, or open to other users (unix).
pub fn read_secret(file: &Path) -> Result<Vec<u8>, SecretError> {
    let failed = |source| SecretError::Read { file: file.to_owned(), source };
    let handle = std::fs::File::open(file).map_err(failed)?;
    // Asked of the open file, so that it cannot be swapped between check and read.
    let about = handle.metadata().map_err(failed)?;
    #[cfg(unix)]
    {
        let mode = std::os::unix::fs::PermissionsExt::mode(&about.permissions()) & 0o7777;
        if mode & 0o007 != 0 {
            return Err(SecretError::Exposed { file: file.to_owned(), mode });
        }
    }
    if about.len() > SECRET_FILE_LEN_MAX {
        return Err(SecretError::TooLong { file: file.to_owned(), len: about.len() });
    }
    let mut bytes = Vec::new();
    handle.take(SECRET_FILE_LEN_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The bearer token in `file`, white space around it cut off.
///
/// # Errors
/// As [`read_secret`], and [`SecretError::BadToken`].
pub fn read_token(file: &Path) -> Result<String, SecretError> {
    let text = String::from_utf8_lossy(&read_secret(file)?).trim().to_owned();
    let len = text.chars().count();
    if !(TOKEN_LEN_MIN..=TOKEN_LEN_MAX).contains(&len)
        || !text.chars().all(|c| c.is_ascii_graphic())
    {
        return Err(SecretError::BadToken { file: file.to_owned(), len });
    }
    Ok(text)
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn secret(text: &str, mode: u32) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        (dir, file)
    }

    #[test]
    fn a_token_is_one_long_enough_word() {
        let (_dir, file) = secret("0123456789abcdef\n", 0o600);
        assert_eq!(read_token(&file).unwrap(), "0123456789abcdef");
        for text in ["", "short", "0123456789abcdef two words", "0123456789abcdé~"] {
            let (_dir, file) = secret(text, 0o600);
            let error = read_token(&file).unwrap_err();
            assert!(matches!(error, SecretError::BadToken { .. }), "{error}");
        }
        let (_dir, file) = secret(&"a".repeat(70_000), 0o600);
        assert!(matches!(read_token(&file), Err(SecretError::TooLong { len: 70_000, .. })));
    }

    #[test]
    fn a_secret_open_to_every_user_is_refused_with_the_fix() {
        for mode in [0o604, 0o602, 0o644, 0o666] {
            let (_dir, file) = secret("0123456789abcdef", mode);
            let error = read_secret(&file).unwrap_err().to_string();
            assert!(
                error.contains(&format!("{mode:04o}")) && error.contains("chmod 600"),
                "{error}"
            );
        }
        let (_dir, file) = secret("0123456789abcdef", 0o640);
        assert!(read_secret(&file).is_ok(), "a group may read it: secrets mounts do that");
    }
}
