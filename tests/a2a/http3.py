"""An HTTP/3 client made of aioquic, independent of the node's own stack.

    http3.py HOST PORT CA CERT KEY REQUESTS

REQUESTS is a JSON array of {method, path, headers, body, times of it}. All go over one connection, one after the
other; the answers come out as a JSON array of {status, headers, body}.
"""

import asyncio
import base64
import json
import pathlib
import ssl
import sys

from aioquic.asyncio import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HOST, PORT, CA, CERT, KEY, REQUESTS = sys.argv[1:7]


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.http = H3Connection(self._quic)
        self.answers = {}

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for _, done in self.answers.values():
                if not done.done():
                    done.set_exception(ConnectionError(event.reason_phrase or str(event.error_code)))
        for found in self.http.handle_event(event):
            if found.stream_id not in self.answers:
                continue
            answer, done = self.answers[found.stream_id]
            if isinstance(found, HeadersReceived):
                headers = {name.decode(): value.decode() for name, value in found.headers}
                answer["status"] = int(headers.pop(":status"))
                answer["headers"] = headers
            elif isinstance(found, DataReceived):
                answer["body"] += found.data.decode()
            if found.stream_ended and not done.done():
                done.set_result(answer)

    async def call(self, method, path, headers, body):
        stream = self._quic.get_next_available_stream_id()
        done = asyncio.get_running_loop().create_future()
        self.answers[stream] = ({"body": ""}, done)
        head = [(":method", method), (":scheme", "https"), (":authority", f"{HOST}:{PORT}"), (":path", path)]
        head += list(headers.items())
        encoded = [(name.encode(), value.encode()) for name, value in head]
        data = body.encode()
        self.http.send_headers(stream, encoded, end_stream=not data)
        if data:
            self.http.send_data(stream, data, end_stream=True)
        self.transmit()
        return await asyncio.wait_for(done, 30)


def private_key(file):
    """An Ed25519 key with its public half beside it (RFC 5958 §2), which `cryptography` does not read."""
    lines = pathlib.Path(file).read_text().splitlines()
    der = base64.b64decode("".join(line for line in lines if not line.startswith("-")))
    begin = b"\x06\x03\x2b\x65\x70\x04\x22\x04\x20"  # id-Ed25519, then the key in two octet strings
    at = der.index(begin) + len(begin)
    return Ed25519PrivateKey.from_private_bytes(der[at : at + 32])


async def main():
    configuration = QuicConfiguration(is_client=True, alpn_protocols=["h3"], server_name=HOST)
    configuration.verify_mode = ssl.CERT_REQUIRED
    configuration.load_verify_locations(CA)
    configuration.load_cert_chain(CERT)
    configuration.private_key = private_key(KEY)
    async with connect(HOST, int(PORT), configuration=configuration, create_protocol=Client) as client:
        answers = []
        for request in json.loads(REQUESTS):
            answers.append(
                await client.call(
                    request["method"],
                    request["path"],
                    request.get("headers", {}),
                    request.get("body", "") * request.get("times", 1),
                )
            )
        print(json.dumps(answers))


asyncio.run(asyncio.wait_for(main(), 60))
