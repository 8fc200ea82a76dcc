"""Subscribes to tracks of a node with aiomoqt, and prints what comes, one JSON object a line.

    client.py URL CA PREFIX TRACK COUNT [CERT KEY]

URL is a relay's, or with CERT and KEY a node's own. PREFIX is what namespaces to take begin with, their fields
joined by "/". A relay is asked for them; a node announces its own to its peers. TRACK is subscribed to in the first
that ends in PART, and the program ends after COUNT objects.
"""

import argparse
import asyncio
import json
import ssl
import sys

from aiomoqt.client import MOQTClient
from aiomoqt.track import SubscribedTrack
from aiomoqt.types import MOQTMessageType, MOQTRequestError
from aiomoqt.utils.url import parse_relay_url
from aiopquic.quic.configuration import QuicConfiguration

PATIENCE = 30


def say(**what):
    print(json.dumps(what), flush=True)


def text(fields):
    return "/".join(f.decode() if isinstance(f, bytes) else f for f in fields)


def configuration(args):
    """Of a connection to a node: who it is says its certificate, and not by a host name."""
    return QuicConfiguration(
        alpn_protocols=["moqt-18"],
        is_client=True,
        server_name="abhyasa",
        certificate_file=args.cert,
        private_key_file=args.key,
        verify_mode=ssl.CERT_NONE,
    )


async def by_relay(session, prefix, part):
    await session.subscribe_namespace(prefix, wait_response=True)
    while True:
        told = await session.await_namespace(timeout=PATIENCE)
        namespace = "/".join([prefix, text(told.namespace_suffix)])
        if namespace.endswith("/" + part):
            return namespace


async def run(args):
    at = parse_relay_url(args.url)
    direct = args.cert is not None
    client = MOQTClient(
        at.host,
        at.port,
        path=at.path or "",
        use_quic=True,
        verify_tls=not direct,
        ca_file=None if direct else args.ca,
        configuration=configuration(args) if direct else None,
        supported_drafts=18,
    )
    announced = asyncio.Queue()
    async with client.connect() as session:
        if direct:

            async def heard(message):
                session.publish_namepace_ok(message)  # as it is spelled there
                announced.put_nowait(text(message.namespace))

            session.register_handler(MOQTMessageType.PUBLISH_NAMESPACE, heard)
        await asyncio.wait_for(session.client_session_init(), PATIENCE)
        say(event="session", draft=session.negotiated_draft)
        if direct:
            while True:
                namespace = await asyncio.wait_for(announced.get(), PATIENCE)
                if namespace.startswith(args.prefix) and namespace.endswith("/" + args.part):
                    break
        else:
            namespace = await by_relay(session, args.prefix, args.part)
        say(event="namespace", namespace=namespace)
        came = asyncio.Queue()

        def on_object(message, size, at_us, group=None, subgroup=None):
            payload = bytes(message.payload or b"")
            priority = getattr(message, "publisher_priority", None)
            came.put_nowait((group, subgroup, message.object_id, priority, payload))

        track = SubscribedTrack(session, namespace, args.track, on_object=on_object)
        try:
            await asyncio.wait_for(track.subscribe(), PATIENCE)
        except MOQTRequestError as refused:
            say(event="refused", code=int(refused.error_code))
            return 1
        say(event="subscribed")
        for _ in range(args.count):
            group, subgroup, id, priority, payload = await asyncio.wait_for(came.get(), PATIENCE)
            say(event="object", group=group, subgroup=subgroup, object=id, payload=payload.hex())
    return 0


def main():
    parser = argparse.ArgumentParser()
    for name in ["url", "ca", "prefix", "part", "track"]:
        parser.add_argument(name)
    parser.add_argument("count", type=int)
    parser.add_argument("cert", nargs="?")
    parser.add_argument("key", nargs="?")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
