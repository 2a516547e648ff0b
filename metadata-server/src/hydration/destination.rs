//! Where the bytes of a file belong in its bucket, and whether the object that it names is there.

use millrace_protocol::{
    capability::Origin,
    cluster::{self, LinkMode},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LinkId};

use super::{
    import::{broken, spec_of},
    walk::refused,
};
use crate::{
    namespace::{Body, FileBody, Inode, ObjectState, tree},
    store::{
        View, keys,
        records::{self, LinkRecord},
    },
};

/// The object that a file or link goes to.
#[derive(Debug, Clone)]
pub(crate) struct Destination {
    pub(crate) link: LinkId,
    pub(crate) mode: LinkMode,
    pub(crate) bucket: cluster::Bucket,
    pub(crate) key: String,
}

impl Destination {
    /// Whether an object is the one at this place.
    pub(crate) fn is_of(&self, origin: &Origin) -> bool {
        origin.key == self.key && origin.link == self.link
    }
}

/// Whether a bucket has a file's bytes: they are its object's, and that lies where the file does,
/// so that nobody replaces it here. A file that was renamed since shares its object with whatever
/// takes its old name, and nobody knows whether that object is still there.
///
/// # Errors
/// When the store is broken.
pub(crate) fn is_backed(view: &dyn View, inode: &Inode, file: &FileBody) -> Result<bool, Failure> {
    let Some(origin) = file.origin.as_ref().filter(|_| agrees(file)) else { return Ok(false) };
    match destination(view, inode) {
        Ok(destination) => Ok(destination.is_of(origin)),
        Err(failure) if failure.kind == ErrorKind::Internal => Err(failure),
        Err(_) => Ok(false),
    }
}

/// Whether what is here of a file's bytes may be dropped, and be had again: [`is_backed`].
///
/// Not so a file with holes: it was exported before exports began a write epoch of their own, and
/// who has it open from before that takes what is absent for a hole, and reads zeros.
///
/// # Errors
/// When the store is broken.
pub(crate) fn is_saved(view: &dyn View, inode: &Inode, file: &FileBody) -> Result<bool, Failure> {
    Ok(!file.sparse && is_backed(view, inode, file)?)
}

/// The files among some inodes that no bucket may have as they are: they differ from their object,
/// or were renamed and not exported since. Also below a link that is being removed: a file may have
/// been renamed while the others were looked at, and another one exported in its place.
///
/// # Errors
/// When the store is broken.
pub(super) fn only_here(
    view: &dyn View,
    inodes: impl IntoIterator<Item = Inode>,
) -> Result<Vec<Inode>, Failure> {
    let mut found = Vec::new();
    // Most of them lie in one directory, and the way up from there may be long.
    let mut above: (Option<InodeId>, Option<(LinkId, String)>) = (None, None);
    for inode in inodes {
        let Body::File(file) = &inode.body else { continue };
        let directory = inode.parent.as_ref().map(|parent| parent.directory);
        if above.0 != directory {
            let keys = directory.map(|directory| keys_of(view, directory)).transpose()?;
            above = (directory, keys.flatten());
        }
        let origin = file.origin.as_ref().filter(|_| agrees(file));
        if !origin.is_some_and(|origin| lies_in(&inode, origin, above.1.as_ref())) {
            found.push(inode);
        }
    }
    Ok(found)
}

/// Whether an object is the one that a file has by its first name, in a directory of these keys.
fn lies_in(inode: &Inode, origin: &Origin, keys: Option<&(LinkId, String)>) -> bool {
    let (Some(parent), Some((link, prefix))) = (&inode.parent, keys) else { return false };
    let name = origin.key.strip_prefix(prefix.as_str()).map(str::as_bytes);
    origin.link == *link && name == Some(parent.name.as_bytes())
}

/// Whether a file has the bytes of the object that it was made from, or became.
pub(super) fn agrees(file: &FileBody) -> bool {
    matches!(file.state, ObjectState::Clean | ObjectState::Exported)
}

