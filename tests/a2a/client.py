"""The official A2A SDK against a node: every operation it has, over one binding.

    client.py BASE_URL BINDING PEER_TOKEN NODE_ID

Ends with 0 and "all N walks done", or with the first thing that is not as it should be.
"""

import asyncio
import datetime
import http.server
import json
import sys
import threading
import uuid

import httpx
from a2a.client.client import ClientCallContext, ClientConfig
from a2a.client.client_factory import ClientFactory
from a2a.client.service_parameters import ServiceParametersFactory, with_a2a_extensions
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict, ParseDict

BASE, BINDING, TOKEN, NODE = sys.argv[1:5]
URI = "https://ravikiran438.github.io/abhyasa-protocol/v1"
STATE = pb.TaskState


def message(*parts, wish=None, **more):
    found = pb.Message(message_id=str(uuid.uuid4()), role=pb.ROLE_USER, **more)
    for part in parts:
        found.parts.append(pb.Part(text=part))
    if wish is not None:
        ParseDict({"abhyasa.echo": wish}, found.metadata)
    return found


async def events(client, found, context=None, configuration=None):
    request = pb.SendMessageRequest(message=found, configuration=configuration)
    return [event async for event in client.send_message(request, context=context)]


def equal(found, expected):
    assert found == expected, f"{found!r} is not {expected!r}"


class Hook(http.server.BaseHTTPRequestHandler):
    """Takes notifications, the first one only at its second try."""

    taken: list = []
    tries = 0
    ended = threading.Event()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        Hook.tries += 1
        if Hook.tries == 1:
            self.send_response(500)
            self.end_headers()
            return
        event = ParseDict(json.loads(body), pb.StreamResponse())
        Hook.taken.append((dict(self.headers.items()), event))
        self.send_response(204)
        self.end_headers()
        if event.HasField("status_update") and event.status_update.status.state == STATE.TASK_STATE_COMPLETED:
            Hook.ended.set()

    def log_message(self, *_):
        pass


async def blocking(client):
    [event] = await events(client, message("hello"))
    task = event.task
    equal(task.status.state, STATE.TASK_STATE_COMPLETED)
    equal(task.artifacts[0].parts[0].text, "hello")
    return task


async def streamed(client):
    seen = await events(client, message("a", "b", wish={"delay_ms": 20}))
    kinds = [event.WhichOneof("payload") for event in seen]
    equal(kinds, ["task", "status_update", "artifact_update", "artifact_update", "status_update"])
    equal(seen[-1].status_update.status.state, STATE.TASK_STATE_COMPLETED)
    equal([e.artifact_update.artifact.parts[0].text for e in seen[2:4]], ["a", "b"])


async def read_and_listed(client, done):
    found = await client.get_task(pb.GetTaskRequest(id=done.id, history_length=0))
    equal((found.id, len(found.history)), (done.id, 0))
    seen, token = [], ""
    while True:
        page = await client.list_tasks(pb.ListTasksRequest(page_size=1, page_token=token))
        seen += [task.id for task in page.tasks]
        token = page.next_page_token
        if not token:
            break
    equal(len(seen), page.total_size)
    assert done.id in seen
    try:
        await client.get_task(pb.GetTaskRequest(id="no-such-task"))
    except TaskNotFoundError:
        pass
    else:
        raise AssertionError("an unknown task was found")


async def asked(client, unary):
    [event] = await events(unary, message("?", wish={"ask": True}))
    task = event.task
    equal(task.status.state, STATE.TASK_STATE_INPUT_REQUIRED)
    [event] = await events(unary, message("this", task_id=task.id, context_id=task.context_id))
    equal((event.task.id, event.task.status.state), (task.id, STATE.TASK_STATE_COMPLETED))
    try:
        await events(unary, message("more", task_id=task.id))
    except UnsupportedOperationError:
        pass
    else:
        raise AssertionError("a task that ended took more")


async def canceled_and_subscribed(client, unary):
    now = pb.SendMessageConfiguration(return_immediately=True)
    [event] = await events(unary, message("x", wish={"delay_ms": 50_000}), configuration=now)
    id = event.task.id
    stream = client.subscribe(pb.SubscribeToTaskRequest(id=id))
    first = await anext(stream)
    equal((first.WhichOneof("payload"), first.task.id), ("task", id))
    task = await client.cancel_task(pb.CancelTaskRequest(id=id))
    equal(task.status.state, STATE.TASK_STATE_CANCELED)
    rest = [event async for event in stream]
    equal(rest[-1].status_update.status.state, STATE.TASK_STATE_CANCELED)
    try:
        await client.cancel_task(pb.CancelTaskRequest(id=id))
    except TaskNotCancelableError:
        pass
    else:
        raise AssertionError("canceled twice")


