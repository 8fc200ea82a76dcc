//! What no compiler checks: rules are cited and tested, documents agree with the code, files stay
//! readable.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs)]

use abhyasa::cli::Cli;
use clap::{CommandFactory as _, Parser as _};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Every rule there is; `proto/INVARIANTS.md` has a row for each.
const RULES: [&str; 27] = [
    "AC-1", "AB-1", "AB-2", "AB-3", "AB-4", "SG-1", "SG-2", "DL-1", "DC-1", "DF-1", "TS-1", "PS-1",
    "LE-1", "CR-1", "BD-1", "DT-1", "WR-1", "BU-1", "S1", "S2", "S3", "S4", "S5", "S6", "S7", "L1",
    "L2",
];
/// Lines in one Rust file.
const FILE_LINES_MAX: usize = 700;
/// Where code that enforces rules lives.
const CODE: [&str; 4] = ["proto/src", "src", "netsim/src", "netsim/link/src"];
/// Where there is Rust.
const RUST: [&str; 8] = [
    "proto/src",
    "src",
    "netsim/src",
    "netsim/link/src",
    "proto/tests",
    "netsim/tests",
    "tests",
    "benches",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Files below `dirs` that `wanted` takes, by path from the root.
fn files(dirs: &[&str], wanted: impl Fn(&Path) -> bool) -> BTreeMap<String, String> {
    let mut left: Vec<PathBuf> = dirs.iter().map(PathBuf::from).collect();
    let mut found = BTreeMap::new();
    while let Some(path) = left.pop() {
        let at = root().join(&path);
        if at.is_dir() {
            let entries =
                fs::read_dir(&at).unwrap().map(|entry| path.join(entry.unwrap().file_name()));
            left.extend(
                entries.filter(|entry| !entry.ends_with("target") && !entry.ends_with(".git")),
            );
        } else if at.exists() && wanted(&path) {
            let text = String::from_utf8_lossy(&fs::read(&at).unwrap()).into_owned();
            found.insert(path.to_str().unwrap().trim_start_matches("./").to_owned(), text);
        }
    }
    found
}

fn rust(dirs: &[&str]) -> BTreeMap<String, String> {
    files(dirs, |path| path.extension().is_some_and(|ext| ext == "rs"))
}

/// Rules that a file cites with `//= ID …`.
fn marks(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.trim().strip_prefix("//= ")).flat_map(str::split_whitespace)
}

/// The cells of each row of the Markdown tables in `text`.
fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    text.lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").map(str::trim).collect())
}

/// The words of `text` between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn every_rule_has_a_row_a_mark_and_a_test() {
    let code = rust(&CODE);
    let cited: BTreeSet<&str> = code.values().flat_map(|text| marks(text)).collect();
    let everything = rust(&RUST);
    let tests: BTreeSet<&str> = everything
        .values()
        .flat_map(|text| text.lines().zip(text.lines().skip(1)))
        .filter_map(|(before, line)| {
            // `#[test]`, `#[tokio::test]` and what proptest has inside its macro.
            let attribute = before.trim();
            attribute
                .starts_with("#[")
                .then(|| line.trim().trim_start_matches("async ").strip_prefix("fn "))?
        })
        .filter_map(|name| name.split('_').next())
        .collect();
    let document = read("proto/INVARIANTS.md");
    let table: BTreeMap<&str, Vec<&str>> = rows(&document)
        .filter(|row| row.len() == 3 && RULES.contains(&row[0]))
        .map(|row| (row[0], quoted(row[2]).collect()))
        .collect();
    let mut missing = Vec::new();
    for rule in RULES {
        let prefix = rule.replace('-', "").to_lowercase();
        if !cited.contains(rule) {
            missing.push(format!("{rule}: no `//= {rule}` in {}", CODE.join(", ")));
        }
        if !tests.contains(prefix.as_str()) {
            missing.push(format!("{rule}: no test whose name begins with {prefix}_"));
        }
        match table.get(rule).filter(|files| !files.is_empty()) {
            None => {
                missing.push(format!("{rule}: no row in proto/INVARIANTS.md that names a file"))
            }
            Some(files) => missing.extend(
                files
                    .iter()
                    .filter(|file| {
                        !code.get(**file).is_some_and(|text| marks(text).any(|mark| mark == rule))
                    })
                    .map(|file| {
                        format!(
                            "{rule}: {file} is named in proto/INVARIANTS.md and has no `//= {rule}`"
                        )
                    }),
            ),
        }
    }
    none("rules that are not kept in view", &missing);
    let unknown: Vec<String> =
        cited.difference(&RULES.into()).map(|mark| format!("//= {mark}")).collect();
    none("marks of rules that do not exist", &unknown);
}

