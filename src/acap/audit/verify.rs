//! Checking an export.

use super::{
    EXPORT_LEN_MAX, EXPORT_VERSION, FINDINGS_MAX, Header, LINE_LEN_MAX, Line, Report, Rule,
};
use crate::acap::anchor::{self, AnchorFault};
use crate::acap::jws::Signed;
use crate::acap::keys::{self, KeySet, SignaturePolicy, Times, Verified};
use crate::acap::log::{Digest, TreeHead, tree};
use proto::consent::{
    AdherenceEvent, ConsentRecord, ContentHash, EventFault, EventId, Lineage, PolicyDocument,
    RecordFault, RecordId, Stamp, read, validate_trail,
};
use proto::id::AgentId;
use proto::time::Time;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{self, BufRead, Read as _};

/// What is asked of an export.
#[derive(Clone, Debug)]
pub struct VerifyOptions {
    /// Keys of agents that are not in their names.
    pub keys: BTreeMap<AgentId, KeySet>,
    /// Ids of logs that are believed; with none, any is, and it is said.
    pub logs: BTreeSet<String>,
    /// Whether every document must be signed.
    pub signatures: SignaturePolicy,
    /// Whether every document must be anchored in a log.
    pub anchors_required: bool,
    /// When it is checked.
    pub now: Time,
}

impl VerifyOptions {
    /// Neither keys nor logs are known, and nothing is required.
    #[must_use]
    pub const fn at(now: Time) -> Self {
        Self {
            keys: BTreeMap::new(),
            logs: BTreeSet::new(),
            signatures: SignaturePolicy::Optional,
            anchors_required: false,
            now,
        }
    }
}

/// A document and its line.
type At<T> = (u64, T);

#[derive(Default)]
struct Export {
    header: Option<Header>,
    policies: Vec<At<PolicyDocument>>,
    records: Vec<At<ConsentRecord>>,
    events: Vec<At<AdherenceEvent>>,
    /// Tree heads, of lines and of anchors.
    heads: Vec<At<TreeHead>>,
    /// Proofs of consistency by log and sizes.
    proofs: HashMap<(String, u64, u64), At<Vec<Digest>>>,
}

/// Checks an export, all of it: one finding does not hide the next.
///
/// # Errors
/// It cannot be read. What is wrong with it is in the report.
pub fn verify(from: impl BufRead, options: &VerifyOptions) -> io::Result<Report> {
    let mut report = Report::default();
    let mut export = Export::default();
    export.read(from, &mut report)?;
    let mut checks = Checks { options, report, logs: BTreeSet::new() };
    checks.policies(&export);
    checks.records(&export);
    checks.events(&export);
    let mut heads = std::mem::take(&mut export.heads);
    checks.heads(&heads);
    if let Some(header) = export.header.as_ref() {
        let caller = &header.caller;
        let records = std::mem::take(&mut export.records);
        for (line, record) in &records {
            let what = format!("consent record {}", record.record_id);
            let signed = record.accepted_at.time();
            heads.extend(checks.proofs(*line, what, record, &record.caller_agent_id, signed));
        }
        for (line, event) in &export.events {
            let what = format!("adherence event {}", event.event_id);
            heads.extend(checks.proofs(*line, what, event, caller, event.timestamp.time()));
        }
        export.records = records;
    }
    checks.consistency(heads, &export);
    checks.end(&export)
}

pub(super) fn digest(hash: Sha256) -> ContentHash {
    let text = Digest(hash.finalize().into()).to_string();
    // It is printable, and short enough.
    ContentHash::new(&text).unwrap_or_else(|_| ContentHash::unset())
}

impl Export {
    fn read(&mut self, from: impl BufRead, report: &mut Report) -> io::Result<()> {
        let mut from = from.take(EXPORT_LEN_MAX + 1);
        let (mut line, mut hash, mut bytes) = (0u64, Sha256::new(), Vec::new());
        let mut ended = None;
        loop {
            bytes.clear();
            let limit = LINE_LEN_MAX as u64 + 1;
            let read = from.by_ref().take(limit).read_until(b'\n', &mut bytes)?;
            if read == 0 {
                break;
            }
            line += 1;
            if let Some(at) = ended.take() {
                report.add(at, "the export", Rule::End, "lines follow its end");
            }
            let before = hash.clone();
            hash.update(&bytes);
            if bytes.last() != Some(&b'\n') && read as u64 == limit {
                let says = format!("it is over the limit of {LINE_LEN_MAX} bytes");
                report.add(line, "the line", Rule::Format, says);
                skip_line(&mut from, &mut hash)?;
                continue;
            }
            let text = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
            match parse(text) {
                Err(why) => report.add(line, "the line", Rule::Format, why),
                Ok(Line::End { lines, digest: told }) => {
                    ended = Some(line);
                    let found = digest(before);
                    if lines != line - 1 {
                        let values = Some((lines.to_string(), (line - 1).to_string()));
                        let says = "it has not as many lines as it was made with";
                        report.differ(line, "the export", Rule::End, says, values);
                    }
                    if told != found {
                        let values = Some((told.to_string(), found.to_string()));
                        let says = "its lines are not those it was made with";
                        report.differ(line, "the export", Rule::End, says, values);
                    }
                }
                Ok(part) => self.take(line, part, report),
            }
        }
        if from.limit() == 0 {
            let says =
                format!("it is over the limit of {EXPORT_LEN_MAX} bytes; the rest was not read");
            report.add(line, "the export", Rule::Format, says);
        } else if ended.is_none() {
            report.add(line, "the export", Rule::End, "its last line is no end: it is cut off");
        }
        if self.header.is_none() {
            report.add(1, "the export", Rule::Format, "its first line does not say whose it is");
        }
        Ok(())
    }

