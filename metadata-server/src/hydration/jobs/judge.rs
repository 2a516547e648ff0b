//! Which files are in the states that a job looks at: judged when it comes to them, some at a time.
//!
//! The states are those that `millrace state` tells. What the inode says comes first; targets are
//! asked only about files of which what they hold decides.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use futures::{StreamExt as _, stream};
use millrace_protocol::{
    admin::FileState,
    target::{ContentName, Presence, Present},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};
use tokio::time::Instant;

use super::{
    Context, Environment,
    dispatch::{Attempts, RELEASE_ATTEMPTS},
    sources::{Subject, Unfound},
};
use crate::{
    hydration::{
        holdings::{PRESENCE_TIMEOUT, TARGETS_AT_ONCE, silent},
        import::broken,
        spread::{Place, all_places_of},
        state,
    },
    namespace::{Body, FileBody, Inode, ObjectState, tree},
    store::{View, keys},
};

/// Files that are judged at once: few, so that little happens between that and the work on them.
pub(super) const JUDGED_MAX: usize = 64;

/// How long a target that was waited for in vain is not asked again: what needs it fails at once
/// meanwhile, so that one that is gone does not hold up all the others.
const SILENCE: Duration = Duration::from_secs(30);

/// Judges files.
#[derive(Debug, Default)]
pub(super) struct Judge {
    silent: Silent,
}

/// Targets that were waited for in vain: why, and until when they are not asked.
#[derive(Debug, Default)]
struct Silent(BTreeMap<Place, (Failure, Instant)>);

impl Silent {
    /// How often a target is asked now.
    ///
    /// # Errors
    /// Why it was waited for in vain, if that was a moment ago.
    fn attempts(&self, place: &Place, now: Instant) -> Result<u32, Failure> {
        match self.0.get(place) {
            Some((failure, until)) if now < *until => Err(failure.clone()),
            Some(_) => Ok(1),
            None => Ok(RELEASE_ATTEMPTS),
        }
    }

    fn handle_silence(&mut self, place: Place, failure: Failure, now: Instant) {
        self.0.insert(place, (failure, now + SILENCE));
    }

    fn handle_answer(&mut self, place: &Place) {
        self.0.remove(place);
    }
}

/// What is known of a file without its targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Wanted,
    Unwanted,
    /// It depends on what they hold.
    Open,
}

impl Judge {
    /// Those of some inodes that the job works on, as they are now. What cannot be judged has
    /// failed.
    pub(super) async fn choose<E: Environment>(
        &mut self,
        context: &Context<'_, E>,
        states: &[FileState],
        some: Vec<Inode>,
        branch: Option<&FileName>,
    ) -> VecDeque<Inode> {
        let mut ids = Vec::new();
        for inode in some {
            // What else the job looks at needs no target.
            if context.selects(&inode).await {
                ids.push(inode.id);
            }
        }
        let judged = match self.judge(&**context.environment, states, ids.clone()).await {
            Ok(judged) => judged,
            Err(failure) => ids.into_iter().map(|id| Err((id, failure.clone()))).collect(),
        };
        let mut chosen = VecDeque::new();
        for one in judged {
            match one {
                Ok(inode) => chosen.push_back(inode),
                Err((id, failure)) => {
                    let (subject, branch) = (Subject::Inode(id), branch.cloned());
                    context.fail(Unfound { subject, branch, failure }).await;
                }
            }
        }
        chosen
    }

