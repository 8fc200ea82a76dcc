//! A quorum queue: publish and confirm; deliver, effect, ack.

use super::effect::EffectLog;
use super::{Args, Duty, Flow, Sample};
use anyhow::Context as _;
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use tokio::task::JoinSet;

/// Channels that messages are published on.
const CHANNELS_MAX: usize = 8;
/// Messages whose effect is committed at once.
const CHUNK: usize = 512;
/// Kept on the disk.
const PERSISTENT: u8 = 2;

pub(super) async fn load(args: &Args) -> anyhow::Result<Sample> {
    let uri = format!("amqp://guest:guest@{}/%2f", args.address()?);
    let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
    let mut channels = Vec::new();
    for _ in 0..CHANNELS_MAX.min(args.in_flight) {
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        channels.push(channel);
    }
    let setup = connection.create_channel().await?;
    let mut kind = FieldTable::default();
    kind.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    setup.queue_declare(args.queue.as_str().into(), durable, kind).await?;
    let flow = Flow::new(args)?;
    let mut tasks = JoinSet::new();
    for (_, channel) in (0..args.in_flight).zip(channels.iter().cycle()) {
        let (flow, channel) = (flow.clone(), channel.clone());
        let (queue, accepted) = (args.queue.clone(), args.duty == Duty::Accepted);
        tasks.spawn(async move {
            while flow.admit(1).await? {
                let payload = flow.payload();
                let options = BasicPublishOptions { mandatory: true, ..Default::default() };
                let properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
                let confirm = channel
                    .basic_publish("".into(), queue.as_str().into(), options, &payload, properties)
                    .await?
                    .await?;
                anyhow::ensure!(matches!(confirm, Confirmation::Ack(None)), "not confirmed");
                if accepted {
                    flow.done(&payload)?;
                }
            }
            Ok(())
        });
    }
    if args.duty == Duty::Applied {
        let effects = EffectLog::open(&args.dir)?;
        let prefetch = u16::try_from(args.in_flight)?;
        setup.basic_qos(prefetch, BasicQosOptions::default()).await?;
        let options = BasicConsumeOptions::default();
        let consumer = setup
            .basic_consume(args.queue.as_str().into(), "".into(), options, FieldTable::default())
            .await?;
        let mut chunks = consumer.ready_chunks(CHUNK);
        let flow = flow.clone();
        tasks.spawn(async move {
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.into_iter().collect::<Result<Vec<_>, _>>()?;
                effects.commit(chunk.iter().flat_map(|d| d.data.clone()).collect()).await?;
                if let Some(last) = chunk.last() {
                    // AMQP does not confirm a consumer's ack: sent is the best that is known.
                    last.ack(BasicAckOptions { multiple: true }).await?;
                }
                chunk.iter().try_for_each(|delivery| flow.done(&delivery.data))?;
            }
            Err(anyhow::anyhow!("the consumer has ended"))
        });
    }
    flow.run(tasks).await.context("rabbitmq")
}
