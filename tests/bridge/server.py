"""An MCP server of the official SDK, on standard input and output or Streamable HTTP."""

import os
import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("files")
canceled = 0


@server.tool()
def read(path: str) -> str:
    return f"content of {path}"


@server.tool()
async def watch(context: Context, seconds: float, every: float = 0.1) -> str:
    """Takes its time, and tells how far it is."""
    global canceled
    steps = max(1, int(seconds / every + 0.5))
    try:
        for step in range(steps):
            await context.report_progress(step, steps)
            await anyio.sleep(every)
    except anyio.get_cancelled_exc_class():
        canceled += 1
        raise
    return "over"


@server.tool()
def leave() -> str:
    """Ends the server, without a word."""
    os._exit(3)


@server.tool()
def about() -> str:
    """Its process, and how many calls of `watch` were canceled."""
    return f"{os.getpid()} {canceled}"


@server.tool()
async def roots(context: Context) -> str:
    """Says what belongs to no call, and asks its client."""
    await context.session.send_tool_list_changed()
    found = await context.session.list_roots()
    return ", ".join(str(root.uri) for root in found.roots)


@server.resource("file:///notes")
def notes() -> str:
    return "notes"


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