    /// The files that are in one of the states, and those of which nobody knows.
    async fn judge<E: Environment>(
        &mut self,
        environment: &E,
        states: &[FileState],
        ids: Vec<InodeId>,
    ) -> Result<Vec<Result<Inode, (InodeId, Failure)>>, Failure> {
        let wanted = states.to_vec();
        let files = environment.read(move |view| look(view, &ids, &wanted)).await?;
        let open = files.iter().filter(|(_, verdict)| *verdict == Verdict::Open);
        let open: Vec<Inode> = open.map(|(inode, _)| inode.clone()).collect();
        let mut held = match open.is_empty() {
            true => BTreeMap::new(),
            false => self.held(environment, &open).await?,
        };
        let mut judged = Vec::new();
        for (inode, verdict) in files {
            let is_wanted = match (verdict, &inode.body) {
                (Verdict::Open, Body::File(body)) => match held.remove(&inode.id) {
                    Some(Ok(present)) => {
                        states.contains(&state::of_file(inode.size, body, &present).0)
                    }
                    Some(Err(failure)) => {
                        judged.push(Err((inode.id, failure)));
                        continue;
                    }
                    None => false,
                },
                (verdict, _) => verdict == Verdict::Wanted,
            };
            if is_wanted {
                judged.push(Ok(inode));
            }
        }
        Ok(judged)
    }

    /// What the targets hold of some files.
    async fn held<E: Environment>(
        &mut self,
        environment: &E,
        files: &[Inode],
    ) -> Result<BTreeMap<InodeId, Result<Present, Failure>>, Failure> {
        let map = environment.map().await?;
        let mut held = BTreeMap::new();
        let mut named: BTreeMap<Place, Vec<ContentName>> = BTreeMap::new();
        for file in files {
            let Some(content) = file.content() else { continue };
            let name = ContentName { inode: content.inode, generation: content.generation };
            let places = all_places_of(&map, &content.layout, file.size);
            held.insert(
                file.id,
                places.as_ref().map(|_| Present::default()).map_err(Failure::clone),
            );
            for place in places.into_iter().flatten() {
                named.entry(place).or_default().push(name);
            }
        }
        let mut asks = Vec::new();
        for (place, contents) in named {
            match self.silent.attempts(&place, Instant::now()) {
                Ok(attempts) => asks.push((place, contents, attempts)),
                Err(failure) => fail(&mut held, &contents, &failure),
            }
        }
        let asked = stream::iter(asks).map(|(place, contents, attempts)| async move {
            let answer = ask(environment, place, &contents, attempts).await;
            (place, contents, answer)
        });
        let mut answers = asked.buffer_unordered(TARGETS_AT_ONCE);
        while let Some((place, contents, answer)) = answers.next().await {
            match answer {
                Ok(parts) => {
                    self.silent.handle_answer(&place);
                    for (name, part) in contents.iter().zip(&parts) {
                        if let Some(Ok(total)) = held.get_mut(&name.inode) {
                            state::add(total, part);
                        }
                    }
                }
                Err(failure) => {
                    fail(&mut held, &contents, &failure);
                    self.silent.handle_silence(place, failure, Instant::now());
                }
            }
        }
        Ok(held)
    }
}

/// Nobody knows what is there of some contents.
fn fail(
    held: &mut BTreeMap<InodeId, Result<Present, Failure>>,
    contents: &[ContentName],
    failure: &Failure,
) {
    for name in contents {
        held.insert(name.inode, Err(failure.clone()));
    }
}

/// The files among some inodes, and what is known of each. What is gone, and what is no file, is in
/// no state.
fn look(
    view: &dyn View,
    ids: &[InodeId],
    wanted: &[FileState],
) -> Result<Vec<(Inode, Verdict)>, Failure> {
    let mut files = Vec::new();
    for &id in ids {
        let Some(inode) = tree::find(view, id).map_err(broken)? else { continue };
        let Body::File(body) = &inode.body else { continue };
        // Nothing of it can be released before its targets know that the bucket has it.
        let is_unmarked = body.state == ObjectState::Exported
            && view.get(&keys::export(id)).map_err(broken)?.is_some();
        let known = match is_unmarked {
            true => Some(FileState::Dirty),
            false => state::known(inode.size, body),
        };
        let verdict = verdict(known, body, wanted);
        files.push((inode, verdict));
    }
    Ok(files)
}

