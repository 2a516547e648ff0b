//! Listings, with or without what their names lead to.
//!
//! With attributes the kernel looks nothing up by itself: whoever lists a directory and looks at
//! each entry asks once for many. What cannot be kept is left out there, and asked for by name:
//! directories (whose places are watched), what is open here, and what no lease covers.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _, sync::Arc};

use millrace_fuse_server::{
    Call, Reply,
    protocol::{
        attr::EntryReply,
        data::Read,
        directory::{DirectoryEntry, DirectoryPage, file_type as entry_type},
    },
};
use millrace_protocol::{metadata::FileKind, session::Caller};
use millrace_types::InodeId;

use crate::{
    fs::{FileSystem, readdir::Listed},
    fuse::{
        Adapter,
        answer::{Owed, caller_of, entry_shown, number},
        convert::file_type,
    },
};

impl Adapter {
    pub(super) fn list(
        &self,
        call: &Call<'_>,
        read: Read,
        reply: Reply<DirectoryPage>,
        with_attributes: bool,
    ) {
        let (fs, root, owed) = (Arc::clone(&self.fs), self.root, Owed::interruptible(call, reply));
        let (caller, directory) = (caller_of(call), self.inode(call.node));
        self.run(async move {
            let work = async {
                let mut page = DirectoryPage::new(read.size);
                fs.read_directory(read.handle, read.offset, |listed| {
                    let entry = DirectoryEntry {
                        ino: number(listed.inode, root),
                        offset: listed.offset,
                        file_type: entry_type(file_type(listed.kind)),
                        ..DirectoryEntry::default()
                    };
                    let name = OsStr::from_bytes(listed.name());
                    !if with_attributes {
                        let found = found(&fs, &caller, directory, &listed, root);
                        page.push_plus(&found, entry, name)
                    } else {
                        page.push(entry, name)
                    }
                })
                .await?;
                Ok(page)
            };
            owed.answer_with(work, |reply, page| reply.send(&page)).await;
        });
    }
}

/// What the kernel may keep of an entry; nothing where it shall look the name up.
fn found(
    fs: &FileSystem,
    caller: &Caller,
    directory: InodeId,
    listed: &Listed<'_>,
    root: InodeId,
) -> EntryReply {
    let shown = match &listed.name {
        Some(name) if listed.kind != FileKind::Directory => {
            fs.lookup_kept(caller, directory, name).and_then(Result::ok)
        }
        _ => None,
    };
    match shown {
        Some(shown) if shown.attributes.inode == listed.inode && shown.keep.is_whole() => {
            entry_shown(&shown, root)
        }
        _ => EntryReply::default(),
    }
}
