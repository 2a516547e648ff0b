//! Requests that make and remove names, of several kinds each.

use std::{ffi::OsStr, sync::Arc};

use millrace_fuse_server::{Call, Done, Reply, protocol::attr::EntryReply};
use millrace_protocol::metadata::NewNode;
use millrace_types::Failure;

use super::{
    Adapter,
    answer::{Owed, caller_of},
    convert::file_name,
};
use crate::fs::{kernel_names::Shown, names::NewMode};

impl Adapter {
    pub(super) fn make_node(
        &self,
        call: &Call<'_>,
        name: &OsStr,
        node: Result<NewNode, Failure>,
        mode: NewMode,
        reply: Reply<EntryReply>,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(call), self.inode(call.node));
        let (name, places) = (file_name(name), Arc::clone(&self.places));
        let work = self.places.change(async move {
            let name = name?;
            let made = fs.make_node(caller, parent, name.clone(), node?, mode).await?;
            places.take(&made, parent, &name);
            Ok(Shown::once(made))
        });
        self.answer_entry(Owed::new(call, reply), work);
    }

    pub(super) fn remove(
        &self,
        call: &Call<'_>,
        name: &OsStr,
        directory: bool,
        reply: Reply<Done>,
    ) {
        let (fs, caller, parent) = (Arc::clone(&self.fs), caller_of(call), self.inode(call.node));
        let name = file_name(name);
        let work = async move { fs.remove(caller, parent, name?, directory).await };
        let work = self.places.change(work);
        self.answer_done(Owed::new(call, reply), work);
    }
}
