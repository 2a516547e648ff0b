//! What a server has said of its commands, and what a start may show of that: the state that the
//! first of them make, without a gap, and with all that were promised.
//!
//! The state comes from the commands alone, without the server's store and snapshots. They are read
//! in the log as the kernel has it, and compared with what was asked for and answered.

use std::{collections::BTreeMap, iter, path::Path};

use millrace_metadata_server::{
    apply,
    command::{Command, Envelope, Outcome},
    consistency,
    files::Files,
    log::{self, LogError, segment},
    store::{Batch, MetaStore as _, memory::MemoryStore},
};
use millrace_protocol::session::Operation;
use millrace_types::LogIndex;

use crate::engine::{CLUSTER, Contents, contents};

/// What somebody asks for.
pub(crate) type Asked = (Option<Operation>, Command);

/// The log of one server, as those see it who ask.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The state at an index that no loss of power takes back.
    base: LogIndex,
    pairs: Batch,
    /// The records behind it.
    records: BTreeMap<LogIndex, Vec<u8>>,
    /// What was answered, by the record that it has.
    answered: BTreeMap<LogIndex, (Asked, Outcome)>,
    /// What was asked for when the run ended: it may have happened.
    asked: Option<Asked>,
    /// No start may lack this record, or one before it.
    floor: LogIndex,
    /// The one that survives a loss of power.
    synced: LogIndex,
}

impl Ledger {
    /// A command was executed, as record `index`.
    pub(crate) fn handle_answer(&mut self, index: LogIndex, asked: Asked, outcome: Outcome) {
        self.answered.insert(index, (asked, outcome));
        self.handle_written(index);
    }

    /// The run ended while this was executed.
    pub(crate) fn handle_no_answer(&mut self, asked: Asked) {
        self.asked = Some(asked);
    }

    /// Somebody was told what the log has up to here: a kill loses nothing of it.
    pub(crate) fn handle_written(&mut self, last: LogIndex) {
        self.floor = self.floor.max(last);
    }

    /// The server says that this is on stable storage.
    pub(crate) fn handle_synced(&mut self, synced: LogIndex) {
        self.synced = self.synced.max(synced);
    }

    /// The server has stopped in order.
    pub(crate) fn handle_all_synced(&mut self) {
        self.synced = self.synced.max(self.floor);
    }

    /// The power goes: what was not synced may be lost.
    pub(crate) fn handle_loss_of_power(&mut self) {
        self.floor = self.floor.min(self.synced);
    }

    /// Reads what has come to the log in `dir`. To be done before the log is shortened, and at the
    /// end of each run.
    pub(crate) fn note(&mut self, files: &dyn Files, dir: &Path) -> Result<(), String> {
        let (from, found) = read(files, dir, self.base.next());
        let last = found.last_key_value().map_or(LogIndex(from.0 - 1), |(index, _)| *index);
        let other = found
            .iter()
            .find(|(index, body)| self.records.get(*index).is_some_and(|known| known != *body));
        // From here on nothing is there any more of what was.
        let end = other.map_or_else(|| last.next(), |(index, _)| *index);
        if end <= self.floor {
            let floor = self.floor;
            return Err(format!("record {end} is not there; those up to {floor} were promised"));
        }
        drop(self.records.split_off(&end));
        drop(self.answered.split_off(&end));
        for (index, body) in found {
            if self.records.contains_key(&index) {
                continue;
            }
            let envelope = Envelope::from_bytes(&body);
            let envelope = envelope.ok_or_else(|| format!("record {index} is no command"))?;
            self.check(index, envelope)?;
            self.records.insert(index, body);
        }
        Ok(())
    }

    /// Whether a record says what was asked for, or what the server does by itself.
    fn check(&self, index: LogIndex, envelope: Envelope) -> Result<(), String> {
        let Envelope { operation, command, .. } = envelope;
        let is_own = operation.is_none() && is_own(&command);
        let found = (operation, command);
        let is_right = match self.answered.get(&index) {
            Some((asked, _)) => *asked == found,
            None => is_own || self.asked.as_ref() == Some(&found),
        };
        match is_right {
            true => Ok(()),
            false => Err(format!("record {index} is not what was asked for: {found:?}")),
        }
    }

