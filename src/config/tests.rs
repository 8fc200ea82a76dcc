use super::*;
use proto::profile::{OnDecline, Profile};
use std::collections::BTreeSet;

const MINIMAL: &str = "[node]\nid = \"spiffe://example.org/a\"\n";

fn parse(text: &str) -> Result<NodeConfig, ConfigError> {
    NodeConfig::parse(text, Path::new("/etc/abhyasa/abhyasa.toml"))
}

fn minimal_and(text: &str) -> Result<NodeConfig, ConfigError> {
    parse(&format!("{MINIMAL}{text}"))
}

/// The refusal of `MINIMAL` plus `text`: (line, column, what, fix).
fn refused(text: &str) -> (usize, usize, String, String) {
    match minimal_and(text) {
        Err(ConfigError::Invalid { file, line, column, what, fix, .. }) => {
            assert_eq!(file, Path::new("/etc/abhyasa/abhyasa.toml"));
            assert!(!fix.is_empty());
            (line, column, what, fix)
        }
        other => panic!("{text:?} gave {other:?}"),
    }
}

fn sample() -> String {
    let id = AgentId::new("spiffe://example.org/a").unwrap();
    Sample { id: &id, quic_listen: None, api_listen: None, token_file: None, peers: &[] }.to_toml()
}

#[test]
fn the_sample_uncommented_parses_and_equals_the_defaults() {
    let sample = sample();
    let uncommented: String = sample
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    assert!(uncommented.matches("\n#").count() < sample.matches("\n#").count() - 60);
    assert_eq!(parse(&uncommented).unwrap(), minimal_and("").unwrap(), "{uncommented}");
    assert_eq!(parse(&sample).unwrap(), minimal_and("").unwrap());
}

/// serde lists the keys of a table when one is unknown: each must be explained in the sample.
#[test]
fn the_sample_explains_every_key() {
    let sample = sample();
    let probes = [
        "[quic]\n?=1",
        "[api]\n?=1",
        "[custody]\n?=1",
        "[store]\n?=1",
        "[rates]\n?=1",
        "[weights]\n?=1",
        "[a2a]\n?=1",
        "[mcp]\n?=1",
        "[escalation]\n?=1",
        "[log]\n?=1",
        "[[peers]]\n?=1",
        "[kinds.\"oauth.token\"]\n?=1",
        "[kinds.\"oauth.token\"]\nhandler = { ?=1 }",
        "[?]",
    ];
    let mut keys = BTreeSet::new();
    for probe in probes {
        let (.., what, _) = refused(&probe.replace('?', "no-such-key"));
        let listed = what.split_once("expected").expect("serde lists the keys").1.to_owned();
        keys.extend(listed.split('`').skip(1).step_by(2).map(str::to_owned));
    }
    assert!(keys.len() > 60, "{keys:?}");
    for key in keys {
        let shown = ["#", "# ", "#   ", "", "[", "[[", "#[", ", ", "{ "].iter().any(|before| {
            ["=", " =", ":", ".", "]", ",", " and", "\""]
                .iter()
                .any(|after| sample.contains(&format!("{before}{key}{after}")))
        });
        assert!(shown, "{key} is not in the sample");
    }
}

#[test]
fn defaults_are_what_the_documentation_says() {
    let config = minimal_and("").unwrap();
    assert_eq!(config.data_dir, Path::new("/etc/abhyasa/data"));
    assert_eq!(config.quic.cert, Path::new("/etc/abhyasa/node.pem"));
    assert_eq!(config.quic.listen.to_string(), "127.0.0.1:4433");
    assert_eq!(config.api.listen.to_string(), "127.0.0.1:8433");
    assert_eq!(config.custody.in_flight_max, 8_192);
    assert!(config.peers.is_empty());
    let ruled = proto::polarity::Registry::default();
    assert!(config.kinds.keys().eq(ruled.kinds()), "a profile for each kind that has a rule");
    for kind in config.kinds.values() {
        let profile = kind.profile;
        let again = Profile::new(profile.deadline_ms(), profile.max_retries(), profile.backoff());
        assert_eq!(again, Ok(profile), "AB-2: the default retries span the default deadline");
        assert_eq!(kind.handler, HandlerConfig::Builtin);
    }
}

