// The official JavaScript SDK of A2A as a client, unmodified: every operation, over one binding.
//
//   client.mjs BASE_URL BINDING
//
// Ends with 0 and "all N walks done", or with the first thing that is not as it should be.
import { randomUUID } from 'node:crypto';
import http from 'node:http';
import { ClientFactory, ClientFactoryOptions } from '@a2a-js/sdk/client';

const [base, binding] = process.argv.slice(2);
// Of the SDK's enums.
const USER = 1;
const State = { working: 2, completed: 3, canceled: 5, inputRequired: 6 };

let done = 0;
const walk = (what) => console.log(++done, what);
const equal = (found, expected) => {
  const [a, b] = [JSON.stringify(found), JSON.stringify(expected)];
  if (a !== b) throw new Error(`${a} is not ${b}`);
};

const message = (texts, wish = {}, more = {}) => ({
  messageId: randomUUID(), contextId: '', taskId: '', role: USER,
  parts: texts.map((value) => ({
    content: { $case: 'text', value }, metadata: undefined, filename: '', mediaType: '',
  })),
  metadata: { 'abhyasa.echo': wish }, extensions: [], referenceTaskIds: [], ...more,
});
const params = (message, configuration) => ({ tenant: '', message, configuration, metadata: {} });
const now = { acceptedOutputModes: [], returnImmediately: true };
const said = (task) => task.artifacts[0].parts.map((part) => part.content.value);

const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  preferredTransports: [binding],
});
const client = await new ClientFactory(options).createFromUrl(base);

const echoed = await client.sendMessage(params(message(['Hello'])));
equal([echoed.status.state, said(echoed)], [State.completed, ['Hello']]);
equal((await client.getTask({ id: echoed.id, tenant: '' })).id, echoed.id);
walk('a message becomes a task with a result');

const events = [];
const slow = message(['a', 'b'], { delay_ms: 20 });
for await (const event of client.sendMessageStream(params(slow))) events.push(event.payload.$case);
equal(events, ['task', 'statusUpdate', 'artifactUpdate', 'artifactUpdate', 'statusUpdate']);
walk('a stream tells all of it');

const asked = await client.sendMessage(params(message(['?'], { ask: true })));
equal(asked.status.state, State.inputRequired);
const answer = message(['this'], {}, { taskId: asked.id, contextId: asked.contextId });
const answered = await client.sendMessage(params(answer));
equal([answered.status.state, said(answered)], [State.completed, ['this']]);
walk('the agent asks back and hears the answer');

const long = await client.sendMessage(params(message(['x'], { delay_ms: 60_000 }), now));
const rest = [];
const subscribed = (async () => {
  for await (const event of client.resubscribeTask({ id: long.id, tenant: '' })) rest.push(event.payload);
})();
while (rest.length === 0) await new Promise((resolve) => setTimeout(resolve, 10));
equal((await client.cancelTask({ id: long.id, tenant: '', metadata: {} })).status.state, State.canceled);
await subscribed;
equal(rest.at(-1).value.status.state, State.canceled);
walk('a task is subscribed to, and canceled');

const listed = await client.listTasks({
  tenant: '', contextId: '', status: 0, pageSize: 2, pageToken: '', historyLength: 0, includeArtifacts: false,
});
equal([listed.tasks.length, listed.totalSize, listed.nextPageToken !== ''], [2, 4, true]);
walk('tasks are listed by pages');

const heard = [];
let tries = 0;
const hook = http.createServer((request, response) => {
  let body = '';
  request.on('data', (chunk) => (body += chunk));
  request.on('end', () => {
    response.statusCode = ++tries === 1 ? 503 : 204; // it is tried again
    if (tries > 1) heard.push([request.headers['x-a2a-notification-token'], JSON.parse(body)]);
    response.end();
  });
});
await new Promise((resolve) => hook.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${hook.address().port}/`;
const waits = await client.sendMessage(params(message(['?'], { ask: true })));
const config = { tenant: '', id: 'hook', taskId: waits.id, url, token: 'secret', authentication: undefined };
const made = await client.createTaskPushNotificationConfig(config);
equal([made.id, made.url], ['hook', url]);
const of = { tenant: '', taskId: waits.id, id: 'hook' };
equal((await client.getTaskPushNotificationConfig(of)).token, 'secret');
const configs = await client.listTaskPushNotificationConfig({ tenant: '', taskId: waits.id, pageSize: 0, pageToken: '' });
equal(configs.configs.length, 1);
await client.sendMessage(params(message(['so'], {}, { taskId: waits.id, contextId: waits.contextId })));
const last = () => heard.at(-1)?.[1].statusUpdate?.status.state;
while (last() !== 'TASK_STATE_COMPLETED') await new Promise((resolve) => setTimeout(resolve, 20));
equal([...new Set(heard.map(([token]) => token))], ['secret']);
await client.deleteTaskPushNotificationConfig(of);
hook.close();
walk('a webhook hears of it, although it was away at first');

try {
  await client.getTask({ id: 'no-such-task', tenant: '' });
  throw new Error('found what is not there');
} catch (error) {
  if (!/does not exist|not found/i.test(error.message)) throw error;
}
walk('errors are those of A2A');

console.log(`all ${done} walks done`);
process.exit(0);
