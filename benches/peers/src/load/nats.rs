//! NATS JetStream: publish and its ack; deliver, effect, and an ack that is acked.

use super::effect::EffectLog;
use super::{Args, Duty, Flow, Sample};
use anyhow::Context as _;
use async_nats::jetstream::{self, consumer, stream};
use futures_util::StreamExt as _;
use std::time::Duration;
use tokio::task::JoinSet;

/// Messages whose effect is committed at once.
const CHUNK: usize = 512;

pub(super) async fn load(args: &Args) -> anyhow::Result<Sample> {
    let client = async_nats::connect(args.address()?.to_string()).await?;
    let context = jetstream::context::ContextBuilder::new()
        .max_ack_inflight(args.in_flight.max(1))
        .ack_timeout(Duration::from_secs(30))
        .build(client);
    let stream = context
        .create_stream(stream::Config {
            name: args.queue.clone(),
            subjects: vec![args.queue.clone()],
            storage: stream::StorageType::File,
            num_replicas: 1,
            ..stream::Config::default()
        })
        .await?;
    let consumer = if args.duty == Duty::Applied {
        let config = consumer::pull::Config {
            durable_name: Some("receiver".into()),
            max_ack_pending: i64::try_from(args.in_flight * 2)?,
            ..consumer::pull::Config::default()
        };
        Some(stream.create_consumer(config).await?)
    } else {
        None
    };
    let flow = Flow::new(args)?;
    let mut tasks = JoinSet::new();
    for _ in 0..args.in_flight {
        let (flow, context, queue) = (flow.clone(), context.clone(), args.queue.clone());
        let accepted = args.duty == Duty::Accepted;
        tasks.spawn(async move {
            while flow.admit(1).await? {
                let payload = flow.payload();
                context.publish(queue.clone(), payload.clone().into()).await?.await?;
                if accepted {
                    flow.done(&payload)?;
                }
            }
            Ok(())
        });
    }
    if let Some(consumer) = consumer {
        let effects = EffectLog::open(&args.dir)?;
        let messages = consumer.stream().max_messages_per_batch(args.in_flight.max(CHUNK));
        let mut chunks = messages.messages().await?.ready_chunks(CHUNK);
        let flow = flow.clone();
        tasks.spawn(async move {
            let mut acking = JoinSet::new();
            while let Some(chunk) = chunks.next().await {
                let chunk = chunk.into_iter().collect::<Result<Vec<_>, _>>()?;
                effects
                    .commit(chunk.iter().flat_map(|m| m.payload.iter().copied()).collect())
                    .await?;
                for message in chunk {
                    let flow = flow.clone();
                    acking.spawn(async move {
                        let acked = message.double_ack().await;
                        acked.map_err(|error| anyhow::anyhow!("the ack was not acked: {error}"))?;
                        flow.done(&message.payload)
                    });
                }
                while let Some(acked) = acking.try_join_next() {
                    acked??;
                }
            }
            Err(anyhow::anyhow!("the consumer has ended"))
        });
    }
    flow.run(tasks).await.context("nats")
}
