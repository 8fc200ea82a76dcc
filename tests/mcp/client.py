"""The official Python SDK of MCP as a client of a node, unmodified.

usage: client.py WAY MODE TARGET BOB CAROL

WAY is `http` or `stdio`; MODE is `legacy` or `auto`, which finds the newest version; TARGET is a URL, or a
command and its arguments as JSON. Bob answers, Carol never does. Prints how many walks were done.
"""

import asyncio
import json
import sys
import warnings
from datetime import datetime, timezone

import mcp
from mcp import Client, MCPError, StdioServerParameters

WAIT = 30  # seconds for what takes a moment
CONSENT = "anumati.consent"
ESCALATIONS = "abhyasa://escalations"
TOOLS = {
    "issue_obligation",
    "send_belief_update",
    "obligation_status",
    "check_admissibility",
    "compute_safe_action",
    "list_escalations",
    "acknowledge_escalation",
    "check_authorization",
    "list_pending",
}

walks = 0


def walk(function):
    async def counted(*args):
        global walks
        await asyncio.wait_for(function(*args), WAIT * 2)
        walks += 1

    return counted


async def call(client, tool, **arguments):
    """The structured result, which the SDK has held against the tool's schema."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, (tool, result)
    assert json.loads(result.content[0].text) == result.structured_content, result
    return result.structured_content


async def fails(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error, (tool, result)
    return result.content[0].text


async def read(client, uri):
    result = await client.read_resource(uri, cache_mode="bypass")
    assert result.contents[0].mime_type == "application/json", result
    return json.loads(result.contents[0].text)


def revoke(target, scope):
    return {"kind": CONSENT, "target": target, "payload": {"decision": "revoke", "scope": scope}}


@walk
async def what_there_is(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == TOOLS, sorted(tools)
    for tool in tools.values():
        assert tool.output_schema["type"] == "object", tool
    assert tools["check_authorization"].annotations.read_only_hint is True
    uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
    assert uris == {"abhyasa://pending", ESCALATIONS, "abhyasa://authorizations"}, uris
    templates = (await client.list_resource_templates()).resource_templates
    assert {template.uri_template for template in templates} == {uri + "{?after}" for uri in uris}
    assert "check_authorization" in client.instructions


@walk
async def asking_first(client, bob):
    verdict = await call(client, "check_admissibility", **revoke(bob, "mail.read"))
    assert verdict["verdict"] == "custody" and verdict["admissible"] is True, verdict
    assert verdict["safe_action"]["effect"] == "fail_closed", verdict
    grant = {"kind": CONSENT, "target": bob, "payload": {"decision": "grant", "scope": "mail.read"}}
    verdict = await call(client, "check_admissibility", **grant)
    assert (verdict["verdict"], verdict["rule"]) == ("best_effort", "AC-1"), verdict
    verdict = await call(client, "check_admissibility", **revoke("spiffe://nowhere/x", "mail.read"))
    assert (verdict["verdict"], verdict["rule"]) == ("refused", "unknown_target"), verdict
    verdict = await call(client, "check_admissibility", kind="phala.belief_update", target=bob, payload={})
    assert verdict["rule"] == "polarity" and "weight_delta" in verdict["message"], verdict
    assert (await call(client, "list_pending"))["items"] == [], "nothing was issued"


@walk
async def the_fail_safe(client, bob):
    weight = {"weight_key": "routing.bob", "weight_delta": -0.25}
    safe = await call(client, "compute_safe_action", kind="phala.belief_update", target=bob, payload=weight)
    assert safe["admissible"] is True and safe["governed_key"] == "routing.bob", safe
    assert safe["safe_action"]["effect"] == "down_weight" and safe["safe_action"]["magnitude"] == 0.25, safe
    weight["weight_delta"] = 0.25
    safe = await call(client, "compute_safe_action", kind="phala.belief_update", target=bob, payload=weight)
    assert safe["admissible"] is False and safe["safe_action"] is None, safe


@walk
async def issuing(client, bob, name):
    issue = revoke(bob, f"calendar.{name}") | {"obligation_id": f"ob-{name}", "wait_seconds": WAIT}
    issued = await call(client, "issue_obligation", **issue)
    assert issued["custody"] is True and issued["existing"] is False, issued
    assert issued["outcome"]["state"] == "applied", issued
    again = await call(client, "issue_obligation", **issue)
    assert again["existing"] is True and again["deadline_at_ms"] == issued["deadline_at_ms"], again
    status = await call(client, "obligation_status", obligation_id=f"ob-{name}")
    assert (status["role"], status["state"]) == ("custodian", "applied"), status
    learned = {"id": f"bu-{name}", "target_agent_id": bob, "weight_key": "routing.bob", "weight_delta": 2.5}
    valid = {"valid_from": datetime.now(timezone.utc).isoformat(timespec="seconds"), "ttl_seconds": 60}
    sent = await call(client, "send_belief_update", **learned, **valid)
    assert (sent["custody"], sent["weight_delta"], sent["clipped"]) == (False, 1.0, True), sent
    may = {"agent": bob, "scope": f"calendar.{name}", "role": "principal"}
    answer = await call(client, "check_authorization", **may)
    assert (answer["allowed"], answer["why"]) == (False, "withheld"), answer
    answer = await call(client, "check_authorization", **(may | {"scope": "never.named"}))
    assert (answer["allowed"], answer["why"]) == (False, "unknown"), answer


@walk
async def escalating(client, carol, name, changes):
    """`changes` waits for the resource to change, and is told when it may."""
    issue = revoke(carol, f"files.{name}") | {"obligation_id": f"late-{name}", "deadline_seconds": 2}
    async with changes(ESCALATIONS) as changed:
        issued = await call(client, "issue_obligation", **issue)
        assert issued["custody"] is True, issued
        pending = (await call(client, "list_pending"))["items"]
        assert [one["obligation_id"] for one in pending] == [f"late-{name}"], pending
        page = await read(client, "abhyasa://pending")
        assert [one["obligation_id"] for one in page["items"]] == [f"late-{name}"], page
        await changed()
    inbox = (await read(client, ESCALATIONS))["items"]
    assert [one["obligation_id"] for one in inbox] == [f"late-{name}"], inbox
    assert inbox[0]["safe_action"]["scope"] == f"files.{name}" and inbox[0]["safe_action_applied"], inbox
    assert (await call(client, "list_escalations"))["items"] == inbox
    done = await call(client, "acknowledge_escalation", obligation_id=f"late-{name}")
    assert done["acknowledged"] is True, done
    assert (await call(client, "list_escalations"))["items"] == []
    everything = (await call(client, "list_escalations", all=True))["items"]
    assert f"late-{name}" in [one["obligation_id"] for one in everything], everything
    cells = (await read(client, "abhyasa://authorizations"))["items"]
    assert [cell["allowed"] for cell in cells if cell["scope"] == f"files.{name}"] == [False], cells


@walk
async def refusals(client, bob):
    text = await fails(client, "issue_obligation", kind=CONSENT, target=bob)
    assert "payload" in text, text
    text = await fails(client, "issue_obligation", **revoke("spiffe://nowhere/x", "a"))
    assert "spiffe://nowhere/x is no peer of this node" in text and "[unknown_target]" in text, text
    text = await fails(client, "obligation_status", obligation_id="never")
    assert "never" in text and "[not_found]" in text, text
    old = {"id": "old", "target_agent_id": bob, "weight_key": "routing.bob", "weight_delta": -0.1}
    text = await fails(client, "send_belief_update", **old, valid_from="2026-01-01T00:00:00Z", ttl_seconds=60)
    assert "old holds until 2026-01-01T00:01:00Z" in text and "[expired]" in text, text
    text = await fails(client, "acknowledge_escalation", obligation_id="never")
    assert "[not_found]" in text, text
    for wrong in (client.call_tool("no_such_tool", {}), client.read_resource("abhyasa://nothing")):
        try:
            await wrong
        except MCPError as error:
            assert error.error.code in (-32602, -32002), error.error
        else:
            raise AssertionError("that should have failed")


class Updates:
    """Notifications of a client with a session, as they come in."""

    def __init__(self):
        self.came = asyncio.Queue()

    async def __call__(self, message):
        uri = getattr(getattr(message, "params", None), "uri", None)
        if uri is not None:
            await self.came.put(str(uri))


def changes_of(client, updates, legacy):
    """How changes of a resource are waited for: an async context manager that gives a waiter."""
    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def subscribed(uri):
        await client.subscribe_resource(uri)

        async def changed():
            while await updates.came.get() != uri:
                pass

        yield changed
        await client.unsubscribe_resource(uri)

    @asynccontextmanager
    async def listening(uri):
        async with client.listen(resource_subscriptions=[uri]) as events:
            assert events.honored.resource_subscriptions == [uri], events.honored

            async def changed():
                async for event in events:
                    assert str(event.uri) == uri, event
                    return

            yield changed

    return subscribed if legacy else listening


async def main():
    way, mode, target, bob, carol = sys.argv[1:]
    warnings.simplefilter("ignore")
    if way == "stdio":
        command, *arguments = json.loads(target)
        target = StdioServerParameters(command=command, args=arguments)
    updates = Updates()
    async with Client(target, mode=mode, message_handler=updates, read_timeout_seconds=WAIT) as client:
        spoken = client.protocol_version
        assert spoken == ("2025-11-25" if mode == "legacy" else "2026-07-28"), spoken
        name = f"{way}-{mode}"
        await what_there_is(client)
        await asking_first(client, bob)
        await the_fail_safe(client, bob)
        await issuing(client, bob, name)
        await escalating(client, carol, name, changes_of(client, updates, mode == "legacy"))
        await refusals(client, bob)
    print(f"all {walks} walks done")


assert mcp is not None
asyncio.run(main())
