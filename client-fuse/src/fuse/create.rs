//! Files that a program makes and opens.

use std::{ffi::OsStr, sync::Arc};

use millrace_fuse_server::{
    Call, Reply,
    protocol::open::{Create, CreateReply},
};
use millrace_protocol::metadata::Attributes;
use millrace_types::Failure;

use crate::{
    fs::open::Opened,
    fuse::{
        Adapter,
        answer::{Owed, caller_of, entry, entry_shown, open_reply},
        convert::{errno, file_name},
    },
};

impl Adapter {
    /// Makes a file: at once where this mount may do that by itself.
    pub(super) fn create_file(
        &self,
        call: &Call<'_>,
        create: Create,
        name: &OsStr,
        reply: Reply<CreateReply>,
    ) {
        let name = match file_name(name) {
            Ok(name) => name,
            Err(failure) => return reply.fail(errno(&failure)),
        };
        let (caller, parent) = (caller_of(call), self.inode(call.node));
        let mode = self.new_mode(create.mode, create.umask);
        let flags = create.flags.cast_signed();
        match self.fs.create_here(&caller, (parent, &name), mode, flags) {
            Some(Ok((found, opened))) => {
                // Whoever made the file has something to wait for at its close, also if it writes
                // nothing.
                if let Ok(handle) = self.fs.handle(opened.handle) {
                    handle.writers.record(call.pid);
                }
                let open = open_reply(&opened, flags);
                return reply.send(&CreateReply { entry: entry_shown(&found, self.root), open });
            }
            Some(Err(failure)) => return reply.fail(errno(&failure)),
            None => {}
        }
        let fs = Arc::clone(&self.fs);
        let work = async move { fs.create(caller, parent, name, mode, flags).await };
        let work = self.places.change(work);
        self.answer_create(Owed::new(call, reply), work, flags);
    }

    /// Answers with a file that is made and opened.
    pub(super) fn answer_create(
        &self,
        owed: Owed<CreateReply>,
        work: impl Future<Output = Result<(Attributes, Opened), Failure>> + Send + 'static,
        flags: i32,
    ) {
        let (fs, root) = (Arc::clone(&self.fs), self.root);
        self.run(async move {
            owed.answer(
                work,
                |reply, (found, opened)| {
                    let open = open_reply(&opened, flags);
                    reply.send(&CreateReply { entry: entry(&found, root), open });
                },
                async |(_, opened): (Attributes, Opened)| fs.abandon(opened.handle).await,
            )
            .await;
        });
    }
}
