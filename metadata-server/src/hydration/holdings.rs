//! What targets hold of files. Each is asked only of files that may lie on it.
//!
//! Nothing is assumed of a target that does not answer. Within one inquiry it is waited for once,
//! however many pages of files there are, and not at all where the server knows that it is away.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use futures::{StreamExt, stream};
use millrace_protocol::{
    admin::TargetState,
    cluster::Map,
    known_state::SilentTarget,
    target::{ContentName, Presence, Present},
};
use millrace_types::{ErrorKind, Failure, InodeId, TargetId};

use super::{
    environment::Environment,
    spread::{Place, places_left},
    state,
};
use crate::namespace::{Body, Inode};

/// How long one target may take to count.
pub(super) const PRESENCE_TIMEOUT: Duration = Duration::from_secs(30);

/// The same of one whose heartbeats are late: most of those are gone, and some only short of time.
const LATE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long one target may take to count a single file: a program waits for the answer.
const FILE_TIMEOUT: Duration = Duration::from_secs(5);

/// Targets that are asked at the same time.
pub(super) const TARGETS_AT_ONCE: usize = 64;

/// How long targets are waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Of which heartbeats come.
    sound: Duration,
    /// Whose heartbeats are late, or have not come since the server's start: they may be away.
    late: Duration,
}

impl Patience {
    /// For sums of trees, which say whose part they lack.
    pub(super) const REPORT: Self = Self { sound: PRESENCE_TIMEOUT, late: LATE_TIMEOUT };

    /// For a single file.
    pub(super) const FILE: Self = Self { sound: FILE_TIMEOUT, late: FILE_TIMEOUT };

    /// For what is refused without the answer: a daemon that is started again is waited for.
    pub(super) const DECISION: Self = Self { sound: PRESENCE_TIMEOUT, late: PRESENCE_TIMEOUT };
}

/// What is known of one file.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Held {
    /// What the targets that answered hold of it.
    pub(super) present: Present,
    /// One that may hold some of it, and did not answer.
    pub(super) silent: Option<TargetId>,
}

/// Questions to targets for one request or decision.
#[derive(Debug)]
pub(super) struct Inquiry {
    map: Map,
    standing: BTreeMap<TargetId, TargetState>,
    patience: Patience,
    silent: BTreeMap<TargetId, Silence>,
}

/// A target that does not answer.
#[derive(Debug)]
struct Silence {
    failure: Failure,
    /// Files that were asked for and may lie on it.
    files: u64,
}

impl Inquiry {
    /// Over the targets that there are now.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn new<E: Environment>(
        environment: &E,
        patience: Patience,
    ) -> Result<Self, Failure> {
        let (map, standing) = (environment.map().await?, environment.standing().await?);
        Ok(Self { map, standing, patience, silent: BTreeMap::new() })
    }

    /// What the targets that some files lie on hold of each: at most 4,096.
    pub(super) async fn held<E: Environment>(
        &mut self,
        environment: &E,
        files: &[&Inode],
    ) -> HashMap<InodeId, Held> {
        let (mut held, named) = self.named(files);
        let mut asks = Vec::new();
        for (place, names) in named {
            match self.timeout(place.target) {
                Ok(timeout) => asks.push((place, names, timeout)),
                Err(failure) => self.handle_silence(place.target, failure, &names, &mut held),
            }
        }
        let asked = stream::iter(asks).map(|(place, names, timeout)| async move {
            let answer = ask(environment, place, &names, timeout).await;
            (place, names, answer)
        });
        let mut answers = asked.buffer_unordered(TARGETS_AT_ONCE);
        while let Some((place, names, answer)) = answers.next().await {
            match answer {
                Ok(parts) => {
                    for (name, part) in names.iter().zip(&parts) {
                        if let Some(one) = held.get_mut(&name.inode) {
                            state::add(&mut one.present, part);
                        }
                    }
                }
                Err(failure) => self.handle_silence(place.target, failure, &names, &mut held),
            }
        }
        held
    }

    /// Which contents each place is asked of.
    fn named(
        &self,
        files: &[&Inode],
    ) -> (HashMap<InodeId, Held>, BTreeMap<Place, Vec<ContentName>>) {
        let mut held = HashMap::new();
        let mut named: BTreeMap<Place, Vec<ContentName>> = BTreeMap::new();
        for file in files {
            let Body::File(body) = &file.body else { continue };
            // A file of several names may come with each of them, and is counted once.
            if held.insert(file.id, Held::default()).is_some() {
                continue;
            }
            let name = ContentName { inode: file.id, generation: body.generation };
            for place in places_left(&self.map, &body.layout, file.size) {
                named.entry(place).or_default().push(name);
            }
        }
        (held, named)
    }

    /// How long a target is waited for.
    ///
    /// # Errors
    /// Why it is not asked: it was in vain before, or would be.
    fn timeout(&self, target: TargetId) -> Result<Duration, Failure> {
        if let Some(silence) = self.silent.get(&target) {
            return Err(silence.failure.clone());
        }
        match self.standing.get(&target) {
            Some(TargetState::Online) => Ok(self.patience.sound),
            Some(TargetState::Joining | TargetState::Suspect) | None => Ok(self.patience.late),
            Some(TargetState::Offline) => {
                let words = "it is offline; `millrace status` tells operators what helps";
                Err(Failure::new(ErrorKind::Unavailable, words))
            }
        }
    }

    fn handle_silence(
        &mut self,
        target: TargetId,
        failure: Failure,
        names: &[ContentName],
        held: &mut HashMap<InodeId, Held>,
    ) {
        for name in names {
            if let Some(one) = held.get_mut(&name.inode) {
                one.silent = Some(target);
            }
        }
        let silence = self.silent.entry(target).or_insert(Silence { failure, files: 0 });
        silence.files += names.len() as u64;
    }

    /// What the targets that a file lies on hold of it.
    ///
    /// # Errors
    /// That one of them does not answer.
    pub(super) async fn held_of<E: Environment>(
        &mut self,
        environment: &E,
        file: &Inode,
    ) -> Result<Present, Failure> {
        let held = self.held(environment, &[file]).await;
        let held = held.get(&file.id).copied().unwrap_or_default();
        let silence = held.silent.and_then(|target| Some((target, self.silent.get(&target)?)));
        match silence {
            Some((target, Silence { failure, .. })) => Err(silent(target, failure)),
            None => Ok(held.present),
        }
    }

    /// The targets that did not answer.
    pub(super) fn silent_targets(&self) -> Vec<SilentTarget> {
        let all = self.silent.iter().map(|(target, silence)| SilentTarget {
            target: *target,
            files: silence.files,
            reason: reason(&silence.failure),
        });
        all.collect()
    }
}

async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    names: &[ContentName],
    timeout: Duration,
) -> Result<Vec<Present>, Failure> {
    let request = Presence { target: place.target, contents: names.to_vec() };
    let reply = environment.ask(place.host, request, timeout).await?;
    match reply.present.len() == names.len() {
        true => Ok(reply.present),
        false => Err(ErrorKind::Protocol.into()),
    }
}

/// That a target does not answer, for people.
pub(super) fn silent(target: TargetId, failure: &Failure) -> Failure {
    let words = format!("target {target} does not say what it holds: {}", reason(failure));
    Failure::new(failure.kind, words)
}

/// What a failure says, to be put behind other words.
pub(super) fn reason(failure: &Failure) -> String {
    match failure.message.is_empty() {
        true => failure.kind.to_string(),
        false => failure.message.clone(),
    }
}
