//! An A2A agent behind the node, over HTTP or behind another node: gets each message once, and its
//! tasks are followed over lost connections and restarts of the node.
//!
//! The agent has task ids of its own; ours map to them. That a message is about to be sent is durable
//! before it is. When the node goes down between that and the agent's first word, nobody knows
//! whether the agent has it: the task fails and says so, since A2A has no way to ask. Another node
//! takes a message of a name once, so to it the message is sent again.

mod agent;
mod body;
mod consent;
mod http;
mod http3;
mod memory;
mod moqt;
mod quic;

pub(crate) use agent::Agent;

use super::{Backend, Doing, Profile, Turn, artifact};
use crate::a2a::fault::{Fault, Kind};
use crate::a2a::record::Record;
use crate::a2a::types::{StreamResponse, Task, TaskState};
use crate::acap::Caller;
use agent::{Answers, Ask, Interface, Lost, Said, read_card};
use memory::{Memory, question, rests, take_status, take_task};
use proto::backoff::Backoff;
use proto::id::AgentId;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long an agent card is used before it is fetched again.
const CARD_FRESH: Duration = Duration::from_secs(30);
/// How long fetching one may take; then the one before is used.
const CARD_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a short call may take: one that does not wait for the agent's work.
const CALL_TIME_MAX: Duration = Duration::from_secs(10);
/// How often an agent that is away, or tells nothing by itself, is asked.
const ASK_AGAIN: Backoff = Backoff { base_ms: 250, cap_ms: 5_000, jitter_permille: 200 };
/// Steps of that backoff, for an agent that does answer.
const ASK_AGAIN_STEPS: u32 = 4;
/// What the task says when nobody can know.
const IN_DOUBT: &str = "the node went down while this was being given to the agent: whether the agent has it is not known";

/// The agent.
#[derive(Debug)]
pub(crate) struct Proxy {
    agent: Agent,
    silent_max: Duration,
    card: Mutex<Card>,
    /// Whose consent is needed before a message goes to the agent, and whose policy it is.
    governed: Option<(Arc<Caller>, AgentId)>,
}

/// What was last heard of the agent's card.
#[derive(Clone, Debug, Default)]
struct Card {
    asked: Option<Instant>,
    profile: Arc<Profile>,
    interface: Option<Interface>,
}

/// How far the agent's task was heard.
#[derive(Clone, Debug, Default)]
struct At {
    /// The agent's id of it, once it is known.
    task: Option<String>,
    /// Number of its last event.
    event: Option<u64>,
}

impl Proxy {
    pub(crate) fn new(
        agent: Agent,
        silent_max: Duration,
        governed: Option<(Arc<Caller>, AgentId)>,
    ) -> Self {
        Self { agent, silent_max, card: Mutex::default(), governed }
    }

    fn card(&self) -> MutexGuard<'_, Card> {
        self.card.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The card, fetched again when it is old. While the agent is away the last one stands.
    async fn look(&self) -> Card {
        {
            let mut card = self.card();
            if card.asked.is_some_and(|asked| asked.elapsed() < CARD_FRESH) {
                return card.clone();
            }
            card.asked = Some(Instant::now()); // one asks, the others use what there is
        }
        match tokio::time::timeout(CARD_TIME_MAX, self.agent.card()).await {
            Ok(Ok(found)) => {
                let (profile, interface) = read_card(&found, self.agent.binding());
                let mut card = self.card();
                card.profile = Arc::new(profile);
                card.interface = interface;
            }
            Ok(Err(error)) => tracing::warn!(agent = %self.agent, error = error.text(), "no card"),
            Err(_) => tracing::warn!(agent = %self.agent, "no card in time"),
        }
        self.card().clone()
    }

    /// Where the agent takes calls, asked for until it is there.
    async fn interface(&self) -> Result<Interface, Fault> {
        let begun = Instant::now();
        for attempt in 0u32.. {
            if let Some(interface) = self.look().await.interface {
                return Ok(interface);
            }
            if begun.elapsed() >= self.silent_max {
                break;
            }
            self.card().asked = None;
            pause(attempt).await;
        }
        let (agent, binding) = (&self.agent, self.agent.binding());
        Err(invalid(format!("the agent at {agent} shows no card with {binding} of A2A 1.0")))
    }

    async fn ask(
        &self,
        record: &Record,
        method: &str,
        mut params: Value,
        after: Option<u64>,
        key: Option<String>,
    ) -> Result<Answers, Lost> {
        let Some(interface) = self.look().await.interface else {
            self.card().asked = None; // the next looks anew
            return Err(Lost::Unreached("it has no card".to_owned()));
        };
        if let Some(params) = params.as_object_mut().filter(|_| !interface.tenant.is_empty()) {
            params.insert("tenant".to_owned(), interface.tenant.clone().into());
        }
        let extensions = &record.asked.extensions;
        self.agent.ask(&interface, Ask { method, params, extensions, after, key }).await
    }

