//! Copies: one target writes what it reads itself, and no byte comes here.

use std::{ops::Range, time::Instant};

use millrace_protocol::storage::CopyRange;
use millrace_transport::Body;
use millrace_types::Failure;

use super::{READ_DEADLINE, Written};
use crate::{
    cluster::{Cluster, lanes::Purpose},
    fs::file::Access,
};

impl Cluster {
    /// Writes to `range` what `source_range`, of the same length, has: each lies within one chunk,
    /// and is at most one transfer long. May be dropped while it waits: the target then gives up
    /// what it still reads, and writes what it has read.
    ///
    /// # Errors
    /// What the target answers for either of the two; [`millrace_types::ErrorKind::NotSupported`]
    /// where it cannot do that; [`millrace_types::ErrorKind::Unavailable`] after the mount's
    /// patience.
    pub(crate) async fn copy(
        &self,
        (access, range): (&Access, Range<u64>),
        (source, source_range): (&Access, Range<u64>),
    ) -> Result<Written, Failure> {
        let number = self.writes.begin();
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let from = self.aim_once_known(source, &source_range, &mut attempts).await?;
            let aim = self.aim_once_known(access, &range, &mut attempts).await?;
            let (number, lowest_pending) = number.write();
            let (place, source) = (aim.place, from.place);
            let request = CopyRange { place, source, number, lowest_pending, durable: false };
            let asked = (&aim.peer, aim.route.target);
            // It reads first, from a bucket maybe.
            let patience = (&mut attempts, READ_DEADLINE);
            let answer = self.ask_target(Purpose::Copy, asked, &request, Body::default(), patience);
            match answer.await {
                Ok((reply, _)) => {
                    let target = aim.route.target;
                    return Ok(Written { target, loss_count: reply.loss_count });
                }
                Err(failure) => {
                    self.after(failure, Some(&aim.peer), &mut attempts).await?;
                }
            }
        }
    }
}