async def pushed(client, unary):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    push = pb.TaskPushNotificationConfig(id="c-1", url=url, token="t-1")
    push.authentication.scheme, push.authentication.credentials = "Bearer", "secret"
    configuration = pb.SendMessageConfiguration(
        return_immediately=True, task_push_notification_config=push
    )
    [event] = await events(unary, message("a", wish={"delay_ms": 10}), configuration=configuration)
    id = event.task.id
    assert await asyncio.to_thread(Hook.ended.wait, 30), f"heard {Hook.taken}"
    server.shutdown()
    server.server_close()
    kinds = [event.WhichOneof("payload") for _, event in Hook.taken]
    equal(kinds, ["task", "status_update", "artifact_update", "status_update"])
    for headers, _ in Hook.taken:
        found = {name.lower(): value for name, value in headers.items()}
        equal(found["authorization"], "Bearer secret")
        equal(found["x-a2a-notification-token"], "t-1")
    listed = await client.list_task_push_notification_configs(
        pb.ListTaskPushNotificationConfigsRequest(task_id=id)
    )
    equal([config.id for config in listed.configs], ["c-1"])
    made = await client.create_task_push_notification_config(
        pb.TaskPushNotificationConfig(task_id=id, id="c-2", url=url)
    )
    equal((made.id, made.task_id, made.url), ("c-2", id, url))
    found = await client.get_task_push_notification_config(
        pb.GetTaskPushNotificationConfigRequest(task_id=id, id="c-2")
    )
    equal(found.url, url)
    for _ in range(2):
        await client.delete_task_push_notification_config(
            pb.DeleteTaskPushNotificationConfigRequest(task_id=id, id="c-2")
        )
    try:
        await client.get_task_push_notification_config(
            pb.GetTaskPushNotificationConfigRequest(task_id=id, id="c-2")
        )
    except TaskNotFoundError:
        pass
    else:
        raise AssertionError("a deleted webhook was found")


async def extended(client):
    card = await client.get_extended_agent_card(pb.GetExtendedAgentCardRequest())
    [extension] = [e for e in card.capabilities.extensions if e.uri == URI]
    kinds = MessageToDict(extension.params)["supported_kinds"]
    equal(len(kinds), 3)


async def obliged(factory, card):
    """Bob, with an unmodified client, gives an obligation and counts its ack."""
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(headers=headers, timeout=30) as http_client:
        client = factory(http_client, streaming=False).create(card)
        found = message("an obligation", extensions=[URI])
        obligation = {
            "obligation_id": f"ob-{BINDING}",
            "kind": "anumati.consent",
            "target": NODE,
            "payload": {"decision": "revoke", "scope": "calendar.read"},
            "deadline_seconds": 60,
            "max_retries": 600,
            "created_at": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        }
        ParseDict({URI: obligation}, found.metadata)
        parameters = ServiceParametersFactory.create([with_a2a_extensions([URI])])
        context = ClientCallContext(service_parameters=parameters)
        [event] = await events(client, found, context=context)
        equal(event.task.status.state, STATE.TASK_STATE_COMPLETED)
        ack = MessageToDict(event.task.artifacts[0].parts[0])["data"]
        equal((ack["status"], ack["obligation_id"], ack["target"]),
              ("applied", f"ob-{BINDING}", NODE))
        [again] = await events(client, found, context=context)
        equal(again.task, event.task)


async def main():
    def factory(http_client, streaming):
        config = ClientConfig(
            httpx_client=http_client, streaming=streaming, supported_protocol_bindings=[BINDING]
        )
        return ClientFactory(config)

    async with httpx.AsyncClient(timeout=30) as http_client:
        client = await factory(http_client, True).create_from_url(BASE)
        unary = await factory(http_client, False).create_from_url(BASE)
        card = client._card
        walks = 0
        done = await blocking(unary)
        for walk in (
            lambda: streamed(client),
            lambda: read_and_listed(client, done),
            lambda: asked(client, unary),
            lambda: canceled_and_subscribed(client, unary),
            lambda: pushed(client, unary),
            lambda: extended(client),
            lambda: obliged(factory, card),
        ):
            await walk()
            walks += 1
        print(f"all {walks + 1} walks done")


asyncio.run(asyncio.wait_for(main(), 100))