/// The link above an inode, and the key that its path has there.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for what lies in no linked directory, or has no key;
/// [`ErrorKind::Stale`] for what has no name.
pub(crate) fn destination(view: &dyn View, inode: &Inode) -> Result<Destination, Failure> {
    let parent = inode.parent.clone().ok_or(ErrorKind::Stale)?;
    let directory = tree::inode(view, parent.directory).map_err(refused)?;
    let link = directory.directory()?.linked.as_ref().map(|linked| linked.link);
    let link = link.ok_or_else(outside)?;
    let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
    let record = record.filter(|record| !record.removing).ok_or_else(outside)?;
    let mut key = path_key(view, directory, &record)?;
    if !key.is_empty() && !key.ends_with('/') {
        key.push('/');
    }
    key.push_str(text_of(&parent.name)?);
    Ok(Destination { link, mode: record.mode, bucket: record.bucket, key })
}

/// The link that an inode lies in, by its first name; of a directory also that which it is the top
/// of.
///
/// # Errors
/// When the store is broken.
pub(super) fn link_of(view: &dyn View, inode: &Inode) -> Result<Option<LinkId>, Failure> {
    let linked = |body: &Body| match body {
        Body::Directory(body) => body.linked.as_ref().map(|linked| linked.link),
        _ => None,
    };
    if inode.is_directory() {
        return Ok(linked(&inode.body));
    }
    let Some(parent) = &inode.parent else { return Ok(None) };
    let directory = tree::find(view, parent.directory).map_err(broken)?;
    Ok(directory.and_then(|directory| linked(&directory.body)))
}

/// The prefix of keys that the path of a directory has: empty, or ending in `/`. `None` where no
/// key can have its names.
///
/// # Errors
/// When the store is broken.
pub(super) fn prefix_of(view: &dyn View, directory: InodeId) -> Result<Option<String>, Failure> {
    Ok(keys_of(view, directory)?.map(|(_, prefix)| prefix))
}

/// The same with the link, which may be going.
fn keys_of(view: &dyn View, directory: InodeId) -> Result<Option<(LinkId, String)>, Failure> {
    let Some(inode) = tree::find(view, directory).map_err(broken)? else { return Ok(None) };
    let link = match &inode.body {
        Body::Directory(body) => body.linked.as_ref().map(|linked| linked.link),
        _ => None,
    };
    let Some(link) = link else { return Ok(None) };
    let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
    let Some(record) = record else { return Ok(None) };
    match path_key(view, inode, &record) {
        Ok(mut key) => {
            if !key.is_empty() && !key.ends_with('/') {
                key.push('/');
            }
            Ok(Some((link, key)))
        }
        Err(failure) if failure.kind == ErrorKind::Internal => Err(failure),
        Err(_) => Ok(None),
    }
}

/// The key of a directory below a link's, or the link's prefix.
fn path_key(view: &dyn View, directory: Inode, link: &LinkRecord) -> Result<String, Failure> {
    let mut names = Vec::new();
    let mut at = directory;
    while at.id != link.directory {
        let above = at.parent.clone().ok_or_else(outside)?;
        names.push(above.name);
        at = tree::inode(view, above.directory).map_err(refused)?;
    }
    let spec = spec_of(&link.bucket)?;
    let mut key = spec.prefix().to_owned();
    for (at, name) in names.iter().rev().enumerate() {
        if at > 0 {
            key.push('/');
        }
        key.push_str(text_of(name)?);
    }
    Ok(key)
}

fn text_of(name: &FileName) -> Result<&str, Failure> {
    std::str::from_utf8(name.as_bytes()).map_err(|_| {
        Failure::new(ErrorKind::InvalidArgument, "the name is no UTF-8, which keys must be")
    })
}

fn outside() -> Failure {
    Failure::new(
        ErrorKind::InvalidArgument,
        "the file lies in no linked directory: there is no bucket to export it to",
    )
}
