//! The store, brought to the end of the log: caught up where it can be used, else made anew from
//! the newest snapshot that is sound and the log behind it.

use millrace_types::LogIndex;

use super::startup::{self, EngineSettings, StartError};
use crate::{
    apply::{self, ApplyError},
    command::Envelope,
    log::{self, segment},
    snapshot::{
        kept,
        load::{LoadError, load},
    },
    store::{
        MetaStore, StoreError, keys,
        records::{self, Applied, FileSystem},
    },
};

/// A store that shows what the log says.
pub(super) struct Recovered {
    pub(super) store: Box<dyn MetaStore>,
    /// Why it was made anew although there had been one.
    pub(super) rebuilt: Option<String>,
}

/// What is known of the store before it is opened.
pub(super) enum Standing {
    /// It shows some index of the log, if it opens.
    Trusted,
    /// The machine went down since it was written, or it failed: maybe the log has lost something
    /// too.
    Doubtful,
    /// The run before had this engine. Nothing is wrong with the log.
    OfOtherEngine(String),
}

/// Opens the store and replays what it misses; makes it anew when it cannot be trusted.
pub(super) fn recover_store(
    settings: &EngineSettings,
    last: LogIndex,
    standing: &Standing,
) -> Result<Recovered, StartError> {
    if !settings.stores().survives() {
        return Ok(Recovered { store: make_anew(settings, last)?, rebuilt: None });
    }
    let reason = match standing {
        Standing::Trusted => match try_present(settings, last)? {
            Present::Usable(store) => return Ok(Recovered { store, rebuilt: None }),
            Present::Behind(applied) => {
                tracing::info!(%applied, "the store is older than the log's beginning");
                let store = make_durable(settings, last)?;
                return Ok(Recovered { store, rebuilt: None });
            }
            Present::Unusable(reason) => reason,
        },
        Standing::Doubtful => "the machine went down, or the store failed".to_owned(),
        Standing::OfOtherEngine(before) => {
            let now = settings.store.name();
            tracing::info!(before, now, "the store is made anew by another engine");
            let store = match make_durable(settings, last) {
                // Both may not fit. The other one is of no use any more.
                Err(StartError::Store(error)) if error.is_full_disk() => {
                    startup::remove_others(settings);
                    make_durable(settings, last)?
                }
                made => made?,
            };
            return Ok(Recovered { store, rebuilt: None });
        }
    };
    let rebuilt = (last > FORMAT).then(|| {
        tracing::warn!(reason, "the store is rebuilt from the command log");
        format!("the store was made anew from the command log: {reason}")
    });
    let store = make_durable(settings, last)?;
    Ok(Recovered { store, rebuilt })
}

/// A new store that is on stable storage.
fn make_durable(
    settings: &EngineSettings,
    last: LogIndex,
) -> Result<Box<dyn MetaStore>, StartError> {
    let mut store = make_anew(settings, last)?;
    store.checkpoint()?;
    Ok(store)
}

/// The record that formats the namespace. A log with this one alone is of a start that was killed:
/// no file has been there that could be lost.
const FORMAT: LogIndex = LogIndex(1);

/// What the store is good for that the run before has left.
enum Present {
    /// It shows what the log says.
    Usable(Box<dyn MetaStore>),
    /// Sound, but a kill took so much of its end that the records behind it are in a snapshot
    /// alone. Log and snapshot are those of the run before, and nothing is lost.
    Behind(LogIndex),
    /// Why it cannot be used, in words.
    Unusable(String),
}

