"""An MCP server of the official SDK, on standard input and output or Streamable HTTP."""

import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("files")


@server.tool()
def read(path: str) -> str:
    return f"content of {path}"


@server.tool()
async def watch(context: Context, seconds: float) -> str:
    """Takes its time, and tells how far it is."""
    steps = max(1, int(seconds * 10))
    for step in range(steps):
        await context.report_progress(step, steps)
        await anyio.sleep(0.1)
    return "over"


@server.tool()
def leave() -> str:
    """Ends the server, without a word."""
    import os

    os._exit(3)


@server.resource("file:///notes")
def notes() -> str:
    return "notes"


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
