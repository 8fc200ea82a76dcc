# Hashes of policies as others compute them: one document a line in, one hash a line out.
import hashlib
import json
import sys

OF_POLICY = {"supersedes", "change_summary", "jurisdictions"}
OF_CLAIM = {"constraint", "effective_version", "since_version", "escalate_on_deny", "category", "dimension"}


def without(members, optional):
    return {k: v for k, v in members.items() if v is not None or k not in optional}


def by_rfc_8785(document):
    # Anumati, section 3.1: absent members left out, document_hash empty.
    import rfc8785

    document = without(document, OF_POLICY)
    document["claims"] = [without(claim, OF_CLAIM) for claim in document["claims"]]
    document["document_hash"] = ""
    return "sha256:" + hashlib.sha256(rfc8785.dumps(document)).hexdigest()


def by_reference(document):
    from acap.types import PolicyDocument
    from acap.validators.hash import compute_policy_hash

    return compute_policy_hash(PolicyDocument(**document))


hash_of = {"rfc8785": by_rfc_8785, "reference": by_reference}[sys.argv[1]]
for line in sys.stdin.buffer:
    print(hash_of(json.loads(line)))
