//! Batches and records of the journal.

use millrace_types::Crc32c;

use super::{Dump, DumpError, entries};
use crate::{
    format::{
        batch::{Batch, Position},
        change::Change,
        extent::Extent,
        fact::{Fact, FactNumber},
        table::TableKey,
    },
    image::{Words, checksum},
    verify::journal::Chain,
};

impl Dump<'_> {
    pub(super) fn journal(&mut self) -> Result<(), DumpError> {
        let number = FactNumber::JournalPosition;
        let value = self.tree()?.get(TableKey::Fact(number).encode().as_slice());
        let stored = value.ok().flatten().and_then(|value| Fact::decode(number, &value).ok());
        let layout = self.superblock.layout;
        let start = match stored {
            Some(Fact::JournalPosition(position)) => position,
            _ => Position { page: layout.journal, sequence: 1, previous: Crc32c::EMPTY },
        };
        let ring = layout.journal..layout.journal + layout.journal_pages;
        if !ring.contains(&start.page) {
            return Ok(writeln!(self.out, "journal: page {} is not in its ring", start.page)?);
        }
        let superblock = self.superblock.clone();
        let mut chain = Chain::new(self.source, &superblock, start);
        loop {
            match chain.next() {
                Ok(Some(link)) => {
                    if let Some(flip) = link.flip {
                        let page = link.batch.header.position.page;
                        writeln!(self.out, "batch page {page}: damaged: {flip}")?;
                    }
                    self.batch(&link.batch)?;
                }
                Ok(None) => break,
                Err((page, error)) => {
                    writeln!(self.out, "batch page {page}: {error}")?;
                    break;
                }
            }
        }
        let Position { page, sequence, .. } = chain.due;
        writeln!(self.out, "journal: goes on at page {page} with record {sequence}")?;
        Ok(())
    }

    pub(super) fn batch(&mut self, batch: &Batch) -> Result<(), DumpError> {
        let Position { page, sequence, previous } = batch.header.position;
        let boot: String = batch.header.boot.0.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(
            self.out,
            "batch page {page}: records {sequence} to {} committed {} boot {boot} checksum {} \
             previous {} pages {}",
            batch.next_sequence() - 1,
            batch.header.committed,
            checksum(batch.checksum),
            checksum(previous),
            batch.pages
        )?;
        for (sequence, record) in (sequence..).zip(&batch.records) {
            match Change::decode(record) {
                Ok(change) => self.record(sequence, &change)?,
                Err(error) => writeln!(self.out, "record {sequence}: {error}")?,
            }
        }
        Ok(())
    }

    fn record(&mut self, sequence: u64, change: &Change) -> Result<(), DumpError> {
        let text = match change {
            Change::Sections(change) => {
                let (session, number) = (change.session.0, change.number.0);
                let (taken, given_up) = (words(change.taken()), words(change.given_up()));
                let kind = if change.is_beside { "sections beside data" } else { "sections" };
                writeln!(
                    self.out,
                    "record {sequence}: {kind} session {session} write {number} takes {taken} \
                     gives up {given_up}"
                )?;
                for (key, section) in change.sections() {
                    let section = section.as_ref().map(entries::of_section);
                    let section = section.unwrap_or_else(|| "gone".to_owned());
                    writeln!(self.out, "record {sequence}: section: {}: {section}", Words(*key))?;
                }
                return Ok(());
            }
            Change::Remove(removal) => {
                let given_up = words(removal.given_up());
                writeln!(self.out, "record {sequence}: remove gives up {given_up}")?;
                for key in removal.sections() {
                    writeln!(self.out, "record {sequence}: section: {}: gone", Words(*key))?;
                }
                return Ok(());
            }
            Change::Mark(inode, mark) => format!(
                "mark inode {} generation {} write epoch {}",
                inode.0, mark.generation.0, mark.write_epoch.0
            ),
            Change::Fact(fact) => {
                format!("fact {}: {}", Words(fact.number()), entries::of_fact(fact))
            }
            Change::Finding(key, finding) => {
                format!("finding {}: {}", Words(*key), entries::of_finding(finding))
            }
            Change::Mended(key) => format!("mended {}", Words(*key)),
            Change::Lost(group, mark) => {
                format!("lost group {} inodes below {}", group.0, mark.below.0)
            }
            Change::Stop => "stop".to_owned(),
        };
        writeln!(self.out, "record {sequence}: {text}")?;
        Ok(())
    }
}

fn words(extents: &[Extent]) -> String {
    if extents.is_empty() {
        return "nothing".to_owned();
    }
    extents.iter().map(|extent| Words(*extent).to_string()).collect::<Vec<_>>().join(", ")
}