    fn take(&mut self, line: u64, part: Line, report: &mut Report) {
        match part {
            Line::Export(header) if line == 1 && header.version == EXPORT_VERSION => {
                self.header = Some(header);
            }
            Line::Export(Header { version, .. }) => {
                let says = "it says whose it is in another version of the format, or not at first";
                let values = Some((EXPORT_VERSION.to_string(), version.to_string()));
                report.differ(line, "the export", Rule::Format, says, values);
            }
            Line::Policy { document } => self.policies.push((line, document)),
            Line::Record { document } => self.records.push((line, document)),
            Line::Event { document } => self.events.push((line, document)),
            Line::TreeHead { head } => self.heads.push((line, head)),
            Line::Consistency { log_id, first, second, path } => {
                self.proofs.insert((log_id, first, second), (line, path));
            }
            Line::End { .. } => {} // looked at where it is read
        }
    }
}

/// Reads on to the end of a line.
fn skip_line(from: &mut impl BufRead, hash: &mut Sha256) -> io::Result<()> {
    loop {
        let bytes = from.fill_buf()?;
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let rest = bytes.get(..end.map_or(bytes.len(), |end| end + 1)).unwrap_or_default();
        let len = rest.len();
        hash.update(rest);
        from.consume(len);
        if end.is_some() || len == 0 {
            return Ok(());
        }
    }
}

/// Reads a line. A document is read by itself, so that it may have its full length and depth.
fn parse(text: &[u8]) -> Result<Line, String> {
    fn inside<'a>(text: &'a [u8], kind: &str) -> Option<&'a [u8]> {
        let begin = format!("{{\"type\":\"{kind}\",\"document\":");
        text.strip_prefix(begin.as_bytes())?.strip_suffix(b"}")
    }
    fn document<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
        read(text).map_err(|error| error.to_string())
    }
    if let Some(text) = inside(text, "policy") {
        return Ok(Line::Policy { document: document(text)? });
    }
    if let Some(text) = inside(text, "record") {
        return Ok(Line::Record { document: document(text)? });
    }
    if let Some(text) = inside(text, "event") {
        return Ok(Line::Event { document: document(text)? });
    }
    document(text)
}

struct Checks<'a> {
    options: &'a VerifyOptions,
    report: Report,
    /// Logs that were believed because none was named.
    logs: BTreeSet<String>,
}