    /// A call that is answered at once.
    async fn call(&self, record: &Record, method: &str, params: Value) -> Result<Value, Lost> {
        let answer = async {
            let mut answers = self.ask(record, method, params, None, None).await?;
            let said = answers.next().await?;
            said.ok_or_else(|| Lost::Broken("it said nothing".to_owned()))
        };
        match tokio::time::timeout(CALL_TIME_MAX, answer).await {
            Ok(answer) => Ok(answer?.result),
            Err(_) => Err(Lost::Broken("it takes too long".to_owned())),
        }
    }

    /// The agent's task as it is. `None` for now: what is lost is asked for again, and `heard` is when
    /// the agent was last heard.
    async fn find(
        &self,
        turn: &Turn,
        task: &str,
        heard: &mut Instant,
    ) -> Result<Option<Task>, Fault> {
        match self.call(&turn.record, "GetTask", json!({ "id": task })).await {
            Ok(found) => {
                *heard = Instant::now();
                let found = serde_json::from_value(found);
                found.map(Some).map_err(|error| invalid(format!("no task: {error}")))
            }
            Err(lost) => self.lost(lost, *heard).map(|()| None),
        }
    }

    /// Whether what is lost may be asked for again, or is the end of the task.
    fn lost(&self, lost: Lost, heard: Instant) -> Result<(), Fault> {
        match lost {
            Lost::Refused { code: -32001, .. } => {
                Err(invalid("the agent does not know its task any more".to_owned()))
            }
            lost if heard.elapsed() >= self.silent_max => Err(invalid(lost.text())),
            _ => Ok(()),
        }
    }

    async fn answer(&self, turn: &Turn) -> Result<(), Fault> {
        let memory = Memory::of(&turn.record);
        let mut at = At { task: memory.task.clone(), event: turn.record.seen };
        let mut answered = memory.answered_in(turn.record.turn);
        let is_sent = memory.is_sent(turn.record.turn);
        let in_doubt = is_sent && (at.task.is_none() || answered.is_some());
        if !is_sent || in_doubt && self.agent.is_node() {
            let interface = self.interface().await?;
            if !is_sent && self.ended_meanwhile(turn, &mut at).await? {
                return Ok(());
            }
            match self.give(turn, memory, interface.streams, &mut at).await? {
                Given::Over => return Ok(()),
                Given::Heard => answered = None, // so it has it
                Given::Lost => {}
            }
        } else if at.task.is_none() {
            return Err(Fault::new(Kind::Internal, IN_DOUBT));
        }
        self.follow(turn, at, answered).await
    }

    /// Looks how the agent's task is before it is told more: since it asked it may have gone on, or
    /// ended. Whether it ended, which is told then. What it is at work on it is not disturbed in.
    async fn ended_meanwhile(&self, turn: &Turn, at: &mut At) -> Result<bool, Fault> {
        let Some(task) = at.task.clone() else { return Ok(false) };
        let mut heard = Instant::now();
        for attempt in 0u32.. {
            match self.find(turn, &task, &mut heard).await? {
                Some(found) if found.status.state.is_terminal() => {
                    return self.heard(turn, StreamResponse::Task(found), None, at).await;
                }
                Some(found) if found.status.state.is_interrupted() => break,
                Some(_) => pause(attempt.min(ASK_AGAIN_STEPS)).await,
                None => pause(attempt).await,
            }
        }
        Ok(false)
    }

    /// Gives the agent the message, which is known to be about to happen before it does.
    async fn give(
        &self,
        turn: &Turn,
        memory: Memory,
        streams: bool,
        at: &mut At,
    ) -> Result<Given, Fault> {
        let mut message = turn.message.clone();
        if !self.may_go(turn, &mut message).await? {
            return Ok(Given::Over);
        }
        message.task_id = memory.task.clone().unwrap_or_default();
        message.context_id = memory.context.clone().unwrap_or_default();
        turn.tell(|edit| {
            Memory { sent: Some(turn.record.turn), ..memory }.keep(edit);
            if edit.record.state() != TaskState::Working {
                edit.status(TaskState::Working, None);
            }
        })
        .await?;
        let method = if streams { "SendStreamingMessage" } else { "SendMessage" };
        let mut params = json!({ "message": message });
        if let (Some(params), Some(metadata)) =
            (params.as_object_mut(), &turn.record.asked.metadata)
        {
            params.insert("metadata".to_owned(), Value::Object(metadata.clone()));
        }
        let begun = Instant::now();
        for attempt in 0u32.. {
            match self.send(turn, method, params.clone(), at).await {
                Ok(given) => return Ok(given),
                // It has nothing of the message, or takes it once: the only cases in which it is sent again.
                Err(Lost::Unreached(_)) if begun.elapsed() < self.silent_max => {
                    pause(attempt).await;
                }
                Err(Lost::Broken(_))
                    if self.agent.is_node() && begun.elapsed() < self.silent_max =>
                {
                    pause(attempt).await;
                }
                Err(lost) => return Err(invalid(lost.text())),
            }
        }
        Ok(Given::Lost)
    }

