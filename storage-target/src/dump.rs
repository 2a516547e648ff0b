//! `millrace-target dump`: what lies on a target's disk, in lines that can be searched.
//!
//! Every line begins with what it is about (`superblock`, `root`, `section:`, `batch`, `record`).
//! What cannot be decoded is said in a line, and the rest goes on. Nothing is kept in memory but
//! what is being printed.
//!
//! Modules: `entries` (of the index), `journal`, `page` (one page, by what it is), [`command`].

use std::io::{self, Write};

use crate::{
    format::{
        root::{ROOT_SLOTS, RootRecord},
        superblock::{COPIES, Superblock},
    },
    image::{PageSource, Tree},
    verify::Unreadable,
};

pub mod command;
mod entries;
mod journal;
mod page;

/// What to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Superblocks, roots and facts.
    Overview,
    /// Every entry of the index, or those of one inode.
    Entries {
        /// Only this inode's.
        inode: Option<u64>,
    },
    /// The space: free maps and summaries.
    Regions,
    /// Batches and records, from the journal's position on.
    Journal,
    /// One page.
    Page(u64),
    /// One entry, by its key.
    Key(Vec<u8>),
}

/// Why a target cannot be printed.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// Neither copy of the superblock can be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// None of the four roots can be read: there is no index to look into.
    #[error("none of the four copies of an index root can be read; try --page")]
    NoRoot,
    /// Nobody reads what is printed.
    #[error("standard output: {0}")]
    Output(#[from] io::Error),
}

/// A target being printed.
struct Dump<'a> {
    source: &'a dyn PageSource,
    superblock: Superblock,
    root: Option<RootRecord>,
    out: &'a mut dyn Write,
}

/// Prints a part of a target.
///
/// # Errors
/// [`DumpError`].
pub fn dump(source: &dyn PageSource, what: &What, out: &mut dyn Write) -> Result<(), DumpError> {
    let copies = COPIES.map(|page| source.pages_at(page, 1).unwrap_or_default());
    let newest = Superblock::newest([&copies[0], &copies[1]]);
    let superblock = newest.map_err(Unreadable::Superblock)?.superblock;
    let root = roots(source, &superblock).into_iter().filter_map(|(_, root)| root.ok());
    let root = root.max_by_key(|root| root.generation);
    let mut dump = Dump { source, superblock, root, out };
    match what {
        What::Overview => dump.overview(),
        What::Entries { inode } => dump.entries(*inode),
        What::Regions => dump.regions(),
        What::Journal => dump.journal(),
        What::Page(page) => dump.page(*page),
        What::Key(key) => dump.key(key),
    }
}

/// The copies of the roots with their pages, decoded or why not.
fn roots(
    source: &dyn PageSource,
    superblock: &Superblock,
) -> Vec<(u64, Result<RootRecord, String>)> {
    let first = superblock.layout.roots;
    let read = |page| {
        let bytes = source.pages_at(page, 1).map_err(|error| error.to_string())?;
        RootRecord::decode(&bytes, superblock.target).map_err(|error| error.to_string())
    };
    (first..first + ROOT_SLOTS).map(|page| (page, read(page))).collect()
}

impl Dump<'_> {
    fn tree(&self) -> Result<Tree<'_>, DumpError> {
        let root = self.root.as_ref().ok_or(DumpError::NoRoot)?;
        Ok(Tree { source: self.source, target: self.superblock.target, root })
    }

    fn overview(&mut self) -> Result<(), DumpError> {
        for copy in 0..COPIES.len() {
            self.superblock_line(copy)?;
        }
        for (page, root) in roots(self.source, &self.superblock) {
            self.root_line(page, root)?;
        }
        self.facts()
    }

    fn superblock_line(&mut self, copy: usize) -> Result<(), DumpError> {
        let (name, page) = (["A", "B"][copy], COPIES[copy]);
        let bytes = self.source.pages_at(page, 1).unwrap_or_default();
        let Superblock { cluster, target, writes, losses, layout } =
            match Superblock::decode(&bytes, copy) {
                Ok(superblock) => superblock,
                Err(error) => {
                    return Ok(writeln!(self.out, "superblock {name} page {page}: {error}")?);
                }
            };
        writeln!(
            self.out,
            "superblock {name} page {page}: target {target} cluster {cluster} write {writes} \
             losses {losses} capacity {} roots {} journal {}..{} regions {} x {}",
            layout.capacity,
            layout.roots,
            layout.journal,
            layout.journal + layout.journal_pages,
            layout.region_count(),
            layout.regions
        )?;
        Ok(())
    }

    fn root_line(&mut self, page: u64, root: Result<RootRecord, String>) -> Result<(), DumpError> {
        let root = match root {
            Ok(root) => root,
            Err(error) => return Ok(writeln!(self.out, "root page {page}: {error}")?),
        };
        let top = root.root.map_or_else(
            || "none".to_owned(),
            |top| format!("{} {:08x}", top.page, top.checksum.0),
        );
        let segments: Vec<String> = root
            .segments
            .iter()
            .map(|segment| format!("{}..{}", segment.first, segment.end()))
            .collect();
        writeln!(
            self.out,
            "root page {page}: generation {} through {} top {top} height {} entries {} nodes {} \
             segments {}",
            root.generation,
            root.through,
            root.height,
            root.entries,
            root.nodes,
            segments.join(" ")
        )?;
        Ok(())
    }
}