impl Checks<'_> {
    fn policies(&mut self, export: &Export) {
        let mut line: Option<Lineage> = None;
        for (at, policy) in &export.policies {
            let what = format!("policy {}", policy.version);
            if let Err(wrong) = policy.verify_hash() {
                let values = Some((wrong.told.to_string(), wrong.found.to_string()));
                let says = "its document_hash is not that of its content";
                self.report.differ(*at, &what, Rule::PolicyHash, says, values);
            }
            let fault = match &mut line {
                Some(line) => line.publish(policy.clone()).map(|_| ()),
                None => Lineage::new(policy.clone()).map(|first| line = Some(first)),
            };
            if let Err(fault) = fault {
                self.report.add(*at, &what, Rule::PolicyVersions, fault);
            }
        }
    }

    fn records(&mut self, export: &Export) {
        let policies: HashMap<String, &PolicyDocument> =
            export.policies.iter().map(|(_, one)| (one.version.to_string(), one)).collect();
        let mut seen: HashSet<&RecordId> = HashSet::new();
        let mut before = None;
        for (at, record) in &export.records {
            let what = format!("consent record {}", record.record_id);
            if let Some(Header { caller, callee, .. }) = &export.header
                && (&record.caller_agent_id, &record.callee_agent_id) != (caller, callee)
            {
                let found = format!("{} and {}", record.caller_agent_id, record.callee_agent_id);
                let values = Some((format!("{caller} and {callee}"), found));
                let says = "it is not between the two this export is of";
                self.report.differ(*at, &what, Rule::Chain, says, values);
            }
            if let Err(fault) = record.check_behind(before) {
                self.fault(*at, &what, Rule::Chain, fault);
            }
            if !seen.insert(&record.record_id) {
                self.report.add(*at, &what, Rule::Chain, RecordFault::Again);
            }
            let version = &record.policy_version;
            let checked = match policies.get(&version.to_string()) {
                Some(policy) => record.check_against(policy),
                None => Err(RecordFault::NoPolicy { version: version.clone() }),
            };
            if let Err(fault) = checked {
                self.fault(*at, &what, Rule::Claims, fault);
            }
            before = Some(record);
        }
    }

    /// A fault of a record, with its two values where it has two.
    fn fault(&mut self, line: u64, what: &str, rule: Rule, fault: RecordFault) {
        let none = || "none".to_owned();
        let values = match &fault {
            RecordFault::Version { given, version } => {
                Some((version.to_string(), given.to_string()))
            }
            RecordFault::Hash { given, found, .. } => Some((found.to_string(), given.to_string())),
            RecordFault::Link { given, expected } => {
                let text =
                    |id: &Option<RecordId>| id.as_ref().map_or_else(none, ToString::to_string);
                Some((text(expected), text(given)))
            }
            RecordFault::Pair { given, expected } => Some((expected.clone(), given.clone())),
            RecordFault::Order { given, before } => {
                Some((format!("later than {before}"), given.to_string()))
            }
            _ => None,
        };
        self.report.differ(line, what, rule, fault, values);
    }

    fn events(&mut self, export: &Export) {
        let chain: Vec<ConsentRecord> =
            export.records.iter().map(|(_, record)| record.clone()).collect();
        let records: HashMap<&RecordId, &ConsentRecord> =
            chain.iter().map(|record| (&record.record_id, record)).collect();
        let policies: HashMap<String, &PolicyDocument> =
            export.policies.iter().map(|(_, one)| (one.version.to_string(), one)).collect();
        for (at, event) in &export.events {
            let policy = records.get(&event.consent_record_id);
            let policy = policy.and_then(|record| policies.get(&record.policy_version.to_string()));
            if let Some(Err(fault)) = policy.map(|policy| event.check_clause(policy)) {
                let what = format!("adherence event {}", event.event_id);
                self.event_fault(*at, what, fault);
            }
        }
        // What comes behind a broken place cannot be judged.
        if let Err(error) = validate_trail(export.events.iter().map(|(_, event)| event), &chain) {
            let at = export.events.get(error.at).map_or(0, |(line, _)| *line);
            let what = format!("adherence event {}", error.event);
            self.event_fault(at, what, error.fault);
        }
    }

    /// A fault of an event, with its two values where it has two.
    fn event_fault(&mut self, line: u64, what: String, fault: EventFault) {
        let text =
            |id: &Option<EventId>| id.as_ref().map_or("none".to_owned(), ToString::to_string);
        let values = match &fault {
            EventFault::Link { given, expected } => Some((text(expected), text(given))),
            EventFault::Clause { given, clause, .. } => Some((clause.clone(), given.clone())),
            EventFault::Order { given, before } => {
                Some((format!("not before {before}"), given.to_string()))
            }
            _ => None,
        };
        self.report.differ(line, what, Rule::Trail, fault, values);
    }

    fn heads(&mut self, heads: &[At<TreeHead>]) {
        for (at, head) in heads {
            if let Err(fault) = head.verify() {
                let what = format!("tree head of {} leaves", head.tree_size);
                self.report.add(*at, what, Rule::TreeHead, fault);
            }
        }
    }

    /// Checks anchor and signature of a document, and gives the tree head it is under.
    fn proofs(
        &mut self,
        line: u64,
        what: String,
        document: &impl Signed,
        signer: &AgentId,
        signed: Time,
    ) -> Option<At<TreeHead>> {
        let head = self.anchor(line, &what, document);
        // That the signature was there when the log took it is all that is known of its time; and of a log that
        // anybody may have made, not even that.
        let believed = head.as_ref().filter(|_| !self.options.logs.is_empty());
        let seen = believed.map_or(self.options.now, |head| head.timestamp.time());
        self.signature(line, what, document, signer, Times { signed, seen });
        head.map(|head| (line, head))
    }

    fn anchor(&mut self, line: u64, what: &str, document: &impl Signed) -> Option<TreeHead> {
        let head = match anchor::verify(document) {
            Ok(Some(head)) => head,
            Ok(None) => {
                if self.options.anchors_required {
                    self.report.add(line, what, Rule::Anchor, "it has no anchor, and needs one");
                }
                return None;
            }
            Err(AnchorFault::Kind { ledger }) if !self.options.anchors_required => {
                let note = format!("{what}: its anchor is over it; ledger {ledger} was not asked");
                self.note(note);
                return None;
            }
            Err(fault) => {
                let values = match &fault {
                    // The document is what is in question: the anchor says what it was.
                    AnchorFault::Hash { told, found } => Some((told.clone(), found.clone())),
                    AnchorFault::Member { told, found, .. } => Some((found.clone(), told.clone())),
                    _ => None,
                };
                self.report.differ(line, what, Rule::Anchor, fault, values);
                return None;
            }
        };
        let log = head.log_id.as_str();
        if self.options.logs.is_empty() {
            self.logs.insert(log.to_owned());
        } else if !self.options.logs.contains(log) {
            let says = "it is anchored in a log that is none of those to believe";
            let logs: Vec<&str> = self.options.logs.iter().map(String::as_str).collect();
            let values = Some((logs.join(" or "), log.to_owned()));
            self.report.differ(line, what, Rule::Anchor, says, values);
            return None;
        }
        self.report.anchored += 1;
        Some(head)
    }

    fn signature(
        &mut self,
        line: u64,
        what: String,
        document: &impl Signed,
        signer: &AgentId,
        times: Times,
    ) {
        let own;
        let keys = match self.options.keys.get(signer) {
            Some(keys) => keys,
            None => match KeySet::from_did_key(signer.as_str()) {
                Ok(keys) => {
                    own = keys;
                    &own
                }
                Err(_) if document.signature().is_none() => {
                    if self.options.signatures == SignaturePolicy::Required {
                        let says = keys::SignatureFault::Missing;
                        self.report.add(line, what, Rule::Signature, says);
                    }
                    return;
                }
                Err(_) => {
                    let says = format!("the keys of {signer} are not known; give them with --keys");
                    self.report.add(line, what, Rule::Signature, says);
                    return;
                }
            },
        };
        match keys::verify(document, signer, keys, self.options.signatures, times) {
            Ok(Verified::Signed) => self.report.signed += 1,
            Ok(Verified::Unsigned) => {}
            Err(fault) => self.report.add(line, what, Rule::Signature, fault),
        }
    }

    /// Each tree of a log continues the one before it.
    fn consistency(&mut self, heads: Vec<At<TreeHead>>, export: &Export) {
        let mut logs: BTreeMap<String, BTreeMap<u64, At<TreeHead>>> = BTreeMap::new();
        for (at, head) in heads {
            let sizes = logs.entry(head.log_id.to_string()).or_default();
            let what = || format!("tree head of {} leaves", head.tree_size);
            match sizes.get(&head.tree_size) {
                None => {
                    sizes.insert(head.tree_size, (at, head));
                }
                // Two faces of one log: it shows others another tree.
                Some((_, other)) if other.root_hash != head.root_hash => {
                    let says = "its log has signed two roots for one size";
                    let values = (other.root_hash.to_string(), head.root_hash.to_string());
                    self.report.differ(at, what(), Rule::TreeHead, says, Some(values));
                }
                Some(_) => {}
            }
        }
        for (log, sizes) in logs {
            for ((first, (_, old)), (second, (at, new))) in sizes.iter().zip(sizes.iter().skip(1)) {
                let what = format!("tree head of {second} leaves");
                if let Some((earlier, later)) = earlier(&old.timestamp, &new.timestamp) {
                    let says = "it is earlier than a smaller one of its log";
                    let values = Some((format!("not before {earlier}"), later));
                    self.report.differ(*at, &what, Rule::TreeHead, says, values);
                }
                match export.proofs.get(&(log.clone(), *first, *second)) {
                    None => {
                        let says =
                            format!("nothing shows that it continues that of {first} leaves");
                        self.report.add(*at, what, Rule::Consistency, says);
                    }
                    Some((line, path)) => {
                        let path: Vec<_> = path.iter().map(|Digest(hash)| *hash).collect();
                        let (old, new) = (&old.root_hash.0, &new.root_hash.0);
                        if !tree::verify_consistency((*first, old), (*second, new), &path) {
                            let says = format!("it does not continue that of {first} leaves");
                            self.report.add(*line, what, Rule::Consistency, says);
                        }
                    }
                }
            }
        }
    }

    fn end(mut self, export: &Export) -> io::Result<Report> {
        for log in std::mem::take(&mut self.logs) {
            self.note(format!(
                "log {log} was taken at its word: name the logs to believe with --log"
            ));
        }
        self.report.policies = export.policies.len();
        self.report.records = export.records.len();
        self.report.events = export.events.len();
        self.report.good = self.report.count == 0;
        Ok(self.report)
    }

    fn note(&mut self, note: String) {
        if self.report.notes.len() < FINDINGS_MAX {
            self.report.notes.push(note);
        }
    }
}

fn earlier(old: &Stamp, new: &Stamp) -> Option<(String, String)> {
    (new.time() < old.time()).then(|| (old.to_string(), new.to_string()))
}
