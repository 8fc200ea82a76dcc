//! Programs of others that tests speak with. They come from their registries into scratch places below
//! `target/`. Without them such a test fails: what it shows cannot be shown otherwise.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Runs a program that must succeed.
pub fn run(what: &mut Command) -> Result<Output, String> {
    let output = what.output().map_err(|error| format!("{what:?}: {error}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(format!("{what:?}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

/// A Python that can import `modules`, with releases from PyPI. What they need is held to the
/// releases in `constraints`: one of tomorrow is no reason for a test to fail.
pub fn python(name: &str, packages: &[&str], modules: &str, constraints: &str) -> PathBuf {
    environment("3.10", || Ok("python3".into()), name, packages, modules, constraints)
}

/// As [`python`], of at least Python 3.12: of the programs of that name on the path and of pyenv, the first that
/// is one.
pub fn python_312(name: &str, packages: &[&str], modules: &str, constraints: &str) -> PathBuf {
    environment("3.12", find_312, name, packages, modules, constraints)
}

pub fn find_312() -> Result<PathBuf, String> {
    let mut programs: Vec<PathBuf> =
        ["python3.14", "python3.13", "python3.12", "python3"].map(PathBuf::from).to_vec();
    let pyenv = std::env::var_os("PYENV_ROOT").map(PathBuf::from);
    let pyenv = pyenv.or_else(|| Some(std::env::home_dir()?.join(".pyenv")));
    let versions = pyenv.and_then(|place| std::fs::read_dir(place.join("versions")).ok());
    let mut versions: Vec<PathBuf> =
        versions.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    versions.sort();
    programs.extend(versions.into_iter().map(|version| version.join("bin/python3")));
    // uv, where .ci/run has put one.
    programs.push(root().join("target/tools/python/bin/python3"));
    let new_enough = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 12))";
    let found =
        programs.iter().find(|python| run(Command::new(python).args(["-c", new_enough])).is_ok());
    found.cloned().ok_or_else(|| format!("none of {programs:?} is Python 3.12 or newer with venv"))
}

fn environment(
    version: &str,
    base: impl FnOnce() -> Result<PathBuf, String>,
    name: &str,
    packages: &[&str],
    modules: &str,
    constraints: &str,
) -> PathBuf {
    let place = scratch(name);
    let python = place.join("bin/python");
    let imports = || run(Command::new(&python).args(["-c", &format!("import {modules}")]));
    if imports().is_ok() {
        return python;
    }
    let constraints = root().join(constraints);
    let made = base()
        .and_then(|base| run(Command::new(base).args(["-m", "venv", "--clear"]).arg(&place)))
        .and_then(|_| {
            let mut pip = Command::new(&python);
            pip.args(["-m", "pip", "install", "-q", "-c"]).arg(constraints).args(packages);
            run(&mut pip)
        })
        .and_then(|_| imports());
    if let Err(why) = made {
        panic!(
            "{1} cannot be had, and this test needs them. It takes Python {version} or newer with venv, \
             and PyPI or a mirror of it (PIP_INDEX_URL):\n  python3 -m venv {0} && {0}/bin/pip install \
             {1}\n{why}",
            place.display(),
            packages.join(" ")
        );
    }
    python
}

/// Where the packages of npm are listed, with their lock.
const NPM: &str = "tests/common/npm";

/// A place with the packages of npm that tests speak with, and the Node.js that is one of them: others
/// need a newer one than a system may have.
pub fn npm() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| node("npm-peers-1", NPM))
}

fn node(name: &str, manifests: &str) -> PathBuf {
    let place = scratch(name);
    let node = place.join("node_modules/node/bin/node");
    let done = place.join("done"); // written last: an install that broke off is no install
    if done.exists() && run(Command::new(&node).arg("--version")).is_ok() {
        return place;
    }
    let made = std::fs::create_dir_all(&place)
        .and_then(|()| {
            for file in ["package.json", "package-lock.json"] {
                std::fs::copy(root().join(manifests).join(file), place.join(file))?;
            }
            Ok(())
        })
        .map_err(|error| format!("{}: {error}", place.display()))
        .and_then(|()| {
            // Not `ci`: it refuses a lock without what only another system would need.
            let mut npm = Command::new("npm");
            run(npm.args(["install", "--no-save", "--no-fund", "--no-audit"]).current_dir(&place))
        })
        .and_then(|_| run(Command::new(&node).arg("--version")))
        .and_then(|_| std::fs::write(&done, "").map_err(|error| error.to_string()));
    if let Err(why) = made {
        panic!(
            "the packages in {manifests} cannot be had, and this test needs them. It takes npm with \
             Node.js 20 or newer, and its registry or a mirror of it:\n  cd {} && npm install\n{why}",
            place.display()
        );
    }
    place
}
