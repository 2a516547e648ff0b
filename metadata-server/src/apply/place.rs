//! Where in the tree a key of a link is, whatever lies there.

use millrace_protocol::metadata::FileKind;
use millrace_types::{FileName, InodeId, LinkId};

use crate::{
    namespace::{Body, tree},
    store::{
        StoreError, View, keys,
        records::{self, LinkRecord},
    },
};

/// The directory and the name that a key has below its link. `None` where a directory on the way is
/// missing, or no file could have the key. Of the key of a directory, which ends in `/`, it is the
/// name of that.
///
/// # Errors
/// When the store is broken.
pub(crate) fn of_key(
    view: &(impl View + ?Sized),
    link: LinkId,
    key: &str,
) -> Result<Option<(InodeId, FileName)>, StoreError> {
    let Some(record) = records::read::<LinkRecord>(view, &keys::link(link))? else {
        return Ok(None);
    };
    let Some(top) = tree::find(view, record.directory)? else { return Ok(None) };
    let Body::Directory(body) = &top.body else { return Ok(None) };
    let prefix = body.linked.as_ref().map(|linked| linked.prefix.as_str());
    let Some(path) = prefix.and_then(|prefix| key.strip_prefix(prefix)) else { return Ok(None) };
    let path = path.strip_suffix('/').unwrap_or(path);
    let (above, last) = path.rsplit_once('/').map_or((None, path), |(a, l)| (Some(a), l));
    let mut directory = record.directory;
    for part in above.into_iter().flat_map(|above| above.split('/')) {
        let Ok(name) = FileName::parse(part.as_bytes()) else { return Ok(None) };
        match tree::entry(view, directory, &name)? {
            Some(entry) if entry.kind == FileKind::Directory => directory = entry.inode,
            _ => return Ok(None),
        }
    }
    Ok(FileName::parse(last.as_bytes()).ok().map(|name| (directory, name)))
}
