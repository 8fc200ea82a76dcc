use super::*;
use crate::a2a::types::TaskState;
use crate::clock::SystemClock;

#[tokio::test]
async fn a_webhook_made_anew_is_not_called_before_it_is_durable() {
    let (_dir, log, _failed) = crate::a2a::log::tests::log();
    let clock = Arc::new(SystemClock::starting_at_least(proto::time::Time::default()));
    let limits = A2aConfig { push_to_private: true, ..A2aConfig::default() };
    let (hooks, jobs) = (Hooks::default(), Arc::default());
    let tasks = Tasks::open(log, hooks.clone(), jobs, clock.clone(), limits.clone()).unwrap();
    let push = Push::new(tasks.clone(), hooks.clone(), clock, limits).unwrap();
    let begun = tasks.begin("s", "", |edit| edit.enter(TaskState::Submitted, None)).await;
    let task = begun.unwrap().task.id;
    let config = |url: &str| PushConfig {
        id: "w".into(),
        task_id: task.clone(),
        url: url.into(),
        ..PushConfig::default()
    };
    push.create("s", config("http://127.0.0.1:9/old")).await.unwrap();
    // The commits after this one wait for our word.
    let (word, wait) = std::sync::mpsc::channel::<()>();
    let other = SideWrite { table: SideTable::TaskEvent, key: vec![0], value: None };
    let place = tasks.log().place(vec![other]).await.unwrap();
    let _held = place.commit(move || {
        let _ = wait.recv();
    });
    let anew = push.create("s", config("http://127.0.0.1:9/new"));
    tokio::pin!(anew);
    tokio::select! {
        biased;
        _ = &mut anew => panic!("not durable yet"),
        () = std::future::ready(()) => {}
    }
    hooks.wake(&task);
    let mut calls = JoinSet::new();
    push.start_due(&mut calls);
    assert!(calls.is_empty(), "the old one is no more");
    word.send(()).unwrap();
    anew.await.unwrap();
    push.start_due(&mut calls);
    assert_eq!(calls.len(), 1);
    assert_eq!(push.get("s", &task, "w").unwrap().url, "http://127.0.0.1:9/new");
}

#[test]
fn a_webhook_is_shown_its_credentials_under_every_name() {
    let config = PushConfig {
        token: "t-1".into(),
        authentication: Some(crate::a2a::types::Authentication {
            scheme: "Bearer".into(),
            credentials: "secret".into(),
        }),
        ..PushConfig::default()
    };
    let sent = headers(&config).unwrap();
    assert_eq!(sent["authorization"], "Bearer secret");
    assert_eq!(sent["x-a2a-notification-token"], "t-1");
    assert_eq!(sent["a2a-notification-token"], "t-1");
    assert_eq!(sent["content-type"], "application/a2a+json");
    assert_eq!(headers(&PushConfig { token: "a\nb".into(), ..config }).unwrap_err(), "token");
}
