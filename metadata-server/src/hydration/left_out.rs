//! Keys that can be no names here: what a listing left out, for who wants to know.
//!
//! Each listing that left something out is recorded beside its directory, with how many keys and
//! the first of them, until a later listing leaves out something else, or nothing.

use std::{ops::Bound, sync::Arc};

use millrace_object_source::{LeftOut, LeftOutReason as Found};
use millrace_protocol::left_out::{
    LEFT_OUT_DIRECTORIES_MAX, LEFT_OUT_KEY_LEN_MAX, LEFT_OUT_KEYS_MAX, LeftOutDirectory,
    LeftOutKey, LeftOutReason, LeftOutReply, ShowLeftOut,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{
    environment::Environment,
    import::{Importer, broken},
    walk::{Viewpoint, path_of, resolve},
};
use crate::{
    command::{Command, NoteLeftOut},
    namespace::{Inode, permission, tree},
    store::{
        View, borrow, keys, prefix_end,
        records::{self, LeftOutRecord},
    },
};

/// Records of one query that are looked at, whether or not they are below the path.
const LOOKED_AT_MAX: usize = 256;

/// What one listing has left out so far.
#[derive(Debug, Default)]
pub(super) struct Tray {
    keys: u64,
    first: Vec<LeftOutKey>,
}

impl Tray {
    /// Adds what a page left out: so many keys, of which these are known.
    pub(super) fn add_page(&mut self, keys: u64, known: &[LeftOut]) {
        self.keys += keys;
        for out in known {
            self.name(&out.key, reason(out.reason));
        }
    }

    /// Adds a key.
    pub(super) fn add(&mut self, key: &str, reason: LeftOutReason) {
        self.keys += 1;
        self.name(key, reason);
    }

    /// Takes a key out again that has its place after all.
    pub(super) fn remove(&mut self, key: &str) {
        self.keys = self.keys.saturating_sub(1);
        let key = cut(key);
        self.first.retain(|known| known.key != key);
    }

    /// How many keys.
    pub(super) fn keys(&self) -> u64 {
        self.keys
    }

    /// The first of them, for the log.
    pub(super) fn example(&self) -> Option<&str> {
        self.first.first().map(|first| first.key.as_str())
    }

    fn name(&mut self, key: &str, reason: LeftOutReason) {
        let is_known = || self.first.iter().any(|known| known.key == key);
        if self.first.len() < LEFT_OUT_KEYS_MAX && !is_known() {
            self.first.push(LeftOutKey { key: cut(key), reason });
        }
    }

    /// Records it, if it is something else than what the last listing left out.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn keep<E: Environment>(
        mut self,
        environment: &E,
        directory: InodeId,
    ) -> Result<(), Failure> {
        // Pages come in no order, and the same keys shall be the same record.
        self.first.sort_by(|one, other| one.key.cmp(&other.key));
        let Self { keys, first } = self;
        let known = of(environment, directory).await?;
        let is_same = match known {
            None => keys == 0,
            Some(known) => known == LeftOutRecord { keys, first: first.clone() },
        };
        if is_same {
            return Ok(());
        }
        let note = Command::NoteLeftOut(NoteLeftOut { directory, keys, first });
        environment.execute(note, false).await.map(|_| ())
    }
}

/// What the last listing of a directory left out.
///
/// # Errors
/// That the server is busy or shutting down.
pub(super) async fn of<E: Environment>(
    environment: &E,
    directory: InodeId,
) -> Result<Option<LeftOutRecord>, Failure> {
    let query = environment
        .read(move |view| records::read(view, &keys::left_out(directory)).map_err(broken));
    query.await
}

