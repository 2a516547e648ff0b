//! The namespace against itself: pages of questions, each in one turn, with the repairs of what
//! they find; and counts over many turns.

use std::ops::Bound;

use millrace_protocol::{admin::PathBytes, fsck::FlawFinding};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::Core;
use crate::{
    command::{Command, LOST_FOUND, Repair},
    consistency::{
        self, Flaw,
        census::{Census, Counted},
    },
    namespace::{Inode, tree},
    store::{Batch, StoreError, View, borrow, keys, prefix_end, records},
};

/// What one page of a table has shown.
#[derive(Debug, Default)]
pub struct Looked {
    /// Records looked at.
    pub records: u64,
    /// Names counted.
    pub names: u64,
    /// Where the next page begins; `None` at the end of the table.
    pub next: Option<Vec<u8>>,
    /// What is wrong, and what of that is repaired.
    pub found: Vec<FlawFinding>,
    /// Directories that have more names than one turn may count.
    pub large: Vec<InodeId>,
}

impl Core {
    /// Looks at the records from `from` on whose keys begin with `table`, about `limit` of them.
    ///
    /// # Errors
    /// When the store is broken, and as [`Core::execute`] where there is something to repair.
    pub fn look_at(
        &mut self,
        table: &[u8],
        from: &[u8],
        limit: usize,
        repair: bool,
    ) -> Result<Looked, Failure> {
        let end = prefix_end(table);
        let page = self.view().scan(Bound::Included(from), borrow(&end), limit);
        let page = page.map_err(|error| self.failure(error.into()))?;
        let next = match page.last() {
            Some((last, _)) if page.len() >= limit => Some([last.as_slice(), &[0]].concat()),
            _ => None,
        };
        let mut looked = Looked { next, ..Looked::default() };
        let mut repairs = 0;
        for (key, value) in page {
            if repairs >= REPAIRS_A_TURN || looked.names >= NAMES_A_TURN as u64 {
                looked.next = Some(key);
                break;
            }
            looked.records += 1;
            let value = match repairs {
                0 => Some(value),
                // A repair of a record before may have changed or removed it.
                _ => self.view().get(&key).map_err(|error| self.failure(error.into()))?,
            };
            let Some(value) = value else { continue };
            repairs += self.look_at_one(&key, &value, repair, &mut looked)?;
        }
        Ok(looked)
    }

    /// Looks at one record; returns how many repairs were made.
    fn look_at_one(
        &mut self,
        key: &[u8],
        value: &[u8],
        repair: bool,
        looked: &mut Looked,
    ) -> Result<usize, Failure> {
        let flaws = consistency::flaws(self.view(), key, value);
        let flaws = flaws.map_err(|error| self.failure(error.into()))?;
        let mut repairs = 0;
        let mut findings = self.findings(&flaws)?;
        if repair {
            let mut made: Vec<&Repair> = Vec::new();
            for order in flaws.iter().filter_map(|flaw| flaw.repair.as_ref()) {
                if !made.contains(&order) {
                    self.repair_flaw(order)?;
                    made.push(order);
                }
            }
            repairs = made.len();
            if repairs > 0 {
                let left = self.flaws_left(key)?;
                for finding in &mut findings {
                    finding.repaired = !left.iter().any(|flaw| flaw.kind == finding.kind);
                }
            }
        }
        looked.found.append(&mut findings);
        if key.first() == Some(&b'I') {
            repairs += self.look_at_counts(key, repair, looked)?;
        }
        Ok(repairs)
    }

    fn flaws_left(&mut self, key: &[u8]) -> Result<Vec<Flaw>, Failure> {
        let left = self.view().get(key).and_then(|value| match value {
            Some(value) => consistency::flaws(self.view(), key, &value),
            None => Ok(Vec::new()),
        });
        left.map_err(|error| self.failure(error.into()))
    }

    /// Counts the names in a directory, if they are few; notes it otherwise.
    fn look_at_counts(
        &mut self,
        key: &[u8],
        repair: bool,
        looked: &mut Looked,
    ) -> Result<usize, Failure> {
        let inode = records::read::<Inode>(self.view(), key);
        let inode = inode.map_err(|error| self.failure(error.into()))?;
        let Some(inode) = inode.filter(Inode::is_directory) else { return Ok(0) };
        let mut census = Census::new(keys::entries(inode.id));
        let counted = census.count(self.view(), NAMES_A_TURN);
        match counted.map_err(|error| self.failure(error.into()))? {
            Some(counted) => {
                looked.names += counted.records;
                let found = self.compare_counts(inode.id, counted, repair)?;
                let repairs = usize::from(repair && found.is_some());
                looked.found.extend(found);
                Ok(repairs)
            }
            None => {
                looked.names += NAMES_A_TURN as u64;
                looked.large.push(inode.id);
                Ok(0)
            }
        }
    }

