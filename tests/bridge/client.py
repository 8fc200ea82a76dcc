"""The official MCP SDK as a client, unmodified. Arguments: what reaches the server (a URL, or a command
to the end), after the era (auto or legacy), our own id, and the id of the node before the server."""

import sys
from datetime import datetime, timezone

import anyio
from mcp import Client, MCPError, StdioServerParameters

OBLIGATION = "io.github.ravikiran438/abhyasa.obligation"
ACK = "io.github.ravikiran438/abhyasa.custody-ack"
WITHHELD = -31403

era, name, target, *reach = sys.argv[1:]
done = 0


def server():
    if reach[0].startswith("http"):
        return reach[0]
    return StdioServerParameters(command=reach[0], args=reach[1:])


def envelope(sequence, decision):
    created = datetime.now(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {
        "obligation_id": f"{name}-{era}-{sequence}",
        "kind": "anumati.consent",
        "target": target,
        "payload": {"decision": decision, "scope": "files.watch", "sequence": sequence},
        "deadline_seconds": 60,
        "max_retries": 600,
        "created_at": created,
    }


def walk(what):
    global done
    done += 1
    print(done, what)


def text(result):
    assert not result.is_error, result
    return result.content[0].text


def ack(result):
    found = (result.meta or {})[ACK]
    return found["obligation_id"], found["status"]


async def refused(call):
    try:
        result = await call
    except MCPError as error:
        return error.error.code, str(error), error.error.data
    raise AssertionError(f"not refused: {result}")


async def main():
    # Of each era its own, so that the sequences of a run are in order.
    first = {"auto": 1, "legacy": 11}[era]
    async with Client(server(), mode=era) as client:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        assert tools == ["read", "watch", "leave", "about", "roots"], tools
        assert text(await client.call_tool("read", {"path": "a"})) == "content of a"
        walk("a call goes through")

        steps = []

        async def progress(step, total, message):
            steps.append(step)

        found = await client.read_resource("file:///notes")
        assert found.contents[0].text == "notes", found
        walk("a resource too")

        code, message, data = await refused(client.call_tool("watch", {"seconds": 0.2}))
        assert code == WITHHELD and data["scope"] == "files.watch", (code, message, data)
        walk("what needs authority that nobody gave is refused")

        grant = {OBLIGATION: envelope(first, "grant")}
        given = await client.call_tool("read", {"path": "b"}, meta=grant)
        assert text(given) == "content of b"
        assert ack(given) == (f"{name}-{era}-{first}", "applied"), given
        again = await client.call_tool("read", {"path": "b"}, meta=grant)
        assert ack(again) == ack(given), again
        walk("an envelope is processed, and its ack comes back")

        over = await client.call_tool("watch", {"seconds": 0.3}, progress_callback=progress)
        assert text(over) == "over" and len(steps) == 3, steps
        walk("with authority it runs, and tells its progress")

        async with anyio.create_task_group() as group:
            ends = []

            async def long():
                # It talks all the time, which must not hide that it may not go on.
                call = client.call_tool("watch", {"seconds": 60, "every": 0.002}, progress_callback=begun)
                ends.append(await refused(call))

            running = anyio.Event()

            async def begun(step, total, message):
                running.set()

            group.start_soon(long)
            await running.wait()
            meta = {OBLIGATION: envelope(first + 1, "revoke")}
            gone = await client.call_tool("read", {"path": "c"}, meta=meta)
            assert ack(gone) == (f"{name}-{era}-{first + 1}", "applied"), gone
        [(code, message, data)] = ends
        assert code == WITHHELD, (code, message)
        assert data["obligation_id"] == f"{name}-{era}-{first + 1}" and data["why"] == "withheld", data
        walk("a revocation ends the call that runs")

        # One that would run under what it takes away itself.
        code, message, data = await refused(
            client.call_tool("watch", {"seconds": 0.1}, meta={OBLIGATION: envelope(first + 2, "revoke")})
        )
        assert code == WITHHELD and data[ACK]["status"] == "applied", (code, message, data)
        walk("the envelope comes before the call")

        wrong = envelope(first + 3, "grant") | {"target": "spiffe://test/somebody-else"}
        code, message, data = await refused(client.call_tool("read", {"path": "d"}, meta={OBLIGATION: wrong}))
        assert code == -31400 and "refused" in message, (code, message)
        code, message, data = await refused(client.call_tool("read", {"path": "d"}, meta={OBLIGATION: 7}))
        assert code == -31400 and "no obligation" in message, (code, message)
        assert text(await client.call_tool("read", {"path": "e"})) == "content of e"
        walk("an envelope that is none stops its call, and nothing else")
    print(f"all {done} walks done")


anyio.run(main)
