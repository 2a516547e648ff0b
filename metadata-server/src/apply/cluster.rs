//! Targets, groups, keys and reserved ids.

use millrace_types::{ErrorKind, GroupEpoch, GroupId, InodeId, KeyId, PoolId, TargetId};

use super::{ApplyError, FEATURE_LEVEL, Transaction};
use crate::{
    command::{NewKey, NoteShown, Outcome, RegisterHost},
    store::{
        StoreError, keys,
        records::{
            GroupRecord, HostRecord, KeyRecord, LostTarget, PoolRecord, ShownRecord, TargetRecord,
        },
    },
};

/// Switches to another behaviour; there is no way back.
pub(super) fn set_feature_level(
    tx: &mut Transaction<'_>,
    level: u32,
) -> Result<Outcome, ApplyError> {
    if level < tx.file_system()?.feature_level || level > FEATURE_LEVEL {
        return Err(ErrorKind::InvalidArgument.into());
    }
    tx.change_file_system(|fs| fs.feature_level = level)?;
    Ok(Outcome::Done)
}

/// Reserves every inode id below `limit`.
pub(super) fn reserve_ids(tx: &mut Transaction<'_>, limit: InodeId) -> Result<Outcome, ApplyError> {
    tx.change_file_system(|fs| fs.inode_limit = fs.inode_limit.max(limit))?;
    Ok(Outcome::Done)
}

/// Makes a signing key; the one before it stays, older ones go.
pub(super) fn new_key(tx: &mut Transaction<'_>, new: &NewKey) -> Result<Outcome, ApplyError> {
    let id = tx.file_system()?.next_key;
    tx.change_file_system(|fs| fs.next_key = id.next())?;
    let record = KeyRecord { secret: new.secret, made: tx.time };
    tx.put(keys::signing_key(id), &record);
    if let Some(old) = id.0.checked_sub(KEYS_KEPT) {
        tx.delete(keys::signing_key(KeyId(old)));
    }
    Ok(Outcome::Key(id))
}

/// A daemon with its targets. New targets join the first pool; the map's epoch rises only when
/// something changed.
pub(super) fn register_host(
    tx: &mut Transaction<'_>,
    register: &RegisterHost,
) -> Result<Outcome, ApplyError> {
    let host = HostRecord { name: register.name.clone(), addresses: register.addresses.clone() };
    let key = keys::host(register.host);
    let mut changed = tx.read::<HostRecord>(&key)?.as_ref() != Some(&host);
    tx.put(key, &host);
    let mut joining = Vec::new();
    for &(target, capacity) in &register.targets {
        if tx.read::<LostTarget>(&keys::lost_target(target))?.is_some() {
            // Others have its groups; what it still holds is old.
            continue;
        }
        let key = keys::target(target);
        let known = tx.read::<TargetRecord>(&key)?;
        changed |= known.as_ref().is_none_or(|known| known.host != register.host);
        if known.is_none() {
            joining.push(target);
        }
        let (joined, lost_below) =
            known.map_or((tx.time, InodeId(0)), |known| (known.joined, known.lost_below));
        let record = TargetRecord { host: register.host, joined, capacity, lost_below };
        tx.put(key, &record);
    }
    join(tx, &joining)?;
    if changed {
        tx.change_file_system(|fs| fs.map_epoch = fs.map_epoch.next())?;
    }
    Ok(Outcome::Done)
}

/// A target lost its data: what lay on it is lost for every inode there has been so far.
pub(super) fn target_blank(
    tx: &mut Transaction<'_>,
    target: TargetId,
) -> Result<Outcome, ApplyError> {
    let key = keys::target(target);
    let mut record = tx.read::<TargetRecord>(&key)?.ok_or(ErrorKind::NotFound)?;
    record.lost_below = tx.file_system()?.inode_limit;
    tx.put(key, &record);
    Ok(Outcome::Done)
}

/// The feature level from which on it is remembered what targets have shown of the log.
const SHOWN_LEVEL: u32 = 23;

/// A target has shown this much of the log, or an operator takes it as it is.
pub(super) fn note_shown(tx: &mut Transaction<'_>, note: NoteShown) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < SHOWN_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    if tx.read::<TargetRecord>(&keys::target(note.target))?.is_none() {
        return Err(ErrorKind::NotFound.into());
    }
    tx.put(keys::shown(note.target), &ShownRecord { index: note.index });
    Ok(Outcome::Done)
}

/// Appends the groups of new targets, interleaved, so that neighbours lie on different ones.
fn join(tx: &mut Transaction<'_>, targets: &[TargetId]) -> Result<(), ApplyError> {
    if targets.is_empty() {
        return Ok(());
    }
    let pool = PoolId(0);
    let Some(mut record) = tx.read::<PoolRecord>(&keys::pool(pool))? else {
        return Err(StoreError::Inconsistent("the first pool is missing".to_owned()).into());
    };
    for _ in 0..GROUPS_PER_TARGET {
        for &target in targets {
            let group = GroupRecord { epoch: GroupEpoch(1), targets: vec![target] };
            tx.put(keys::group(pool, GroupId(record.groups)), &group);
            record.groups += 1;
        }
    }
    record.targets.extend_from_slice(targets);
    tx.put(keys::pool(pool), &record);
    Ok(())
}

/// So many groups does a target bring: enough that growth can move small shares of it.
pub(crate) const GROUPS_PER_TARGET: u32 = 64;

/// The newest key and the one before it verify.
const KEYS_KEPT: u32 = 2;

#[cfg(test)]
mod tests {
    use millrace_types::{ByteLen, HostId, LogIndex, Timestamp};

    use super::*;
    use crate::{
        apply::apply,
        command::{Command, Envelope, Format, Loss},
        store::{MetaStore as _, View as _, memory::MemoryStore},
    };

    #[test]
    fn from_the_twenty_third_level_on_it_is_remembered_what_targets_have_shown() {
        let mut store = MemoryStore::default();
        let mut index = LogIndex(0);
        let mut give = |command| -> Result<bool, ErrorKind> {
            index = index.next();
            let envelope = Envelope { time: Timestamp(1), operation: None, command };
            match apply(&store, index, &envelope) {
                Ok(effect) => store.commit(&effect.batch).unwrap(),
                Err(ApplyError::Refused(kind)) => return Err(kind),
                Err(ApplyError::Store(error)) => panic!("{error}"),
            }
            Ok(store.get(&keys::shown(TARGET)).unwrap().is_some())
        };
        let note = |target| Command::NoteShown(NoteShown { target, index: LogIndex(2) });
        let targets = [TARGET, TargetId([2; 8])].map(|target| (target, ByteLen(1 << 30)));
        let host = RegisterHost {
            host: HostId([1; 16]),
            name: "store-1".to_owned(),
            addresses: vec!["10.0.0.1:7441".to_owned()],
            targets: targets.into(),
        };
        give(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
        give(Command::RegisterHost(host)).unwrap();
        give(Command::SetFeatureLevel(22)).unwrap();
        assert_eq!(give(note(TARGET)), Err(ErrorKind::NotSupported));
        give(Command::SetFeatureLevel(23)).unwrap();
        assert_eq!(give(note(TargetId([3; 8]))), Err(ErrorKind::NotFound));
        assert_eq!(give(note(TARGET)), Ok(true));
        let lost = Loss::Begin { target: TARGET, below: InodeId(9) };
        assert_eq!(give(Command::Loss(lost)), Ok(false), "it goes with the target");
    }

    const TARGET: TargetId = TargetId([1; 8]);
}