#[test]
fn files_stay_readable_and_finished() {
    let mut found = Vec::new();
    for (file, text) in rust(&RUST) {
        let lines = text.lines().count();
        if lines > FILE_LINES_MAX {
            found.push(format!("{file}: {lines} lines, over {FILE_LINES_MAX}"));
        }
        for unfinished in
            [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")]
        {
            if text.contains(unfinished) {
                found.push(format!("{file}: {unfinished}…)"));
            }
        }
    }
    none("files to put in order", &found);
}

#[test]
fn nothing_names_the_place_it_was_written_in() {
    let places = [
        concat!("/wo", "rk/"),
        concat!("sha", "red/"),
        concat!(".lib", "rary"),
        concat!("/tmp/", "plan"),
    ];
    let text = ["rs", "md", "toml", "cddl", "diag", "service", "json", ""];
    let all = files(&["."], |path| {
        text.contains(&path.extension().and_then(|ext| ext.to_str()).unwrap_or(""))
    });
    let found: Vec<String> = all
        .iter()
        .flat_map(|(file, text)| {
            places
                .iter()
                .filter(|place| text.contains(**place))
                .map(move |p| format!("{file}: {p}"))
        })
        .collect();
    none("paths of a workplace", &found);
}

/// Commands in the shell blocks of a document: continued lines joined, comments cut off, and what the
/// shell does with them.
fn commands(document: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    for block in
        document.split("```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("sh\n"))
    {
        for line in block.replace("\\\n", " ").lines() {
            let line = line.split(" #").next().unwrap_or_default();
            let line = line.split(';').next().unwrap_or_default();
            let of_shell = |word: &&str| [">", "2>&1", "&", "&&", "||", "|"].contains(word);
            let words = line.split_whitespace().take_while(|word| !of_shell(word));
            commands.push(words.map(str::to_owned).collect());
        }
    }
    commands
}

#[test]
fn commands_in_the_documents_are_those_of_the_program() {
    let all = Cli::command();
    let mut named = BTreeSet::new();
    let mut wrong = Vec::new();
    for file in [
        "README.md",
        "docs/two-machines.md",
        "docs/consent.md",
        "docs/consent-audit.md",
        "docs/mcp-proxy.md",
        "docs/mcp.md",
        "docs/simulation.md",
        "docs/study.md",
        "ARCHITECTURE.md",
    ] {
        let text = read(file);
        // In running text a command may stand without its arguments.
        for name in
            quoted(&text).filter_map(|code| code.strip_prefix("abhyasa ")?.split(' ').next())
        {
            match all.find_subcommand(name) {
                Some(_) => named.insert(name.to_owned()),
                None => panic!("{file}: there is no `abhyasa {name}`"),
            };
        }
        for words in commands(&text) {
            let own = words
                .iter()
                .position(|word| word == "--")
                .filter(|_| words.starts_with(&["cargo".into(), "run".into()]));
            let words_all = words.clone();
            if words_all.iter().any(|word| word == "benches/peers/Cargo.toml") {
                continue; // a program outside of the workspace; its own tests read this document
            }
            let words = match own {
                Some(at) => &words[at..],
                None if words.first().is_some_and(|word| word == "abhyasa") => &words[..],
                None => continue,
            };
            let arguments = std::iter::once("abhyasa").chain(words[1..].iter().map(String::as_str));
            if words_all.iter().any(|word| word == "abhyasa-netsim") {
                if let Err(error) = netsim::cli::Cli::try_parse_from(arguments) {
                    wrong.push(format!("{file}: {}: {error}", words.join(" ")));
                }
                continue;
            }
            if let Err(error) = Cli::try_parse_from(arguments) {
                wrong.push(format!("{file}: {}: {error}", words.join(" ")));
            }
            named.extend(words.get(1).cloned());
        }
    }
    none("commands the program does not take", &wrong);
    let silent: Vec<String> = all
        .get_subcommands()
        .filter(|command| !command.is_hide_set() && !named.contains(command.get_name()))
        .map(|command| command.get_name().to_owned())
        .collect();
    none("commands no document shows", &silent);
}

#[test]
fn the_readme_has_its_two_commands_and_every_route() {
    let readme = read("README.md");
    assert!(
        readme.contains("```sh\ncargo run --release -- demo\ncargo test --workspace\n```"),
        "the two first commands"
    );
    assert!(read(".ci/run").contains("cargo test --workspace"), "CI runs what the README says");
    let shown: BTreeSet<&str> = quoted(&readme).collect();
    let served = read("src/api.rs");
    let routes: Vec<String> = served
        .lines()
        .filter_map(|line| line.trim().split_once(" => ")?.0.split_once(" \""))
        .map(|(method, path)| format!("{} {}", method.to_uppercase(), path.trim_end_matches('"')))
        .collect();
    assert!(routes.len() > 10, "the routes of src/api.rs are not found: {routes:?}");
    let missing: Vec<String> =
        routes.into_iter().filter(|route| !shown.contains(route.as_str())).collect();
    none("routes the README does not list", &missing);
}

#[test]
fn figures_are_filled_in() {
    for file in ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"] {
        let open = read(file).matches("‹fill›").count();
        assert_eq!(open, 0, "{file} has {open} figures to fill in");
    }
}

#[test]
fn links_between_the_documents_lead_somewhere() {
    let mut dead = Vec::new();
    for (file, text) in files(&["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs"], |_| true) {
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = target.split('#').next().unwrap_or_default();
            let at = root().join(&file).parent().unwrap().join(path);
            if !target.contains("://") && !path.is_empty() && !at.exists() {
                dead.push(format!("{file}: {target}"));
            }
        }
    }
    none("dead links", &dead);
}