    /// Sends the message, and hears what the agent says to it.
    async fn send(
        &self,
        turn: &Turn,
        method: &str,
        params: Value,
        at: &mut At,
    ) -> Result<Given, Lost> {
        let key = format!("{}-{}", turn.record.task.id, turn.record.turn);
        let mut answers = self.ask(&turn.record, method, params, None, Some(key)).await?;
        let mut given = Given::Lost;
        loop {
            match answers.next().await {
                Ok(Some(said)) => match self.take(turn, said, at).await {
                    Ok(true) => return Ok(Given::Over),
                    Ok(false) => given = Given::Heard,
                    Err(fault) => return Err(Lost::Untaken(fault.message().to_owned())),
                },
                Ok(None) if at.task.is_none() => {
                    return Err(Lost::Broken("it said nothing".to_owned()));
                }
                Ok(None) => return Ok(given),
                Err(lost @ Lost::Refused { .. }) => return Err(lost),
                Err(lost) if at.task.is_none() => return Err(lost),
                Err(lost) if given == Given::Lost && self.agent.is_node() => return Err(lost),
                Err(_) => return Ok(given),
            }
        }
    }

    /// Follows a task of the agent to the end of the turn. One that goes on asking what was answered
    /// in this turn may not have the answer.
    async fn follow(
        &self,
        turn: &Turn,
        mut at: At,
        mut answered: Option<String>,
    ) -> Result<(), Fault> {
        let Some(task) = at.task.clone() else {
            return Err(Fault::new(Kind::Internal, IN_DOUBT));
        };
        let begun = Instant::now();
        let (mut heard, mut attempt, mut in_doubt) = (begun, 0u32, false);
        loop {
            let Some(Interface { streams, .. }) = self.look().await.interface else {
                self.card().asked = None; // the next looks anew
                self.lost(Lost::Unreached("it has no card".to_owned()), heard)?;
                pause(attempt).await;
                attempt += 1;
                continue;
            };
            // Behind the last event that was heard nothing is missed, and nothing comes twice.
            let after = at.event.filter(|_| streams && self.agent.is_node());
            if after.is_none() || answered.is_some() || in_doubt {
                let Some(found) = self.find(turn, &task, &mut heard).await? else {
                    pause(attempt).await;
                    attempt += 1;
                    continue;
                };
                if answered.is_some() && question(&found.status) == answered {
                    if begun.elapsed() >= CALL_TIME_MAX {
                        return Err(Fault::new(Kind::Internal, IN_DOUBT));
                    }
                    pause(attempt).await;
                    attempt += 1;
                    continue;
                }
                answered = None;
                let found = StreamResponse::Task(found);
                if after.is_none() && self.heard(turn, found, None, &mut at).await? {
                    return Ok(());
                }
            }
            if streams {
                let (over, words) = self.subscribe(turn, &task, after, &mut at).await?;
                match (over, words) {
                    (Some(true), _) => return Ok(()),
                    // There is nothing behind that event, and yet it was not the last.
                    (Some(false), 0) if after.is_some() => at.event = None,
                    _ => {}
                }
                in_doubt = over.is_none();
                if words > 0 {
                    (heard, attempt) = (Instant::now(), 0);
                }
            }
            pause(attempt.min(ASK_AGAIN_STEPS)).await;
            attempt += 1;
        }
    }

    /// Hears events of the agent's task, as long as they come: whether the turn is over, or `None`
    /// when the stream was lost; and how many came.
    async fn subscribe(
        &self,
        turn: &Turn,
        task: &str,
        after: Option<u64>,
        at: &mut At,
    ) -> Result<(Option<bool>, usize), Fault> {
        let params = json!({ "id": task });
        let mut words = 0;
        let Ok(mut answers) = self.ask(&turn.record, "SubscribeToTask", params, after, None).await
        else {
            return Ok((None, words));
        };
        loop {
            match answers.next().await {
                Ok(Some(said)) => {
                    words += 1;
                    if self.take(turn, said, at).await? {
                        return Ok((Some(true), words));
                    }
                }
                Ok(None) => return Ok((Some(false), words)),
                Err(_) => return Ok((None, words)),
            }
        }
    }