    /// Looks at what a start shows, whose log ends with `last` and is on stable storage up to
    /// `synced`: it is what the commands make, and agrees with itself.
    pub(crate) fn look(
        &mut self,
        files: &dyn Files,
        dir: &Path,
        shown: &Contents,
        [last, synced]: [LogIndex; 2],
    ) -> Result<(), String> {
        self.note(files, dir)?;
        let mut store = MemoryStore::default();
        store.commit(&self.pairs).unwrap();
        let mut at = self.base;
        let mut pairs = None;
        for (index, body) in &self.records {
            at = at.next();
            if *index != at {
                return Err(format!("record {at} is nowhere"));
            }
            let envelope = Envelope::from_bytes(body).unwrap();
            let effect = apply::apply(&store, at, &envelope);
            let effect = effect.map_err(|error| format!("record {at} does not apply: {error}"))?;
            let answer = self.answered.get(&at).map(|(_, outcome)| outcome);
            if answer.is_some_and(|outcome| *outcome != effect.outcome) {
                return Err(format!("record {at} was answered otherwise: {answer:?}"));
            }
            store.commit(&effect.batch).unwrap();
            if at == synced {
                pairs = Some(as_batch(&contents(&store)));
            }
        }
        if at != last {
            return Err(format!("the server is at {last}, and its log ends with {at}"));
        }
        if contents(&store) != *shown {
            return Err("the store shows something else than the commands make".to_owned());
        }
        agrees_with_itself(&store, shown)?;
        // What a start finds is synced by it.
        self.pairs = pairs.ok_or_else(|| format!("nothing is synced behind {}", self.base))?;
        self.base = synced;
        self.records = self.records.split_off(&synced.next());
        self.answered = self.answered.split_off(&synced.next());
        (self.asked, self.floor, self.synced) = (None, last, synced);
        Ok(())
    }
}

/// The records of a log from `from` on, or from where it begins: all up to what a kill has torn.
///
/// Of segments that were removed behind a snapshot a loss of power may bring one back without those
/// that came after it. What is before the last such gap is not of the log any more; whether the
/// snapshot has it, a start tells.
fn read(files: &dyn Files, dir: &Path, from: LogIndex) -> (LogIndex, BTreeMap<LogIndex, Vec<u8>>) {
    let segments = segment::list(files, dir).unwrap_or_default();
    let firsts: Vec<_> = segments.iter().map(|(first, _)| *first).collect();
    let from = firsts.first().map_or(from, |first| from.max(*first));
    let later = firsts.iter().copied().filter(|first| *first > from);
    for start in iter::once(from).chain(later) {
        let mut found = BTreeMap::new();
        drop(log::replay(files, dir, CLUSTER, start, |index, body| {
            found.insert(index, body.to_vec());
            Ok::<(), LogError>(())
        }));
        let next = found.last_key_value().map_or(start, |(index, _)| index.next());
        if firsts.last().is_none_or(|last| next >= *last) {
            return (start, found);
        }
    }
    (from, BTreeMap::new())
}

/// What the server executes without being asked: at a start, and when it looks who is silent.
fn is_own(command: &Command) -> bool {
    matches!(
        command,
        Command::Format(_)
            | Command::BeginRun(_)
            | Command::SetFeatureLevel(_)
            | Command::SetDefaults(_)
            | Command::ReserveIds(_)
            | Command::NewKey(_)
            | Command::Distrust(_)
            | Command::CloseSession(_)
            | Command::CloseWrites { .. }
            | Command::DropReader(_)
    )
}

fn as_batch(contents: &Contents) -> Batch {
    let mut batch = Batch::default();
    for (key, value) in &contents.0 {
        batch.put(key.clone(), value.clone());
    }
    batch
}

/// Who has something open is there, and so is what is open; a file without a name is open.
fn agrees_with_itself(store: &MemoryStore, shown: &Contents) -> Result<(), String> {
    for (key, value) in &shown.0 {
        let flaws = consistency::flaws(store, key, value).map_err(|error| error.to_string())?;
        if let Some(flaw) = flaws.first() {
            return Err(format!("{}: {}", flaw.inode, flaw.text));
        }
    }
    Ok(())
}