    /// Compares what a directory says of its names with how many there are at this index.
    ///
    /// # Errors
    /// As [`Self::look_at`].
    pub fn compare_counts(
        &mut self,
        directory: InodeId,
        counted: Counted,
        repair: bool,
    ) -> Result<Option<FlawFinding>, Failure> {
        let inode =
            tree::find(self.view(), directory).map_err(|error| self.failure(error.into()))?;
        let flaw = inode.as_ref().and_then(|inode| consistency::inode::counts(inode, counted));
        self.find_one(flaw, repair)
    }

    /// Compares the counts of the file system with what there is at this index. Whoever has both
    /// counts has them of this turn.
    ///
    /// # Errors
    /// As [`Self::look_at`].
    pub fn compare_totals(
        &mut self,
        inodes: Option<u64>,
        reclaim_entries: Option<u64>,
        repair: bool,
    ) -> Result<Option<FlawFinding>, Failure> {
        let said = self.file_system()?;
        let flaw = consistency::totals(&said, inodes, reclaim_entries);
        self.find_one(flaw, repair)
    }

    fn find_one(
        &mut self,
        flaw: Option<Flaw>,
        repair: bool,
    ) -> Result<Option<FlawFinding>, Failure> {
        let Some(flaw) = flaw else { return Ok(None) };
        let mut finding = self.findings(std::slice::from_ref(&flaw))?.pop();
        if let (Some(order), true) = (&flaw.repair, repair) {
            self.repair_flaw(order)?;
            finding.iter_mut().for_each(|finding| finding.repaired = true);
        }
        Ok(finding)
    }

    /// Executes one repair; what it may put into `/lost+found` has that to go to.
    fn repair_flaw(&mut self, order: &Repair) -> Result<(), Failure> {
        if matches!(order, Repair::Inode { .. }) {
            self.make_lost_found(order)?;
        }
        self.execute(None, Command::Repair(order.clone())).map(drop)
    }

    /// Makes `/lost+found`, if this repair needs it and there is no such name.
    fn make_lost_found(&mut self, order: &Repair) -> Result<(), Failure> {
        let Repair::Inode { inode } = order else { return Ok(()) };
        let needed = consistency::inode::is_lost(self.view(), *inode);
        let name = FileName::parse(LOST_FOUND)?;
        let there = tree::entry(self.view(), InodeId::ROOT, &name);
        let there = there.map_err(|error| self.failure(error.into()))?.is_some();
        if !needed.map_err(|error| self.failure(error.into()))? || there {
            return Ok(());
        }
        let inode = self.new_inode_id()?;
        self.execute(None, Command::Repair(Repair::LostFound { inode })).map(drop)
    }

    /// What is told of flaws, before they are repaired.
    fn findings(&mut self, flaws: &[Flaw]) -> Result<Vec<FlawFinding>, Failure> {
        let told = flaws.iter().map(|flaw| {
            let path = path_of(self.view(), flaw)?;
            let Flaw { kind, inode, text, .. } = flaw.clone();
            Ok(FlawFinding { kind, inode, path, text, repaired: false })
        });
        let told: Result<Vec<_>, StoreError> = told.collect();
        told.map_err(|error| self.failure(error.into()))
    }

    /// Begins to count records whose keys begin with `prefix`; a count that was under way ends.
    pub fn begin_census(&mut self, prefix: Vec<u8>) {
        self.census = Some(Census::new(prefix));
    }

    /// Counts some more; the count of this index, when it has come to the end.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when the store was made anew meanwhile; when it is broken.
    pub fn go_on_with_census(&mut self, limit: usize) -> Result<Option<Counted>, Failure> {
        let Some(mut census) = self.census.take() else {
            return Err(Failure::new(ErrorKind::Cancelled, "the store was made anew meanwhile"));
        };
        let counted = census.count(self.view(), limit);
        let counted = counted.map_err(|error| self.failure(error.into()))?;
        if counted.is_none() {
            self.census = Some(census);
        }
        Ok(counted)
    }

    /// Ends a count that nobody goes on with.
    pub fn end_census(&mut self) {
        self.census = None;
    }

    /// Has the count that is under way follow a command.
    pub(super) fn follow_census(&mut self, batch: &Batch) {
        let Some(census) = &mut self.census else { return };
        if let Err(error) = census.before_commit(&*self.store.0, batch) {
            // If it is the store that failed, the commit finds out.
            tracing::warn!(%error, "a count is given up");
            self.census = None;
        }
    }
}

/// The path of what a flaw is about, as far as there is one.
fn path_of(view: &dyn View, flaw: &Flaw) -> Result<Option<PathBytes>, StoreError> {
    let Some((directory, name)) = &flaw.place else {
        return match tree::find(view, flaw.inode)? {
            Some(inode) => tree::path(view, &inode),
            None => Ok(None),
        };
    };
    let Some(directory) = tree::find(view, *directory)? else { return Ok(None) };
    let path = tree::path(view, &directory)?.map(|mut path| {
        if path != b"/" {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        path
    });
    Ok(path)
}

/// Repairs of one turn: each is a record of the log.
const REPAIRS_A_TURN: usize = 16;

/// Names that are counted in one turn: some milliseconds.
const NAMES_A_TURN: usize = 1024;