#[test]
fn text_that_is_no_toml_names_its_line_and_column() {
    let (line, column, ..) = refused("[quic\nlisten = 1");
    assert_eq!((line, column), (3, 6));
    let error = minimal_and("[quic]\nkeep_alive_ms = 10 # é\nlisten = ?").unwrap_err().to_string();
    assert!(error.starts_with("/etc/abhyasa/abhyasa.toml:5:10: "), "{error}");
    assert!(error.contains("    5 | listen = ?\n  fix: "), "{error}");
}

#[test]
fn unknown_keys_and_wrong_types_name_their_line_and_the_choices() {
    let (line, column, what, _) = refused("[quic]\nidle_timout_ms = 1000");
    assert_eq!((line, column), (4, 1));
    assert!(what.contains("`idle_timout_ms`") && what.contains("`idle_timeout_ms`"), "{what}");
    assert_eq!(refused("[quic]\nracing = 1").0, 4);
    assert_eq!(refused("[quic]\nlisten = \"localhost\"").0, 4);
    assert_eq!(refused("[quic]\nstreams_max = -1").0, 4);
    assert_eq!(refused("[log]\nformat = \"xml\"").0, 4);
    assert_eq!(refused("[qiuc]\n").0, 3);
    let Err(ConfigError::Invalid { fix, .. }) = parse("") else { panic!("accepted") };
    assert!(fix.contains("[node]"), "{fix}");
    let Err(ConfigError::Invalid { line, what, .. }) = parse("[node]\nid = \" \"") else {
        panic!("accepted")
    };
    assert!(line == 2 && what.contains("empty"), "{line} {what}");
}