#[test]
fn bd1_the_limits_table_is_what_the_code_says() {
    let document = read("ARCHITECTURE.md");
    let table: Vec<Vec<&str>> = rows(&document).collect();
    let mut wrong = Vec::new();
    // Settings: the sample that `init` writes has each with its default.
    let dir = tempfile::tempdir().unwrap();
    let report = abhyasa::init::init(dir.path(), &abhyasa::init::InitOptions::default()).unwrap();
    let sample = fs::read_to_string(report.config).unwrap();
    let mut section = "";
    for line in sample.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        }
        let Some((key, value)) = line.strip_prefix('#').and_then(|line| line.split_once(" = "))
        else {
            continue;
        };
        if section.contains('"') || key.contains(' ') || value.parse::<u64>().is_err() {
            continue; // kinds, explanations, and settings that are no limits
        }
        let name = format!("`{section}.{key}`");
        if !table.iter().any(|row| row.len() == 3 && row[0] == name && row[1] == value) {
            wrong.push(format!("| {name} | {value} | … |"));
        }
    }
    // Constants: the table has file, name and value as the source does.
    let mut listed = BTreeSet::new();
    for row in table
        .iter()
        .filter(|row| row.len() == 4 && row[0].starts_with("`") && row[0].ends_with(".rs`"))
    {
        let (file, name, value) =
            (row[0].trim_matches('`'), row[1].trim_matches('`'), row[2].trim_matches('`'));
        let source = read(file);
        let declared = source
            .split(&format!("const {name}: "))
            .nth(1)
            .and_then(|rest| rest.split_once(" = ")?.1.split(';').next());
        if declared != Some(value) {
            wrong.push(format!(
                "{file}: {name} is {}, not {value}",
                declared.unwrap_or("not declared")
            ));
        }
        listed.insert((file, name));
    }
    let limits = "proto/src/limits.rs";
    for line in read(limits).lines() {
        let Some(name) = line.strip_prefix("pub const ").and_then(|rest| rest.split(':').next())
        else {
            continue;
        };
        if !listed.contains(&(limits, name)) {
            wrong.push(format!("{limits}: {name} is not listed"));
        }
    }
    none("the limits in ARCHITECTURE.md", &wrong);
}

#[test]
fn the_core_stays_without_sockets_threads_and_clocks() {
    let manifest = read("proto/Cargo.toml");
    let dependencies = manifest.split("[dev-dependencies]").next().unwrap();
    for forbidden in ["tokio", "quinn", "rustls", "fjall", "axum", "rand", "getrandom"] {
        assert!(!dependencies.contains(forbidden), "abhyasa-proto depends on {forbidden}");
    }
    let names = ["std::net", "std::fs", "std::thread", "std::process", "std::env"];
    let found: Vec<String> = rust(&["proto/src"])
        .iter()
        .flat_map(|(file, text)| {
            names
                .iter()
                .filter(|name| text.contains(**name))
                .map(move |name| format!("{file}: {name}"))
        })
        .collect();
    none("the core reaches outside", &found);
}
