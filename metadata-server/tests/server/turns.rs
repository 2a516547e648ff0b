//! On which thread turns run, in which order, and what becomes of the engine when one panics.

use std::{
    sync::mpsc::{Receiver, channel},
    thread::{self, JoinHandle},
    time::Duration,
};

use millrace_metadata_server::engine::{Core, Handle, StartError, StoreKind};
use millrace_types::{ErrorKind, Failure};

use crate::engine::Server;

/// Longer than any turn takes on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends a turn from a thread of its own.
fn apart<T: Send + 'static>(
    handle: &Handle,
    work: impl FnOnce(&mut Core) -> T + Send + 'static,
) -> JoinHandle<Result<T, Failure>> {
    let handle = handle.clone();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(handle.turn(move |core| Ok(work(core))))
    })
}

fn hear<T>(receiver: &Receiver<T>) -> T {
    receiver.recv_timeout(PATIENCE).unwrap()
}

#[test]
fn a_turn_that_nobody_is_before_runs_where_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    let here = thread::current().id();
    assert_eq!(server.turn(|_| thread::current().id()), here);
}

#[test]
fn turns_behind_another_run_on_the_engines_thread_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    let (began, beginning) = channel();
    let (end, ending) = channel::<()>();
    let first = apart(server.handle(), move |_| {
        began.send(()).unwrap();
        hear(&ending);
    });
    hear(&beginning);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (ran, order) = channel();
    runtime.block_on(async {
        let mut waiting = Vec::new();
        for nth in 0..3 {
            let ran = ran.clone();
            let mut turn = Box::pin(server.handle().turn(move |_| {
                ran.send((nth, thread::current().name().map(str::to_owned))).unwrap();
                Ok(())
            }));
            assert!(futures::poll!(&mut turn).is_pending(), "somebody else has the turn");
            waiting.push(turn);
        }
        end.send(()).unwrap();
        for turn in waiting {
            turn.await.unwrap();
        }
    });
    for nth in 0..3 {
        assert_eq!(hear(&order), (nth, Some("engine".to_owned())));
    }
    first.join().unwrap().unwrap();
}

#[test]
fn after_a_turn_that_panicked_nobody_gets_one_until_the_next_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::default());
    let before = server.contents();
    let panicked = apart(server.handle(), |_| panic!("on purpose"));
    assert!(panicked.join().is_err());
    for _ in 0..2 {
        let failure = server.try_turn(|_| Ok(())).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable);
    }
    assert!(matches!(server.try_stop(), Err(StartError::Panicked)));
    server.begin();
    let after = server.contents();
    let is_there = |key: &[u8]| after.0.iter().any(|pair| *pair.0 == *key);
    assert!(before.0.iter().all(|pair| is_there(&pair.0)), "what was there is there");
}