/// What was left out at and below a path, which begins at `top`.
///
/// # Errors
/// [`ErrorKind::NotPermitted`] for anybody but the owner of what is at the path and root; those of
/// the path.
pub(super) async fn show<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ShowLeftOut,
) -> Result<LeftOutReply, Failure> {
    let ShowLeftOut { caller, path, after } = request;
    let root = resolve(environment, importer, Viewpoint { top, caller }, path).await?;
    if !permission::is_root(caller) && caller.uid != root.uid {
        return Err(ErrorKind::NotPermitted.into());
    }
    let (id, after) = (root.id, *after);
    let (found, next) = environment.read(move |view| page(view, id, after)).await?;
    let mut directories = Vec::with_capacity(found.len());
    for (inode, LeftOutRecord { keys, first }) in found {
        let path = seen_from(top, path_of(environment, &inode).await);
        directories.push(LeftOutDirectory { inode: inode.id, path, keys, first });
    }
    Ok(LeftOutReply { directories, next })
}

/// A path as a client sees it whose tree begins at `top`.
fn seen_from(top: &[u8], path: Vec<u8>) -> Vec<u8> {
    let top = top.strip_suffix(b"/").unwrap_or(top);
    match path.strip_prefix(top) {
        Some([]) => b"/".to_vec(),
        Some(rest) if rest.starts_with(b"/") => rest.to_vec(),
        _ => path,
    }
}

/// Records behind one of a directory, and where the next page begins.
type RecordsPage = (Vec<(Inode, LeftOutRecord)>, Option<InodeId>);

fn page(view: &dyn View, root: InodeId, after: Option<InodeId>) -> Result<RecordsPage, Failure> {
    let table = keys::left_outs();
    let from = keys::left_out(after.unwrap_or(InodeId(0)));
    let end = prefix_end(&table);
    let pairs = view.scan(Bound::Excluded(&from), borrow(&end), LOOKED_AT_MAX).map_err(broken)?;
    let is_full = pairs.len() == LOOKED_AT_MAX;
    let (mut found, mut last) = (Vec::new(), None);
    for (key, bytes) in pairs {
        let id = InodeId(keys::number_at(&key, table.len()).unwrap_or_default());
        if found.len() == LEFT_OUT_DIRECTORIES_MAX {
            return Ok((found, last));
        }
        last = Some(id);
        let Some(inode) = tree::find(view, id).map_err(broken)? else { continue };
        if tree::is_below(view, &inode, root).map_err(broken)? {
            found.push((inode, records::decode(&key, &bytes).map_err(broken)?));
        }
    }
    Ok((found, last.filter(|_| is_full)))
}

fn cut(key: &str) -> String {
    const MARK: &str = "...";
    if key.len() <= LEFT_OUT_KEY_LEN_MAX {
        return key.to_owned();
    }
    let mut end = LEFT_OUT_KEY_LEN_MAX - MARK.len();
    while !key.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{MARK}", &key[..end])
}

fn reason(found: Found) -> LeftOutReason {
    match found {
        Found::EmptyPart => LeftOutReason::EmptyPart,
        Found::DotPart => LeftOutReason::DotPart,
        Found::ControlCharacter => LeftOutReason::ControlCharacter,
        Found::TooLong => LeftOutReason::TooLong,
        Found::NotUtf8 => LeftOutReason::NotUtf8,
        Found::SpecialFile => LeftOutReason::SpecialFile,
        Found::MarkWithBytes => LeftOutReason::Directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_keys_are_named_once_and_long_ones_are_cut_between_characters() {
        let mut tray = Tray::default();
        tray.add("a", LeftOutReason::Directory);
        tray.add("a", LeftOutReason::Directory);
        let long = "\u{fc}".repeat(600);
        tray.add(&long, LeftOutReason::TooLong);
        for nth in 0..20 {
            tray.add(&nth.to_string(), LeftOutReason::DotPart);
        }
        assert_eq!((tray.keys(), tray.first.len()), (23, LEFT_OUT_KEYS_MAX));
        assert_eq!(tray.first[0].key, "a");
        let cut = &tray.first[1].key;
        assert!(cut.len() <= LEFT_OUT_KEY_LEN_MAX && cut.ends_with("\u{fc}..."), "{cut}");
    }
}