/// The store as it is, caught up with the log where that is possible.
fn try_present(settings: &EngineSettings, last: LogIndex) -> Result<Present, StartError> {
    let first = first_record(settings)?;
    let opened = settings.stores().open().map_err(StartError::Store);
    let caught_up = opened.and_then(|mut store| {
        let applied = applied(&*store)?.index;
        if applied > LogIndex(0) {
            // One that an older program made does not decode.
            records::read::<FileSystem>(&*store, &keys::file_system())?;
        }
        if applied > last {
            let reason = format!("it shows index {applied}, but the log ends at {last}");
            return Ok(Present::Unusable(reason));
        }
        if applied == LogIndex(0) && last > LogIndex(0) {
            return Ok(Present::Unusable("it is missing or empty".to_owned()));
        }
        if applied.next() < first {
            return Ok(Present::Behind(applied));
        }
        catch_up(settings, &mut *store, applied)?;
        Ok(Present::Usable(store))
    });
    Ok(caught_up.unwrap_or_else(|error| Present::Unusable(error.to_string())))
}

/// The oldest record that the log still has; 1 in an empty log.
fn first_record(settings: &EngineSettings) -> Result<LogIndex, StartError> {
    let segments = segment::list(&*settings.files, &settings.log_dir())?;
    Ok(segments.first().map_or(LogIndex(1), |(first, _)| *first))
}

/// A new store from the newest snapshot that can be read, and the log behind it.
fn make_anew(settings: &EngineSettings, last: LogIndex) -> Result<Box<dyn MetaStore>, StartError> {
    let (files, dir) = (&*settings.files, settings.snapshot_dir());
    let disk = |source| StartError::Disk { path: dir.clone(), source };
    let (mut damaged, mut problems) = (Vec::new(), Vec::new());
    for index in kept::list(files, &dir).map_err(disk)? {
        if index > last {
            problems.push(format!("the snapshot of {index} is ahead of the log's end, {last}"));
            continue;
        }
        let mut store = settings.stores().create()?;
        match load(files, &dir, index, settings.cluster, &mut *store) {
            Ok(()) => {
                tracing::info!(%index, "the store begins with a snapshot");
                catch_up(settings, &mut *store, index)?;
                return set_aside(settings, &damaged).map(|()| store);
            }
            Err(LoadError::Store(error)) => return Err(error.into()),
            Err(LoadError::Snapshot(flaw)) => {
                tracing::error!(%index, %flaw, "a snapshot cannot be used; the one before it is");
                problems.push(format!("the snapshot of {index} cannot be used: {flaw}"));
                damaged.push(index);
            }
        }
    }
    let first = first_record(settings)?;
    if first > LogIndex(1) {
        if problems.is_empty() {
            problems.push("there is no snapshot".to_owned());
        }
        return Err(StartError::NoSnapshot { first, what: problems.join("; "), dir });
    }
    let mut store = settings.stores().create()?;
    catch_up(settings, &mut *store, LogIndex(0))?;
    set_aside(settings, &damaged).map(|()| store)
}

/// Takes damaged snapshots out of those that count; only now that it was possible without them.
fn set_aside(settings: &EngineSettings, damaged: &[LogIndex]) -> Result<(), StartError> {
    let dir = settings.snapshot_dir();
    for &index in damaged {
        kept::set_aside(&*settings.files, &dir, index)
            .map_err(|source| StartError::Disk { path: dir.clone(), source })?;
    }
    Ok(())
}

/// Applies every record behind `applied`.
fn catch_up(
    settings: &EngineSettings,
    store: &mut dyn MetaStore,
    applied: LogIndex,
) -> Result<(), StartError> {
    let (files, dir) = (&*settings.files, settings.log_dir());
    log::replay(files, &dir, settings.cluster, applied.next(), |index, body| {
        let envelope = Envelope::from_bytes(body).ok_or(StartError::Unreadable(index))?;
        let effect = apply::apply(&*store, index, &envelope).map_err(|error| match error {
            ApplyError::Refused(kind) => StartError::Disagrees { index, kind },
            ApplyError::Store(error) => StartError::Store(error),
        })?;
        store.commit(&effect.batch).map_err(StartError::Store)
    })
}

/// The index that a store shows; 0 in an empty one.
pub(super) fn applied(store: &dyn MetaStore) -> Result<Applied, StoreError> {
    Ok(records::read(store, &keys::applied())?.unwrap_or_default())
}
