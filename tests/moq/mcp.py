"""An MCP client with aiomoqt, of the draft's layout: finds a session, says COUNT messages, and prints what comes.

    mcp.py URL CERT KEY SERVER COUNT

SERVER is a name, or "-" for whatever the node has. The server is one that gives back what it is told.
"""

import asyncio
import json
import ssl
import sys

from aiomoqt.client import MOQTClient
from aiomoqt.track import PublishedTrack, SubscribedTrack
from aiomoqt.utils.url import parse_relay_url
from aiopquic.quic.configuration import QuicConfiguration

PATIENCE = 30


def say(**what):
    print(json.dumps(what), flush=True)


class Said(PublishedTrack):
    """One message a group."""

    def __init__(self, session, namespace, track):
        super().__init__(session, namespace=namespace, trackname=track, priority=64)
        self.messages = asyncio.Queue()

    async def produce(self, out):
        group = 0
        while (message := await self.messages.get()) is not None:
            await out.write(group, 0, message, group_start=True)
            out.end_group()
            group += 1


async def discover(session, server):
    fields = "mcp/discovery" + ("" if server == "-" else f"/{server}")
    found = asyncio.Queue()

    def on_object(message, *rest):
        found.put_nowait(bytes(message.payload or b""))

    await session.fetch(fields, "sessions", wait_response=True, on_object=on_object)
    return json.loads(await asyncio.wait_for(found.get(), PATIENCE))


async def run(url, cert, key, server, count):
    at = parse_relay_url(url)
    configuration = QuicConfiguration(
        alpn_protocols=["moqt-18"],
        is_client=True,
        server_name="abhyasa",
        certificate_file=cert,
        private_key_file=key,
        verify_mode=ssl.CERT_NONE,
    )
    client = MOQTClient(
        at.host,
        at.port,
        path="",
        use_quic=True,
        verify_tls=False,
        configuration=configuration,
        supported_drafts=18,
    )
    async with client.connect() as session:
        await asyncio.wait_for(session.client_session_init(), PATIENCE)
        document = await discover(session, server)
        say(event="document", document=document)
        control = document["result"]["available_tracks"]["control"]
        namespace, ours = control["client_to_server"].rsplit("/", 1)
        _, theirs = control["server_to_client"].rsplit("/", 1)
        said = Said(session, namespace, ours)
        said.attach()
        heard = asyncio.Queue()

        def on_object(message, size, at_us, group=None, subgroup=None):
            heard.put_nowait((group, bytes(message.payload or b"")))

        track = SubscribedTrack(session, namespace, theirs, on_object=on_object)
        await asyncio.wait_for(track.subscribe(), PATIENCE)
        for n in range(count):
            message = {"jsonrpc": "2.0", "method": "notifications/x", "params": {"n": n}}
            said.messages.put_nowait(json.dumps(message).encode())
            group, text = await asyncio.wait_for(heard.get(), PATIENCE)
            say(event="heard", group=group, message=json.loads(text))
        said.messages.put_nowait(None)
        await asyncio.wait_for(track.wait_closed(), PATIENCE)
        say(event="over")
    return 0


if __name__ == "__main__":
    url, cert, key, server, count = sys.argv[1:]
    sys.exit(asyncio.run(run(url, cert, key, server, int(count))))
