//! What the index holds of the space, collected at a start.

use super::Summary;
use crate::format::{
    FormatError,
    free_map::{SUMMARY_GROUP, decode_summaries},
};

/// The summaries of all regions, as the index has them.
#[derive(Debug, Default)]
pub struct StoredSummaries {
    /// Four bytes a region, up to the last that is not empty.
    summaries: Vec<Summary>,
}

impl StoredSummaries {
    /// Adds the value of a group (key `04`, number of the group). Groups come in order.
    ///
    /// # Errors
    /// [`FormatError`] when the value is impossible, or the group is not after the one before.
    pub fn add(&mut self, group: u32, value: &[u8]) -> Result<(), FormatError> {
        let first = u64::from(group) * u64::from(SUMMARY_GROUP);
        let impossible =
            FormatError::Impossible { what: "the table of region summaries", field: "order" };
        if (self.summaries.len() as u64) > first || first > u64::from(u32::MAX) {
            return Err(impossible);
        }
        let summaries = decode_summaries(value)?;
        let first = usize::try_from(first).map_err(|_| impossible)?;
        self.summaries.resize(first, Summary::EMPTY);
        self.summaries.extend(summaries);
        Ok(())
    }

    /// Regions up to the last one that is in use.
    #[must_use]
    pub fn regions(&self) -> u32 {
        let used = self.summaries.iter().rposition(|summary| *summary != Summary::EMPTY);
        u32::try_from(used.map_or(0, |last| last + 1)).unwrap_or(u32::MAX)
    }

    pub(super) fn into_summaries(self) -> Vec<Summary> {
        self.summaries
    }
}
