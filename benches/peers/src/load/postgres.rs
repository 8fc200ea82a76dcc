//! An outbox table: insert; a consumer claims rows, has their effect and deletes them in one
//! transaction.

use super::{Args, Duty, Flow, Sample};
use anyhow::Context as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_postgres::{Client, Config, NoTls};

/// Rows of one claim.
const CLAIM_MAX: i64 = 512;
/// Consumers at once.
const CONSUMERS: usize = 2;
/// Between two looks at an empty table.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

async fn connect(args: &Args) -> anyhow::Result<Client> {
    let address = args.address()?;
    let mut config = Config::new();
    config.host(address.ip().to_string()).port(address.port()).user("bench").dbname("postgres");
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            eprintln!("postgres: the connection ended: {error}");
        }
    });
    Ok(client)
}

/// `batch` rows in each insert.
pub(super) async fn load(args: &Args, batch: usize) -> anyhow::Result<Sample> {
    let callers = (args.in_flight / batch).max(1);
    let mut connections = Vec::new();
    for _ in 0..args.connections(callers) {
        connections.push(Arc::new(connect(args).await?));
    }
    let table = &args.queue;
    let setup = connect(args).await?;
    setup
        .batch_execute(&format!(
            "create table {table}(id bigserial primary key, p bytea not null);
             create table {table}_effects(id bigint primary key, p bytea not null)"
        ))
        .await?;
    let flow = Flow::new(args)?;
    let mut tasks = JoinSet::new();
    let insert = if batch == 1 {
        format!("insert into {table}(p) values ($1)")
    } else {
        format!("insert into {table}(p) select unnest($1::bytea[])")
    };
    for (_, connection) in (0..callers).zip(connections.iter().cycle()) {
        let (flow, connection, duty) = (flow.clone(), connection.clone(), args.duty);
        let insert = insert.clone();
        tasks.spawn(async move {
            let insert = connection.prepare(&insert).await?;
            while flow.admit(batch).await? {
                let payload = flow.payload();
                if batch == 1 {
                    connection.execute(&insert, &[&payload]).await?;
                } else {
                    let payloads = vec![payload.as_slice(); batch];
                    connection.execute(&insert, &[&payloads]).await?;
                }
                for _ in 0..if duty == Duty::Accepted { batch } else { 0 } {
                    flow.done(&payload)?;
                }
            }
            Ok(())
        });
    }
    if args.duty == Duty::Applied {
        for _ in 0..CONSUMERS.min(args.in_flight) {
            let (flow, client) = (flow.clone(), connect(args).await?);
            let apply = client
                .prepare(&format!(
                    "with claimed as (
                       delete from {table} where id in (
                         select id from {table} order by id limit {CLAIM_MAX}
                         for update skip locked) returning id, p)
                     insert into {table}_effects select id, p from claimed returning p"
                ))
                .await?;
            tasks.spawn(async move {
                loop {
                    let applied = client.query(&apply, &[]).await?;
                    if applied.is_empty() {
                        tokio::time::sleep(LOOK_AGAIN).await;
                    }
                    for row in applied {
                        flow.done(row.try_get(0)?)?;
                    }
                }
            });
        }
    }
    flow.run(tasks).await.context("postgres")
}
