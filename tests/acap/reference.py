# The first implementation's caller and validators: a command a line in, an answer a line out.
import asyncio
import json
import sys

import httpx
from acap.middleware.caller import ACAPCaller, _now_iso
from acap.types import AdherenceEvent, ConsentRecord, ParsedClaim
from acap.validators import validate_adherence_trail, validate_consent_chain


class Agrees:
    """Understands each claim, and disputes those it is told to."""

    disputed = set()

    def parse(self, claim, caller_intent):
        disputed = claim.claim_id in self.disputed
        reason = "that is what we are for" if disputed else None
        return ParsedClaim(claim_id=claim.claim_id, understood=True, disputed=disputed, dispute_reason=reason)


async def audit(caller, base, policies):
    answer = await caller.http.get(f"{base}/acap/audit/{caller.caller_agent_id}", params={"limit": 1000})
    answer.raise_for_status()
    items = answer.json()["items"]
    of = lambda kind: [item[kind] for item in items if item["kind"] == kind]
    records = [ConsentRecord.model_validate(record) for record in of("record")]
    validate_consent_chain(records, policies)
    by_id = {record.record_id: record for record in records}
    # Its own caller begins a trail anew with each record.
    events = [AdherenceEvent.model_validate(event) for event in of("event")]
    for record in records:
        validate_adherence_trail([e for e in events if e.consent_record_id == record.record_id], by_id)
    # Those of the gate are one trail.
    attempts = [AdherenceEvent.model_validate(attempt["event"]) for attempt in of("attempt")]
    validate_adherence_trail(attempts, by_id)
    return {"records": len(records), "events": len(events), "attempts": len(attempts)}


async def main(base, token, caller_id):
    headers = {"Authorization": f"Bearer {token}"}
    # No proxy of the environment: the callee is on this machine.
    http = httpx.AsyncClient(headers=headers, trust_env=False, timeout=30)
    parser = Agrees()
    caller = ACAPCaller(caller_agent_id=caller_id, claim_parser=parser, principal_id="principal:test", http=http)
    policies = {}
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if command["do"] == "bind":
                # It tells time by the second, and a record is later than the one before.
                while caller.bindings and _now_iso() <= caller.bindings[base].consent_record.accepted_at:
                    await asyncio.sleep(0.05)
                parser.disputed = set(command["disputed"])
                answer = (await caller.bind(base)).model_dump(mode="json")
                policy = caller.bindings[base].policy
                policies[policy.version] = policy
            elif command["do"] == "check":
                rest = {name: command[name] for name in ("action", "claim_id", "clause_evaluated", "context")}
                answer = (await caller.check_and_record(base, **rest)).model_dump(mode="json")
            else:
                answer = await audit(caller, base, policies)
        except httpx.HTTPStatusError as error:
            answer = {"status": error.response.status_code, **error.response.json()}
        print(json.dumps(answer), flush=True)
    await caller.aclose()


asyncio.run(main(*sys.argv[1:]))
