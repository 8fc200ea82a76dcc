# Hashes of documents as others compute them: one document a line in, one hash a line out.
import hashlib
import json
import sys

OPTIONAL = {
    # of policies and claims
    "supersedes", "change_summary", "jurisdictions", "constraint", "effective_version", "since_version",
    "escalate_on_deny", "category", "dimension",
    # of records and answers
    "prev_record_id", "caller_signature", "principal_id", "caller_capability_hash", "reconsent_trigger",
    "dispute_reason",
    # of events
    "prev_event_id", "context", "agent_signature",
}


def without(members):
    return {k: v for k, v in members.items() if v is not None or k not in OPTIONAL}


def sha256(letters):
    return "sha256:" + hashlib.sha256(letters).hexdigest()


def by_rfc_8785(document):
    # Anumati, section 3.1: absent members left out, document_hash empty.
    import rfc8785

    document = without(document)
    for items in ("claims", "parsed_claims"):
        if items in document:
            document[items] = [without(item) for item in document[items]]
    if "claims" in document:
        document["document_hash"] = ""
    return sha256(rfc8785.dumps(document))


def by_reference(document):
    from acap.types import AdherenceEvent, ConsentRecord, PolicyDocument
    from acap.validators.hash import canonicalize, compute_policy_hash

    if "claims" in document:
        return compute_policy_hash(PolicyDocument(**document))
    model = ConsentRecord if "record_id" in document else AdherenceEvent
    return sha256(canonicalize(model(**document).model_dump(mode="json", exclude_none=True)))


hash_of = {"rfc8785": by_rfc_8785, "reference": by_reference}[sys.argv[1]]
for line in sys.stdin.buffer:
    print(hash_of(json.loads(line)))
