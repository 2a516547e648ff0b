//! The namespace against itself, before the targets against it: pages of questions in short turns
//! of the engine, at the pace of the rest. What is asked, and why it is never wrong about it, is in
//! [`consistency`](crate::consistency).

use millrace_protocol::fsck::{
    FSCK_FINDINGS_MAX, FlawCount, FlawFinding, NamespaceReport, NamespaceState,
};
use millrace_types::{Failure, InodeId};

use super::{Shared, pace::Pace};
use crate::{
    consistency::{census::Counted, leftover},
    engine::core::Looked,
    store::keys,
};

/// Records of one turn of the engine: some hundred lookups, a millisecond or two.
const RECORDS_A_TURN: usize = 32;

/// Records that are only counted in one turn.
const COUNTED_A_TURN: usize = 512;

/// One look at all of it.
pub(super) struct Itself<'a> {
    pub(super) shared: &'a Shared,
    pub(super) repair: bool,
    pub(super) pace: &'a mut Pace,
}

impl Itself<'_> {
    /// Looks at everything. May be dropped at any await.
    pub(super) async fn run(&mut self) -> Result<(), Failure> {
        let ended = self.look().await;
        // Repairs are told as made once they are on stable storage.
        let ended = match ended {
            Ok(()) if self.repair => self.shared.engine.durable_turn(|_| Ok(())).await,
            ended => ended,
        };
        let now = self.shared.engine.now();
        self.shared.change_namespace(|report| {
            report.ended = Some(now);
            report.state = match &ended {
                Ok(()) => NamespaceState::Done,
                Err(_) => NamespaceState::Failed,
            };
            report.failure = ended.as_ref().err().cloned();
        });
        ended
    }

    async fn look(&mut self) -> Result<(), Failure> {
        self.enter(NamespaceState::Names);
        self.table(keys::all_entries()).await?;
        for table in leftover::TABLES {
            self.table(vec![*table]).await?;
        }
        self.enter(NamespaceState::Inodes);
        self.table(keys::inodes()).await?;
        self.enter(NamespaceState::Counts);
        self.totals().await
    }

    fn enter(&self, state: NamespaceState) {
        self.shared.change_namespace(|report| report.state = state);
    }

    /// Every record of a table.
    async fn table(&mut self, table: Vec<u8>) -> Result<(), Failure> {
        let mut from = Some(table.clone());
        while let Some(key) = from {
            let (prefix, repair) = (table.clone(), self.repair);
            let look = self
                .shared
                .engine
                .turn(move |core| core.look_at(&prefix, &key, RECORDS_A_TURN, repair));
            let Looked { records, names, next, found, large } = look.await?;
            let inodes = if table == keys::inodes() { records } else { 0 };
            self.shared.change_namespace(|report| {
                report.records += records;
                report.inodes += inodes;
                found.into_iter().for_each(|found| tell(report, found));
            });
            self.pace.done(records * cost(&table) + names).await;
            for directory in large {
                self.large(directory).await?;
            }
            from = next;
        }
        Ok(())
    }

    /// A directory with more names than one turn counts.
    async fn large(&mut self, directory: InodeId) -> Result<(), Failure> {
        let repair = self.repair;
        self.count(keys::entries(directory), move |core, counted| {
            core.compare_counts(directory, counted, repair)
        })
        .await
    }

    async fn totals(&mut self) -> Result<(), Failure> {
        let repair = self.repair;
        self.count(keys::inodes(), move |core, counted| {
            core.compare_totals(Some(counted.records), None, repair)
        })
        .await?;
        self.count(keys::reclaims(), move |core, counted| {
            core.compare_totals(None, Some(counted.records), repair)
        })
        .await
    }

    /// Counts, and compares in the turn in which the count comes to its end.
    async fn count(
        &mut self,
        prefix: Vec<u8>,
        compare: impl Fn(&mut crate::engine::Core, Counted) -> Result<Option<FlawFinding>, Failure>
        + Clone
        + Send
        + 'static,
    ) -> Result<(), Failure> {
        let begin = move |core: &mut crate::engine::Core| {
            core.begin_census(prefix);
            Ok(())
        };
        self.shared.engine.turn(begin).await?;
        loop {
            let compare = compare.clone();
            let counted = self.shared.engine.turn(move |core| {
                match core.go_on_with_census(COUNTED_A_TURN)? {
                    Some(counted) => compare(core, counted).map(Some),
                    None => Ok(None),
                }
            });
            if let Some(found) = counted.await? {
                found.into_iter().for_each(|found| {
                    self.shared.change_namespace(|report| tell(report, found));
                });
                return Ok(());
            }
            self.pace.done(COUNTED_A_TURN as u64).await;
        }
    }
}

/// What one record of a table costs, in those that are read one after the other: each question is a
/// few lookups somewhere else.
fn cost(table: &[u8]) -> u64 {
    match table {
        b"D" | b"I" => 8,
        _ => 4,
    }
}

/// Counts a flaw, and tells it in full while there is room.
fn tell(report: &mut NamespaceReport, found: FlawFinding) {
    let FlawFinding { kind, repaired, .. } = found;
    tracing::warn!(kind = kind.name(), inode = %found.inode, repaired, text = found.text,
        "the namespace does not agree with itself");
    let at = report.flaws.iter().position(|count| count.kind == kind).unwrap_or_else(|| {
        report.flaws.push(FlawCount { kind, found: 0, repaired: 0 });
        report.flaws.len() - 1
    });
    report.flaws[at].found += 1;
    report.flaws[at].repaired += u64::from(repaired);
    if report.findings.iter().filter(|told| told.kind == kind).count() < FSCK_FINDINGS_MAX {
        report.findings.push(found);
    }
}

/// Flaws that are not repaired.
pub(super) fn flaws_left(report: &NamespaceReport) -> u64 {
    report.flaws.iter().map(|count| count.found - count.repaired).sum()
}
