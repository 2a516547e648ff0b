//! Links: binding a directory to a bucket and prefix, and taking that back.

use millrace_protocol::{admin::AttributeSource, cluster::LinkMode};
use millrace_types::{ErrorKind, LinkId, Timestamp};

use super::{
    ApplyError, Transaction, deletion,
    remove::{drop_name, forget_whiteouts, take_entry},
    sweep,
};
use crate::{
    command::{
        AddLink, BATCH_MAX, ForgetEntries, Outcome, SetAutoExport, SetFetchPolicy, SetLinkOptions,
        SetRefreshInterval,
    },
    namespace::{Body, LinkedDirectory, ObjectState, tree},
    store::{
        keys,
        records::{AutoExportRecord, FetchRecord, LinkRecord, RefreshIntervalRecord},
    },
};

/// Binds an empty directory. Links do not nest.
pub(super) fn add(tx: &mut Transaction<'_>, add: &AddLink) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(add.directory)?;
    if tx.link_of(&inode)?.is_some() {
        return Err(ErrorKind::InUse.into());
    }
    if inode.size > 0 {
        return Err(ErrorKind::NotEmpty.into());
    }
    if !add.prefix.is_empty() && !add.prefix.ends_with('/') {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let id = tx.file_system()?.next_link;
    inode.directory_mut()?.linked =
        Some(LinkedDirectory { link: id, prefix: add.prefix.clone(), listed: None::<Timestamp> });
    inode.changed = tx.time;
    // Names that were imported through an earlier link are no reason to hide this one's.
    forget_whiteouts(tx, inode.id)?;
    tx.put_inode(&inode);
    let record = LinkRecord {
        directory: inode.id,
        bucket: add.bucket.clone(),
        mode: add.mode,
        removing: false,
        refresh_seconds: 0,
        attributes: AttributeSource::Listing,
    };
    tx.put(keys::link(id), &record);
    tx.change_file_system(|fs| {
        fs.next_link = id.next();
        fs.links_version += 1;
    })?;
    Ok(Outcome::Link(id))
}

/// Nothing more is imported through the link from now on.
pub(super) fn begin_removal(tx: &mut Transaction<'_>, id: LinkId) -> Result<Outcome, ApplyError> {
    let mut record = find(tx, id)?;
    record.removing = true;
    tx.put(keys::link(id), &record);
    Ok(Outcome::Done)
}

/// The feature level from which on removals say that they give up what is only here.
pub(crate) const DISCARD_LEVEL: u32 = 22;

/// As [`begin_removal`], also where that was done before. What the bucket does not have is given
/// up, whoever goes on with it.
pub(super) fn begin_discard(tx: &mut Transaction<'_>, id: LinkId) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < DISCARD_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let begun = begin_removal(tx, id)?;
    tx.put_bytes(keys::discard(id), Vec::new());
    Ok(begun)
}

/// The feature level from which on names go only while their files are their objects'.
pub(crate) const FORGET_SAVED_LEVEL: u32 = 21;

/// The same as [`forget_entries`] where all files are their objects': one may have been written
/// since somebody looked at it.
pub(super) fn forget_saved(
    tx: &mut Transaction<'_>,
    forget: &ForgetEntries,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < FORGET_SAVED_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    forget_entries(tx, forget, true)
}

/// Removes imported names, without whiteouts. Directories must be empty by then.
pub(super) fn forget_entries(
    tx: &mut Transaction<'_>,
    forget: &ForgetEntries,
    only_saved: bool,
) -> Result<Outcome, ApplyError> {
    if !find(tx, forget.link)?.removing || forget.names.len() > BATCH_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut parent = tx.inode(forget.directory)?;
    if tx.link_of(&parent)?.map(|(id, _)| id) != Some(forget.link) {
        return Err(ErrorKind::InvalidArgument.into());
    }
    for name in &forget.names {
        let Some(entry) = tree::entry(tx, parent.id, name)? else {
            continue;
        };
        let inode = tree::named(tx, &entry)?;
        if only_saved
            && let Body::File(file) = &inode.body
            && !matches!(file.state, ObjectState::Clean | ObjectState::Exported)
        {
            return Err(ErrorKind::Conflict.into());
        }
        if inode.is_directory() && inode.size > 0 {
            return Err(ErrorKind::NotEmpty.into());
        }
        take_entry(tx, &mut parent, &inode, name, &entry);
        drop_name(tx, inode, parent.id, name, &[])?;
    }
    tx.put_inode(&parent);
    Ok(Outcome::Done)
}

/// Unbinds the directory; names that are left stay as ordinary ones.
pub(super) fn remove(tx: &mut Transaction<'_>, id: LinkId) -> Result<Outcome, ApplyError> {
    let record = find(tx, id)?;
    if let Some(mut inode) = tree::find(tx, record.directory)? {
        inode.directory_mut()?.linked = None;
        inode.changed = tx.time;
        sweep::forget_by_and_by(tx, inode.id)?;
        tx.put_inode(&inode);
    }
    tx.delete(keys::link(id));
    tx.delete(keys::auto_export(id));
    tx.delete(keys::fetch(id));
    deletion::forget_link(tx, id)?;
    tx.delete(keys::refresh_interval(id));
    tx.delete(keys::discard(id));
    tx.change_file_system(|fs| fs.links_version += 1)?;
    Ok(Outcome::Done)
}

/// How the link follows its bucket from now on.
pub(super) fn set_options(
    tx: &mut Transaction<'_>,
    set: &SetLinkOptions,
) -> Result<Outcome, ApplyError> {
    let mut record = find(tx, set.link)?;
    record.refresh_seconds = set.refresh_seconds.unwrap_or(record.refresh_seconds);
    record.attributes = set.attributes.unwrap_or(record.attributes);
    tx.put(keys::link(set.link), &record);
    Ok(Outcome::Done)
}

/// The feature level from which on links export by themselves.
const AUTO_EXPORT_LEVEL: u32 = 7;

/// Whether files go to the bucket by themselves from now on, and after which time.
pub(super) fn set_auto_export(
    tx: &mut Transaction<'_>,
    set: SetAutoExport,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < AUTO_EXPORT_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let record = find(tx, set.link)?;
    let key = keys::auto_export(set.link);
    match set.quiet_seconds {
        Some(_) if record.mode != LinkMode::ImportExport => return Err(ErrorKind::ReadOnly.into()),
        Some(quiet_seconds) => tx.put(key, &AutoExportRecord { quiet_seconds }),
        None => tx.delete(key),
    }
    Ok(Outcome::Done)
}

/// The feature level from which on links say what is fetched behind reads.
const FETCH_LEVEL: u32 = 8;

/// What is fetched behind reads from now on.
pub(super) fn set_fetch_policy(
    tx: &mut Transaction<'_>,
    set: SetFetchPolicy,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < FETCH_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    find(tx, set.link)?;
    tx.put(keys::fetch(set.link), &FetchRecord { policy: set.policy });
    Ok(Outcome::Done)
}

/// The feature level from which on links are listed again by themselves.
const REFRESH_LEVEL: u32 = 10;

/// Whether the link is listed again by itself from now on, and how often.
pub(super) fn set_refresh_interval(
    tx: &mut Transaction<'_>,
    set: SetRefreshInterval,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < REFRESH_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    find(tx, set.link)?;
    let key = keys::refresh_interval(set.link);
    match set.every_seconds {
        Some(every_seconds) => tx.put(key, &RefreshIntervalRecord { every_seconds }),
        None => tx.delete(key),
    }
    Ok(Outcome::Done)
}

fn find(tx: &Transaction<'_>, id: LinkId) -> Result<LinkRecord, ApplyError> {
    Ok(tx.read(&keys::link(id))?.ok_or(ErrorKind::NotFound)?)
}