    /// Takes one result; whether the turn is over.
    async fn take(&self, turn: &Turn, said: Said, at: &mut At) -> Result<bool, Fault> {
        let event = serde_json::from_value(said.result)
            .map_err(|error| invalid(format!("no event: {error}")))?;
        self.heard(turn, event, said.event, at).await
    }

    /// Takes one event of the agent, of this number if it has one; whether the turn is over. What is
    /// heard and that it was become durable at once.
    async fn heard(
        &self,
        turn: &Turn,
        event: StreamResponse,
        number: Option<u64>,
        at: &mut At,
    ) -> Result<bool, Fault> {
        let of = match &event {
            StreamResponse::Task(found) => &found.id,
            StreamResponse::StatusUpdate(update) => &update.task_id,
            StreamResponse::ArtifactUpdate(update) => &update.task_id,
            StreamResponse::Message(message) => &message.task_id,
        };
        if at.task.as_ref().is_some_and(|task| !of.is_empty() && task != of) {
            return Err(invalid("the agent told of another task than was asked for".to_owned()));
        }
        let whole = matches!(&event, StreamResponse::Task(_));
        if let StreamResponse::Task(found) = &event {
            at.task = Some(found.id.clone());
        }
        let over = match &event {
            StreamResponse::Task(found) => rests(found.status.state),
            StreamResponse::StatusUpdate(update) => rests(update.status.state),
            StreamResponse::ArtifactUpdate(_) => false,
            StreamResponse::Message(_) => true,
        };
        turn.tell(|edit| {
            // Behind which event a whole task without a number is nobody knows.
            edit.record.seen = if whole { number } else { number.or(edit.record.seen) };
            match event {
                StreamResponse::Task(found) => take_task(edit, found),
                StreamResponse::StatusUpdate(update) => take_status(edit, update.status),
                StreamResponse::ArtifactUpdate(update) => {
                    edit.artifact(update.artifact, update.append, update.last_chunk);
                }
                StreamResponse::Message(message) => {
                    edit.artifact(artifact("answer", message.parts), false, true);
                    edit.status(TaskState::Completed, None);
                }
            }
        })
        .await?;
        at.event = if whole { number } else { number.or(at.event) };
        Ok(over)
    }
}

/// What came of giving the agent a message.
#[derive(Debug, PartialEq)]
enum Given {
    /// The turn is over.
    Over,
    /// It said something to it, and goes on.
    Heard,
    /// It has a task that the message is for, and said nothing to it.
    Lost,
}

fn invalid(why: String) -> Fault {
    Fault::new(Kind::InvalidAgentResponse, why)
}

async fn pause(attempt: u32) {
    tokio::time::sleep(Duration::from_millis(ASK_AGAIN.delay_ms(attempt, u64::from(attempt))))
        .await;
}

impl Backend for Proxy {
    fn run(&self, turn: Turn) -> Doing<'_, Result<(), Fault>> {
        Box::pin(async move {
            tokio::select! {
                biased;
                // While it waits for an authorization the client may say more.
                () = turn.superseded() => Ok(()),
                answered = self.answer(&turn) => answered,
            }
        })
    }

    fn cancel<'a>(&'a self, record: &'a Record) -> Doing<'a, Result<(), Fault>> {
        Box::pin(async move {
            let goes_on = |what: String| {
                Err(Fault::new(Kind::TaskNotCancelable, what).with("taskId", &record.task.id))
            };
            let memory = Memory::of(record);
            let is_sent = memory.is_sent(record.turn);
            let Some(task) = memory.task else {
                if is_sent {
                    let what = "the agent is being given the message, and has not named its task yet; try again";
                    return goes_on(what.to_owned());
                }
                return Ok(()); // it has nothing of it
            };
            match self.call(record, "CancelTask", json!({ "id": task })).await {
                Ok(found) => match serde_json::from_value::<Task>(found) {
                    Ok(found) if found.status.state == TaskState::Canceled => Ok(()),
                    _ => {
                        goes_on("the agent took the wish and has not canceled its task".to_owned())
                    }
                },
                Err(Lost::Refused { code: -32001, .. }) => Ok(()),
                Err(Lost::Refused { message, .. }) => goes_on(message),
                Err(lost) => Err(Fault::new(Kind::Unavailable, lost.text())),
            }
        })
    }

    fn profile(&self) -> Doing<'_, Arc<Profile>> {
        Box::pin(async {
            let profile = self.look().await.profile;
            if profile.skills.is_empty() {
                // Before the agent was ever there. A card needs a skill.
                let skill = json!({
                    "id": "agent", "name": "Agent", "tags": ["agent"],
                    "description": "The agent behind this node, which has not shown its card yet."
                });
                return Arc::new(Profile { skills: vec![skill], ..(*profile).clone() });
            }
            profile
        })
    }
}
