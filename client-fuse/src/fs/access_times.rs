//! Noting what programs read, and telling the metadata server.

use std::time::Duration;

use millrace_protocol::{
    access::NoteReads,
    lease::{EntriesPage, MadeName, News, RemovedName, ShownContents},
    metadata::{Attributes, InodeReply},
    session::Done,
};
use millrace_types::{Failure, InodeId};

use crate::fs::FileSystem;

/// An answer of the server's that may show attributes.
pub(crate) trait Shows {
    /// Those that it shows.
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes>;
}

impl FileSystem {
    /// A program reads what shows `shown`, which then shows that. Whether it shows anything else.
    pub(crate) fn note_read(&self, shown: &mut Attributes) -> bool {
        if !self.access_times.may_be_due(shown) {
            return false;
        }
        let before = shown.accessed;
        self.access_times.note(shown, self.cluster.now());
        let is_noted = shown.accessed != before;
        if is_noted {
            self.names.show_access(shown.inode, shown.accessed);
        }
        is_noted
    }

    /// A program lists a directory.
    pub(super) fn note_listing(&self, directory: InodeId) {
        if !self.access_times.follows_directories() {
            return;
        }
        match self.names.attributes(directory) {
            Some((mut shown, _)) => {
                self.note_read(&mut shown);
            }
            None => self.access_times.note_unseen(directory, self.cluster.now()),
        }
    }

    /// The answer with what was read here and the server did not know yet.
    pub(super) fn with_reads<A: Shows>(&self, mut answer: A) -> A {
        answer.shown().for_each(|shown| self.access_times.show(shown));
        answer
    }

    /// Tells the server what was read, every so often and whenever there is a whole batch. May be
    /// dropped at any time.
    pub(crate) async fn tell_reads_every(&self, period: Duration) {
        if !self.access_times.is_used() {
            return;
        }
        loop {
            tokio::select! {
                () = tokio::time::sleep(period) => {}
                () = self.access_times.full() => {}
            }
            if let Err(failure) = self.tell_reads().await {
                tracing::debug!(%failure, "times of access are told later");
                tokio::time::sleep(period).await;
            }
        }
    }

    /// Tells the server what was read. May be dropped at any time: what the server has not
    /// confirmed is told again.
    ///
    /// # Errors
    /// [`millrace_types::ErrorKind::Unavailable`] when it does not answer.
    pub(crate) async fn tell_reads(&self) -> Result<(), Failure> {
        self.access_times.handle_told(&[], self.cluster.now());
        // What is read meanwhile waits for the next time.
        for _ in 0..self.access_times.batches() {
            let batch = self.access_times.batch();
            let request = |session| NoteReads { session, reads: batch.clone() };
            match self.ask_as_session(request).await {
                Ok(_) => self.access_times.handle_told(&batch, self.cluster.now()),
                Err(failure) if failure.kind.is_transient() => return Err(failure),
                Err(failure) => {
                    tracing::debug!(%failure, reads = batch.len(), "times of access are lost");
                    self.access_times.handle_refused(&batch);
                }
            }
        }
        Ok(())
    }
}

impl Shows for InodeReply {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        std::iter::once(&mut self.attributes)
    }
}

impl Shows for EntriesPage {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        let entries = self.entries.iter_mut().map(|at| &mut at.entry.attributes);
        entries.chain(&mut self.directory)
    }
}

impl Shows for MadeName {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        self.reply.shown().chain(&mut self.directory)
    }
}

impl Shows for RemovedName {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        self.directory.iter_mut()
    }
}

impl Shows for News {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        self.shown.iter_mut()
    }
}

impl Shows for ShownContents {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        self.contents.iter_mut().map(|content| &mut content.attributes)
    }
}

impl Shows for Done {
    fn shown(&mut self) -> impl Iterator<Item = &mut Attributes> {
        std::iter::empty()
    }
}