#[test]
fn a_value_out_of_range_names_its_line_and_the_range() {
    let cases = [
        ("[quic]\nracing = false\nidle_timeout_ms = 0", 5, "from 1000 to 600000"),
        ("[quic]\nstreams_max = 70000", 4, "from 8 to 65536"),
        ("[custody]\nin_flight_bytes_max = 100", 4, "from 67584 to"),
        ("[store]\ncommit_batch_max = 0", 4, "from 1 to 65536"),
        ("[rates]\nbytes_per_second = 1", 4, "from 262144 to"),
        ("[weights]\nmax = 1e9", 4, "from -1000000.0 to 1000000.0"),
        ("[weights]\nmax = nan", 4, "from -1000000.0 to 1000000.0"),
        (
            "[[peers]]\nid = \"b\"\n[[peers]]\nid = \"c\"\nobligations_per_second = 0",
            7,
            "from 1 to",
        ),
    ];
    for (text, at, range) in cases {
        let (line, column, what, fix) = refused(text);
        assert_eq!(line, at, "{text}: {what}");
        assert!(column > 1 && fix.contains(range), "{column} {fix}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let cases = [
        ("[quic]\nidle_timeout_ms = 8000", 3, "keep_alive_ms is 5000"),
        ("[quic]\nidle_timeout_ms = 8000\nkeep_alive_ms = 4001", 5, "which is 4000"),
        ("[quic]\nreconnect_base_ms = 9000", 4, "above reconnect_cap_ms"),
        ("[quic]\nconnections_max = 2", 3, "connections_per_peer_max is 4"),
        ("[custody]\npending_max = 5", 3, "pending_per_peer_max is 2000000"),
        ("[a2a]\nretention_seconds = 60", 3, "push_give_up_seconds is 259200"),
        ("[a2a]\nagent = \"ehco\"", 4, "ehco, which is no peer"),
        ("[a2a]\nagent_over = \"moqt\"", 4, "agent is none"),
        ("[a2a]\nagent_over = \"http3\"", 4, "agent is none"),
        (
            "[a2a]\nagent = \"spiffe://example.org/agent/z\"\nagent_over = \"http3\"",
            4,
            "z, which is no peer with an address",
        ),
        ("[weights]\ninitial = 2.0", 3, "initial 2"),
        ("[weights]\nmin = 1e-12", 4, "weight"),
        ("[log]\nfilter = \"abhyasa=loud\"", 4, "not usable"),
    ];
    for (text, at, why) in cases {
        let (line, _, what, _) = refused(text);
        assert!(what.contains(why), "{what}");
        assert_eq!(line, at, "{text}: {what}");
    }
}

#[test]
fn an_api_beyond_loopback_needs_a_token() {
    for address in ["0.0.0.0:8433", "[::]:8433", "192.0.2.1:8433", "[::ffff:192.0.2.1]:8433"] {
        let (line, _, what, fix) = refused(&format!("[api]\nlisten = \"{address}\""));
        assert!(line == 4 && what.contains("open to the network") && fix.contains("token_file"));
        let config =
            minimal_and(&format!("[api]\nlisten = \"{address}\"\ntoken_file = \"t\"")).unwrap();
        assert_eq!(config.api.token_file.as_deref(), Some(Path::new("/etc/abhyasa/t")));
    }
    for address in ["127.0.0.1:0", "127.1.2.3:8433", "[::1]:8433", "[::ffff:127.0.0.1]:8433"] {
        assert!(minimal_and(&format!("[api]\nlisten = \"{address}\"")).is_ok(), "{address}");
    }
}

#[test]
fn peers_are_distinct_and_name_known_kinds() {
    let cases = [
        ("[[peers]]\nid = \"b\"\n[[peers]]\nid = \"b\"", 6, "listed twice"),
        ("[[peers]]\nid = \"spiffe://example.org/a\"", 4, "this node itself"),
        ("[[peers]]\nid = \"b\"\nmay_issue = [\"consent\"]", 5, "no polarity rule"),
        ("[[peers]]\nid = \"b\"\nmay_receive = [\"consent\"]", 5, "no polarity rule"),
        ("[[peers]]\nid = \"b\"\naddress = \"b.example.org\"", 5, "host:port"),
        ("[[peers]]\naddress = \"b:1\"", 3, "missing field `id`"),
        ("[[peers]]\nid = \"b\"\nobligation_endpoint = \"b:1\"", 5, "no URL"),
        (
            "[[peers]]\nid = \"b\"\nhttp_token_file = \"t\"\n[[peers]]\nid = \"c\"\nhttp_token_file = \"t\"",
            8,
            "told apart",
        ),
    ];
    for (text, at, why) in cases {
        let (line, _, what, _) = refused(text);
        assert!(what.contains(why), "{what}");
        assert_eq!(line, at, "{text}: {what}");
    }
}

#[test]
fn a_peer_keeps_the_default_rates_it_does_not_override() {
    let config = minimal_and(
        "[rates]\nobligations_per_second = 7\n[[peers]]\nid = \"b\"\nbytes_per_second = 300000\n\
         principal = \"p\"\nhttp_token_file = \"b.token\"\nmay_issue = [\"oauth.token\"]\n[[peers]]\nid = \"c\"\naddress = \"c:1\"",
    )
    .unwrap();
    let [b, c] = config.peers.as_slice() else { panic!("two peers") };
    assert_eq!((b.rates.obligations_per_second, b.rates.bytes_per_second), (7, 300_000));
    assert_eq!((b.principal.as_str(), c.principal.as_str()), ("p", "c"));
    assert_eq!(b.http_token_file.as_deref(), Some(Path::new("/etc/abhyasa/b.token")));
    assert_eq!((b.may_issue.len(), b.may_receive.len()), (1, 0));
    assert_eq!(c.rates, config.rates);
}

#[test]
fn ab2_retries_that_cannot_span_the_deadline_name_the_number_it_takes() {
    let (line, _, what, fix) = refused("[kinds.\"anumati.consent\"]\nmax_retries = 3");
    assert!(line == 4 && what.contains("3 retries cannot span"), "{line} {what}");
    let needed: u32 = fix.split(' ').find_map(|word| word.parse().ok()).unwrap();
    assert!(minimal_and(&format!("[kinds.\"anumati.consent\"]\nmax_retries = {needed}")).is_ok());
    assert!(
        minimal_and(&format!("[kinds.\"anumati.consent\"]\nmax_retries = {}", needed - 1)).is_err()
    );
}

#[test]
fn incoherent_kinds_point_at_the_setting() {
    let cases = [
        ("deadline_seconds = 0", 4, "deadline"),
        ("deadline_seconds = 18446744073709551", 4, ""),
        ("deadline_seconds = 30", 3, "below the deadline"),
        ("jitter_percent = 100", 4, "jitter"),
        ("jitter_percent = 65535", 4, "jitter"),
        ("backoff_base_ms = 0", 4, "base"),
        ("backoff_base_ms = 60001", 4, "base"),
        ("max_retries = 100001", 4, "limit of 100000"),
        ("on_decline = \"ignore\"", 4, "unknown variant"),
        ("handler = { type = \"script\" }", 4, "unknown variant"),
        ("handler = { type = \"builtin\", query = true }", 4, "no query"),
        ("handler = { type = \"webhook\" }", 4, "no url"),
        (
            "handler = { type = \"webhook\", url = \"http://h/\", timeout_ms = 0 }",
            4,
            "timeout_ms is 0",
        ),
        (
            "handler = { type = \"webhook\", url = \"http://h/\", token_file = \"t\" }",
            4,
            "clear text",
        ),
    ];
    for (setting, at, why) in cases {
        let (line, _, what, _) = refused(&format!("[kinds.\"anumati.consent\"]\n{setting}"));
        assert!(what.contains(why), "{setting}: {what}");
        assert_eq!(line, at, "{setting}: {what}");
    }
    let (line, _, what, fix) = refused("[kinds.\"anumati.consnet\"]");
    assert!(line == 3 && what.contains("consnet") && fix.contains("anumati.consent"));
}

#[test]
fn a_kind_takes_what_the_file_says() {
    let config = minimal_and(
        "[kinds.\"oauth.token\"]\ndeadline_seconds = 60\nbackoff_cap_ms = 8000\non_decline = \"surface\"\n\
         handler = { type = \"webhook\", url = \"https://h/x\", token_file = \"h.token\", query = false }",
    )
    .unwrap();
    let kind = &config.kinds[&Kind::new("oauth.token").unwrap()];
    assert_eq!((kind.profile.deadline_ms(), kind.profile.on_decline), (60_000, OnDecline::Surface));
    assert_eq!(kind.profile.backoff().jitter_permille, 200);
    let HandlerConfig::Webhook(hook) = &kind.handler else { panic!("no webhook") };
    assert_eq!((hook.timeout_ms, hook.query), (5_000, false));
    assert_eq!(hook.token_file.as_deref(), Some(Path::new("/etc/abhyasa/h.token")));
}

#[test]
fn a_file_that_cannot_be_used_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("abhyasa.toml");
    let error = NodeConfig::load(&file).unwrap_err().to_string();
    assert!(error.contains("abhyasa.toml") && error.contains("abhyasa init"), "{error}");
    std::fs::write(&file, vec![b'#'; usize::try_from(CONFIG_LEN_MAX).unwrap() + 1]).unwrap();
    assert!(matches!(NodeConfig::load(&file), Err(ConfigError::TooLong { .. })));
    std::fs::write(&file, MINIMAL).unwrap();
    assert_eq!(NodeConfig::load(&file).unwrap().data_dir, dir.path().join("data"));
}
