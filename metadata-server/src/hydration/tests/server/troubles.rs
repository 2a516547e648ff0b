//! What goes wrong around jobs: others change files meanwhile, queries take long, and there is no
//! room for what is to be recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_protocol::{
    admin::{JobState, TargetState},
    capability::Origin,
};
use millrace_types::{ChunkIndex, ErrorKind, Failure, InodeId, TargetId, Timestamp};
use tokio::sync::{Notify, watch};

use super::{SECOND, SESSION, TestServer, World};
use crate::{
    command::{self, Command, FoundObject, ObserveObject, Opener, UpdateJob},
    hydration::{Environment, spread::place_of},
    namespace::tree,
    targets::map,
};

#[derive(Debug, Default)]
pub(in crate::hydration::tests) struct Troubles {
    /// What happens before contents are next named for good.
    pub(in crate::hydration::tests) before_named: Mutex<Vec<Command>>,
    /// What happens between a look at names and the command that forgets them, once.
    pub(in crate::hydration::tests) before_forgotten: Mutex<Vec<Command>>,
    /// What happens when a target is next asked to drop something, for which it is too busy.
    pub(in crate::hydration::tests) instead_of_release: Mutex<Vec<Command>>,
    /// How long each query takes.
    pub(in crate::hydration::tests) query_time: Mutex<Duration>,
    /// States of jobs for which there is no room.
    pub(in crate::hydration::tests) unrecorded: Mutex<Vec<JobState>>,
    /// A directory for whose names there is no room.
    pub(in crate::hydration::tests) unlistable: Mutex<Option<InodeId>>,
    /// Why targets do not say what they hold.
    pub(in crate::hydration::tests) unknown: Mutex<Option<ErrorKind>>,
    /// Targets that do not answer what they hold.
    pub(in crate::hydration::tests) away: Mutex<BTreeSet<TargetId>>,
    /// How targets stand by their heartbeats, where the server knows that.
    pub(in crate::hydration::tests) standing: Mutex<BTreeMap<TargetId, TargetState>>,
    /// The targets that were asked what they hold, in their order.
    pub(in crate::hydration::tests) asked: Mutex<Vec<TargetId>>,
    /// Told whenever there was none.
    pub(in crate::hydration::tests) refused: Notify,
    /// States of jobs that were to be recorded, in their order.
    pub(in crate::hydration::tests) job_states: Mutex<Vec<JobState>>,
    /// What reports must leave free of their disk.
    pub(in crate::hydration::tests) reports_keep_free: AtomicU64,
    /// Targets are from before they told what buckets say of small objects, and tried to read.
    pub(in crate::hydration::tests) are_older: AtomicBool,
    /// A snapshot of the metadata runs short of memory.
    pub(in crate::hydration::tests) pressed: watch::Sender<bool>,
    /// Told whenever somebody begins to wait for the end of that.
    pub(in crate::hydration::tests) held_up: Notify,
    /// Lets one of those go on, until it waits again.
    pub(in crate::hydration::tests) let_on: Notify,
}

impl Troubles {
    /// Refuses what there is no room for.
    pub(super) fn check(&self, command: &Command) -> Result<(), Failure> {
        if let Command::ImportEntries(import) = command
            && *self.unlistable.lock().unwrap() == Some(import.directory)
        {
            return Err(ErrorKind::NoSpace.into());
        }
        let Command::UpdateJob(UpdateJob { state: Some(state), .. }) = command else {
            return Ok(());
        };
        self.job_states.lock().unwrap().push(*state);
        if !self.unrecorded.lock().unwrap().contains(state) {
            return Ok(());
        }
        self.refused.notify_one();
        Err(ErrorKind::NoSpace.into())
    }

    /// What happens before a command.
    pub(super) fn before(&self, command: &Command) -> Vec<Command> {
        match command {
            Command::ForgetEntries(_) | Command::ForgetSaved(_) => {
                mem::take(&mut *self.before_forgotten.lock().unwrap())
            }
            _ => Vec::new(),
        }
    }

    /// Whether a target says what it holds.
    pub(super) fn check_known(&self, target: TargetId) -> Result<(), Failure> {
        self.asked.lock().unwrap().push(target);
        if self.away.lock().unwrap().contains(&target) {
            return Err(ErrorKind::Unavailable.into());
        }
        self.unknown.lock().unwrap().map_or(Ok(()), |kind| Err(kind.into()))
    }

    /// Waits while a snapshot runs short of memory.
    pub(super) async fn give_way(&self) {
        let mut pressed = self.pressed.subscribe();
        if *pressed.borrow() {
            self.held_up.notify_one();
        }
        tokio::select! {
            ended = pressed.wait_for(|pressed| !pressed) => drop(ended),
            () = self.let_on.notified() => {}
        }
    }

    /// Takes the time of a query.
    pub(super) async fn take_time(&self) {
        let time = *self.query_time.lock().unwrap();
        if !time.is_zero() {
            tokio::time::sleep(time).await;
        }
    }
}

impl TestServer {
    /// Has files that are imported from now on begin on a target.
    pub(in crate::hydration::tests) fn import_to(&self, target: TargetId) {
        // Groups are served by the two in turn, and the upper half of a number is a layout's seed.
        let seed = u64::from(target == SECOND);
        let lower = self.random.load(Ordering::Relaxed) & u64::from(u32::MAX);
        self.random.store((seed << 32) | lower, Ordering::Relaxed);
    }

    /// The target of a file's first chunk.
    pub(super) fn begins_on(&self, inode: InodeId) -> Option<TargetId> {
        let store = self.store.lock().unwrap();
        let content = tree::find(&*store, inode).unwrap()?.content()?;
        let map = map::read(&*store).unwrap();
        Some(place_of(&map, &content.layout, ChunkIndex(0)).ok()?.target)
    }

    /// Does what is to happen meanwhile, once; whether that was anything.
    pub(super) async fn meanwhile(&self, what: &Mutex<Vec<Command>>) -> bool {
        let commands = mem::take(&mut *what.lock().unwrap());
        let is_any = !commands.is_empty();
        for command in commands {
            self.execute(command, false).await.unwrap();
        }
        is_any
    }
}

/// What happens when somebody opens and closes a file for writing.
pub(in crate::hydration::tests) fn writing(inode: InodeId) -> [Command; 2] {
    let opener = Opener { session: SESSION, inode };
    let open = command::OpenWrite { caller: None, opener, truncate: false };
    [Command::OpenWrite(open), Command::CloseWrite(opener)]
}

impl World {
    /// What makes a conflict of a clean file: somebody writes to it, and its object is another.
    pub(in crate::hydration::tests) async fn conflicting(&self, path: &str) -> Vec<Command> {
        let inode = self.find(path).await.unwrap();
        let origin = inode.content().unwrap().origin.unwrap();
        let known = Some(origin.tag.clone());
        let origin = Origin { tag: "another version".to_owned(), ..origin };
        let found = Some(FoundObject { origin, modified: Timestamp(1) });
        let observe = ObserveObject { inode: inode.id, known, found };
        let [open, close] = writing(inode.id);
        vec![open, close, Command::ObserveObject(observe)]
    }
}
