//! opendir, readdir and releasedir.
//!
//! A directory is read in pages of the server's, each held by the handle while the kernel takes it
//! in smaller bites. The kernel's offset of an entry is the server's cookie, which stays the same
//! while others change the directory; `.` and `..` have two offsets that no cookie takes.
//!
//! What is made while a directory is listed gets a cookie behind all others, also what is renamed.
//! A listing of several pages ends where the directory ended when it began: a program that renames
//! each entry that it is shown would be shown entries for ever.

use std::sync::Arc;

use millrace_protocol::{
    lease::{DirectoryEnd, FindEnd, ListEntries, ListFrom},
    metadata::{DIRECTORY_PAGE_MAX, DirectoryEntry, FileKind},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use crate::fs::FileSystem;

/// An open directory.
#[derive(Debug)]
pub(crate) struct DirectoryHandle {
    inode: InodeId,
    caller: Caller,
    /// `O_NOATIME`: listing it does not count as access.
    no_atime: bool,
    page: tokio::sync::Mutex<Option<Page>>,
}

#[derive(Debug)]
struct Page {
    /// The cookie that it was asked for with.
    after: u64,
    entries: Vec<DirectoryEntry>,
    last: bool,
    parent: InodeId,
    /// Cookies below this were there when the listing began; `None` where that is not known.
    end: Option<u64>,
}

/// One entry for the kernel.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    /// The inode.
    pub(crate) inode: InodeId,
    /// Where the listing goes on behind this entry.
    pub(crate) offset: u64,
    /// What it is.
    pub(crate) kind: FileKind,
    /// Its name; none for the directory itself and its parent, at their own offsets.
    pub(crate) name: Option<&'a FileName>,
}

impl Listed<'_> {
    /// Its name as it is shown.
    pub(crate) fn name(&self) -> &[u8] {
        match self.name {
            Some(name) => name.as_bytes(),
            None if self.offset == OFFSET_OF_DOT => b".",
            None => b"..",
        }
    }
}

impl FileSystem {
    /// Opens a directory. The kernel has checked the permission; nothing is asked of the server.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] at the limit of handles.
    pub(crate) fn open_directory(
        &self,
        caller: Caller,
        inode: InodeId,
        flags: i32,
    ) -> Result<u64, Failure> {
        let no_atime = flags & libc::O_NOATIME != 0;
        let page = tokio::sync::Mutex::new(None);
        self.directories.insert(Arc::new(DirectoryHandle { inode, caller, no_atime, page }))
    }

    /// Ends an open.
    pub(crate) fn release_directory(&self, number: u64) {
        self.directories.remove(number);
    }

    /// Gives the entries behind `offset` to `take` until it is full (answers `true`), the directory
    /// ends, or more would have to be fetched: what is taken may not be kept waiting.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] for a handle that is not open, and what the server answers.
    pub(crate) async fn read_directory(
        &self,
        number: u64,
        offset: u64,
        mut take: impl FnMut(Listed<'_>) -> bool + Send,
    ) -> Result<(), Failure> {
        let directory = self.directories.find(number)?;
        let mut held = directory.page.lock().await;
        let mut after = match offset {
            0 | OFFSET_OF_DOT | OFFSET_OF_DOT_DOT => 0,
            cookie => cookie,
        };
        let mut taken_any = false;
        loop {
            let from = self.position(&directory, &mut held, after).await?;
            let page = held.as_ref().expect("just filled");
            if offset == 0 && !taken_any && !directory.no_atime {
                self.note_listing(directory.inode);
            }
            if after == 0 && !taken_any && take_dots(&directory, page, offset, &mut take) {
                return Ok(());
            }
            let rest = &page.entries[from..];
            for entry in rest {
                let listed = Listed {
                    inode: entry.attributes.inode,
                    offset: entry.cookie,
                    kind: entry.attributes.kind,
                    name: Some(&entry.name),
                };
                if take(listed) {
                    return Ok(());
                }
                after = entry.cookie;
            }
            if page.last || page.entries.is_empty() || !rest.is_empty() {
                return Ok(());
            }
            taken_any = true;
        }
    }

    /// Makes `held` a page that goes on behind `after`; answers the index of its first entry there.
    async fn position(
        &self,
        directory: &DirectoryHandle,
        held: &mut Option<Page>,
        after: u64,
    ) -> Result<usize, Failure> {
        if let Some(page) = held
            && after != 0
        {
            let found = page.entries.iter().position(|entry| entry.cookie == after);
            match found {
                Some(at) if at + 1 < page.entries.len() || page.last => return Ok(at + 1),
                None if page.after == after => return Ok(0),
                _ => {}
            }
        }
        let begun = held.as_ref().filter(|_| after != 0).and_then(|page| page.end);
        // A listing that begins, and `rewinddir`, see the directory as it is now.
        let request = |session| ListEntries {
            caller: directory.caller.clone(),
            session,
            inode: directory.inode,
            from: ListFrom::Cookie(after),
            entries_max: DIRECTORY_PAGE_MAX,
        };
        let reply = self.list_entries(request).await?;
        let entries: Vec<_> = reply.entries.into_iter().map(|covered| covered.entry).collect();
        let reserved = |entry: &DirectoryEntry| entry.cookie == 0 || entry.cookie >= OFFSET_OF_DOT;
        if entries.iter().any(reserved) {
            return Err(Failure::new(ErrorKind::Protocol, "a directory cookie is out of range"));
        }
        // Behind the first page, of which no program has seen anything yet.
        let end = if after == 0 && !reply.last { self.end_of(directory).await? } else { begun };
        let (last, parent) = (reply.last, reply.parent);
        *held = Some(Page { after, entries, last, parent, end }.ended());
        Ok(0)
    }

    /// Where a listing ends that has begun now. Of a directory that is being listed in its bucket
    /// nobody knows; nor does a server from before there was this question.
    async fn end_of(&self, directory: &DirectoryHandle) -> Result<Option<u64>, Failure> {
        let (caller, inode) = (&directory.caller, directory.inode);
        let request = |session| FindEnd { caller: caller.clone(), session, inode };
        match self.ask_as_session(request).await {
            Ok(DirectoryEnd { cookie }) => Ok(cookie),
            Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

impl Page {
    /// Without what was made since the listing began, and everything behind it.
    fn ended(mut self) -> Self {
        if let Some(end) = self.end {
            let listed = self.entries.partition_point(|entry| entry.cookie < end);
            self.last |= listed < self.entries.len();
            self.entries.truncate(listed);
        }
        self
    }
}

fn take_dots(
    directory: &DirectoryHandle,
    page: &Page,
    offset: u64,
    take: &mut impl FnMut(Listed<'_>) -> bool,
) -> bool {
    let dot = |inode, offset| Listed { inode, offset, kind: FileKind::Directory, name: None };
    if offset == 0 && take(dot(directory.inode, OFFSET_OF_DOT)) {
        return true;
    }
    let wanted = offset == 0 || offset == OFFSET_OF_DOT;
    wanted && take(dot(page.parent, OFFSET_OF_DOT_DOT))
}

/// Behind `.`: the kernel passes offsets as signed 64-bit numbers, so that these are the two
/// largest.
const OFFSET_OF_DOT: u64 = i64::MAX.cast_unsigned() - 1;
const OFFSET_OF_DOT_DOT: u64 = i64::MAX.cast_unsigned();
