//! What one target holds, inode by inode, fetched a page at a time.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use async_trait::async_trait;
use millrace_protocol::{
    fsck::{ContentPosition, ContentsPage, ListContents},
    target::{Presence, PresenceReply},
};
use millrace_types::{ErrorKind, Failure, HostId, InodeId, TargetId, Timestamp};

use super::compare::HeldContent;
use crate::targets::peers::Peers;

/// The target daemons, as far as a check asks them.
#[async_trait]
pub trait Targets: std::fmt::Debug + Send + Sync + 'static {
    /// A page of what lies on a target.
    ///
    /// # Errors
    /// The daemon's own, or that it cannot be reached.
    async fn list(&self, host: HostId, request: ListContents) -> Result<ContentsPage, Failure>;

    /// How many bytes of some contents are there.
    ///
    /// # Errors
    /// As [`Self::list`].
    async fn presence(&self, host: HostId, request: Presence) -> Result<PresenceReply, Failure>;
}

/// How long one answer may take: a page is some thousand look-ups in an index.
const PATIENCE: Duration = Duration::from_secs(60);

#[async_trait]
impl Targets for Peers {
    async fn list(&self, host: HostId, request: ListContents) -> Result<ContentsPage, Failure> {
        self.ask(host, &request, PATIENCE).await
    }

    async fn presence(&self, host: HostId, request: Presence) -> Result<PresenceReply, Failure> {
        self.ask(host, &request, PATIENCE).await
    }
}

/// Everything of one inode that a target holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Held {
    pub(super) inode: InodeId,
    pub(super) contents: Vec<HeldContent>,
}

/// A walk over what one target holds, in the order of inodes.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) target: TargetId,
    host: HostId,
    targets: Arc<dyn Targets>,
    chunks_max: u32,
    /// Inodes that are listed to their end and not taken yet.
    ready: VecDeque<Held>,
    /// The inode in which the last page ended.
    partial: Option<Held>,
    /// Where the next page begins; `None` at the end of the list.
    next: Option<ContentPosition>,
    /// No page of what is not taken yet was asked for before this.
    pub(super) listed: Timestamp,
    /// Chunks that the target has listed.
    pub(super) chunks: u64,
}

/// Chunks of one inode that are kept in memory at once: 32 TiB on one target in chunks of 8 MiB.
const CHUNKS_OF_INODE_MAX: usize = 1 << 22;

impl Listing {
    /// Begins before the first inode.
    pub(super) fn new(
        target: TargetId,
        host: HostId,
        targets: Arc<dyn Targets>,
        chunks_max: u32,
    ) -> Self {
        Self {
            target,
            host,
            targets,
            chunks_max,
            ready: VecDeque::new(),
            partial: None,
            next: Some(ContentPosition::default()),
            listed: Timestamp::default(),
            chunks: 0,
        }
    }

    /// Everything below this inode is known; `None`: everything there is.
    pub(super) fn known_below(&self) -> Option<InodeId> {
        self.next.map(|next| next.inode)
    }

    /// Fetches pages until `inode` is known. Call it when everything below `inode` was taken, or is
    /// not wanted. `now` tells the server's time.
    ///
    /// # Errors
    /// Those of the target; [`ErrorKind::Protocol`] when it lists out of order.
    pub(super) async fn reach(
        &mut self,
        inode: InodeId,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), Failure> {
        while let Some(next) = self.next
            && next.inode <= inode
        {
            if self.partial.is_none() {
                self.listed = now();
            }
            let (target, chunks_max) = (self.target, self.chunks_max);
            let request = ListContents { target, from: next, chunks_max };
            let page = self.targets.list(self.host, request).await?;
            self.take_page(next, page)?;
        }
        Ok(())
    }

    /// Goes on from `inode`, if that saves pages.
    pub(super) fn skip_to(&mut self, inode: InodeId) {
        let Some(next) = self.next else { return };
        if next.inode < inode {
            self.ready.clear();
            self.partial = None;
            self.next = Some(ContentPosition::of_inode(inode));
        }
    }

    /// What the target holds of `inode`, which must be known; what lies before is dropped.
    pub(super) fn take(&mut self, inode: InodeId) -> Vec<HeldContent> {
        while let Some(held) = self.ready.front()
            && held.inode < inode
        {
            self.ready.pop_front();
        }
        match self.ready.front() {
            Some(held) if held.inode == inode => {
                self.ready.pop_front().map_or_else(Vec::new, |held| held.contents)
            }
            _ => Vec::new(),
        }
    }

    /// The next inode that is known, not taken, and below `end`.
    pub(super) fn peek_below(&self, end: InodeId) -> Option<InodeId> {
        self.ready.front().map(|held| held.inode).filter(|inode| *inode < end)
    }

    fn take_page(&mut self, from: ContentPosition, page: ContentsPage) -> Result<(), Failure> {
        let mut at = Some(from);
        for listed in page.contents {
            let name = listed.content;
            for &chunk in &listed.chunks {
                let (inode, generation) = (name.inode, name.generation);
                let position = ContentPosition { inode, generation, chunk };
                if at.is_none_or(|at| position < at) {
                    return Err(self.disorder());
                }
                at = position.next();
            }
            self.chunks += listed.chunks.len() as u64;
            let content = HeldContent { generation: name.generation, chunks: listed.chunks };
            self.push(name.inode, content)?;
        }
        let forward = page.next.is_none_or(|next| next > from && at.is_some_and(|at| next >= at));
        if !forward {
            return Err(self.disorder());
        }
        self.next = page.next;
        if let Some(partial) = self.partial.take() {
            match self.next {
                Some(next) if next.inode == partial.inode => self.partial = Some(partial),
                _ => self.ready.push_back(partial),
            }
        }
        Ok(())
    }

    fn push(&mut self, inode: InodeId, content: HeldContent) -> Result<(), Failure> {
        match &mut self.partial {
            Some(held) if held.inode == inode => match held.contents.last_mut() {
                Some(last) if last.generation == content.generation => {
                    if last.chunks.len() + content.chunks.len() > CHUNKS_OF_INODE_MAX {
                        let text = format!(
                            "target {} holds more chunks of {inode} than a check can take",
                            self.target
                        );
                        return Err(Failure::new(ErrorKind::NotSupported, text));
                    }
                    last.chunks.extend(content.chunks);
                }
                _ => held.contents.push(content),
            },
            partial => {
                let whole = partial.replace(Held { inode, contents: vec![content] });
                self.ready.extend(whole);
            }
        }
        Ok(())
    }

    fn disorder(&self) -> Failure {
        let text = format!("target {} lists its contents out of order", self.target);
        Failure::new(ErrorKind::Protocol, text)
    }
}