fn verdict(known: Option<FileState>, body: &FileBody, wanted: &[FileState]) -> Verdict {
    let is_wanted = |state: &FileState| wanted.contains(state);
    if let Some(known) = known {
        return if is_wanted(&known) { Verdict::Wanted } else { Verdict::Unwanted };
    }
    let whole = match body.state {
        ObjectState::Exported => FileState::Exported,
        _ => FileState::Hydrated,
    };
    let possible = [FileState::Released, FileState::Partial, whole];
    if possible.iter().all(is_wanted) {
        return Verdict::Wanted;
    }
    if possible.iter().any(is_wanted) { Verdict::Open } else { Verdict::Unwanted }
}

/// What a target holds of some contents; it is asked again while it is busy or away.
async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    contents: &[ContentName],
    attempts: u32,
) -> Result<Vec<Present>, Failure> {
    let mut attempts = Attempts::new(attempts);
    loop {
        let request = Presence { target: place.target, contents: contents.to_vec() };
        let failure = match environment.ask(place.host, request, PRESENCE_TIMEOUT).await {
            Ok(reply) if reply.present.len() == contents.len() => return Ok(reply.present),
            Ok(_) => return Err(ErrorKind::Protocol.into()),
            Err(failure) => failure,
        };
        if !failure.kind.is_transient() || !attempts.wait(&failure).await {
            return Err(silent(place.target, &failure));
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{
        ChunkSize, ContentGeneration, HostId, Layout, PoolId, TargetId, WriteEpoch,
    };

    use super::*;

    #[test]
    fn targets_are_asked_only_where_what_they_hold_decides() {
        let verdict_of = |object, wanted: &[FileState]| {
            let body = FileBody {
                generation: ContentGeneration(1),
                write_epoch: WriteEpoch(1),
                layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap(),
                origin: None,
                origin_length: 10,
                sparse: false,
                inline: None,
                state: object,
            };
            verdict(state::known(10, &body), &body, wanted)
        };
        let (dirty, clean, exported) =
            (ObjectState::Dirty, ObjectState::Clean, ObjectState::Exported);
        assert_eq!(verdict_of(dirty, &[FileState::Dirty]), Verdict::Wanted);
        assert_eq!(verdict_of(dirty, &[FileState::Exported]), Verdict::Unwanted);
        assert_eq!(verdict_of(clean, &[FileState::Dirty]), Verdict::Unwanted);
        assert_eq!(verdict_of(clean, &[FileState::Released]), Verdict::Open);
        assert_eq!(verdict_of(clean, &[FileState::Exported]), Verdict::Unwanted);
        assert_eq!(verdict_of(exported, &[FileState::Exported]), Verdict::Open);
        assert_eq!(verdict_of(exported, &[FileState::Hydrated]), Verdict::Unwanted);
        assert_eq!(verdict_of(clean, &FileState::ALL), Verdict::Wanted);
    }

    #[test]
    fn a_target_that_was_waited_for_in_vain_is_asked_again_only_after_a_while() {
        let place = Place { host: HostId([1; 16]), target: TargetId([1; 8]) };
        let other = Place { target: TargetId([2; 8]), ..place };
        let (mut targets, begin) = (Silent::default(), Instant::now());
        assert_eq!(targets.attempts(&place, begin), Ok(RELEASE_ATTEMPTS));
        let away = Failure::new(ErrorKind::Unavailable, "away");
        targets.handle_silence(place, away.clone(), begin);
        let soon = begin + SILENCE - Duration::from_millis(1);
        assert_eq!(targets.attempts(&place, soon), Err(away.clone()));
        assert_eq!(targets.attempts(&other, soon), Ok(RELEASE_ATTEMPTS));
        assert_eq!(targets.attempts(&place, begin + SILENCE), Ok(1));
        targets.handle_silence(place, away.clone(), begin + SILENCE);
        assert_eq!(targets.attempts(&place, begin + SILENCE), Err(away));
        targets.handle_answer(&place);
        assert_eq!(targets.attempts(&place, begin), Ok(RELEASE_ATTEMPTS));
    }
}
