//! Operations, tried in one turn of the engine after the other, and what must happen in between.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::BoxFuture;
use millrace_types::{ErrorKind, Failure, HostId};

use super::{
    MetadataService,
    answer::{Answer, Attempt, Durability, Reading},
    recalls::{self, given_back},
};
use crate::{
    engine::Core,
    hydration::Listing,
    ops::{Client, Need, Step},
};

/// How often one request may need something before it goes on. Each is settled once; more means
/// that others change the same names all the time.
pub(super) const NEEDS_MAX: usize = 16;

/// How long an operation waits for a bucket in one attempt. A client that hears then that nothing
/// was executed gives it a new number, so that those that overtake it are not held up: see
/// [`Operation::SPAN_MAX`](millrace_protocol::session::Operation::SPAN_MAX).
pub(super) const BUCKET_WAIT_MAX: Duration = Duration::from_secs(10);

impl MetadataService {
    /// Tries an operation until it is done.
    ///
    /// # Errors
    /// What it answers; what has to happen first; [`ErrorKind::Busy`] and
    /// [`ErrorKind::Unavailable`] when that has no end.
    pub(super) async fn execute(
        &self,
        mut client: Client,
        durability: Durability,
        attempt: Attempt,
    ) -> Result<Answer, Failure> {
        // Held until it is executed: nothing is granted meanwhile of what was taken back.
        let (mut executed, mut recalled) = (false, Vec::new());
        let mut needs = 0;
        while needs < NEEDS_MAX {
            needs += 1;
            let (of_turn, caller) = (Arc::clone(&attempt), client.clone());
            let waited = recalled.clone();
            let work = move |core: &mut Core| {
                let step = core.attempt(waited, |core| of_turn(core, &caller));
                Ok((step, core.take_answer_waits()))
            };
            let (step, waits) = match durability {
                Durability::Written => self.engine.turn(work).await?,
                Durability::Synced => self.engine.durable_turn(work).await?,
            };
            if matches!(step, Ok(Step::Done(_)) | Err(_)) && !waits.is_empty() {
                let began = Instant::now();
                let heard = recalls::heard(waits).await;
                self.metrics.handle_recall(began.elapsed());
                heard?;
            }
            match step? {
                Step::Done(answer) => return Ok(answer),
                Step::Need(Need::Recall(wait)) => {
                    let began = Instant::now();
                    let ended = given_back(&wait).await;
                    self.metrics.handle_recall(began.elapsed());
                    ended?;
                    recalled.push(wait);
                }
                Step::Need(Need::Heard(wait)) => {
                    executed = true;
                    given_back(&wait)
                        .await
                        .map_err(|failure| Failure { kind: ErrorKind::Unavailable, ..failure })?;
                }
                // It has an end: each turn has come further.
                Step::Need(Need::Turns) => {
                    executed = true;
                    needs -= 1;
                }
                Step::Need(need) => {
                    self.settle(client.host, need.clone(), 0).await?;
                    if matches!(need, Need::Spill { .. }) {
                        continue;
                    }
                    if matches!(need, Need::Trim(_)) {
                        executed = true;
                    } else {
                        client.settled.push(need);
                    }
                }
            }
        }
        // Only who was certainly not executed is told that the server is busy.
        Err(if executed { ErrorKind::Unavailable } else { ErrorKind::Busy }.into())
    }

    /// Has something happen that an operation of a client needs. Goes on in the background when the
    /// caller gives up: what waits for a bucket to tell of one name not for long, since who still
    /// wants it asks again.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when a bucket keeps the operation, which is not executed yet, waiting
    /// for [`BUCKET_WAIT_MAX`]; those of the bucket and the targets.
    pub(super) async fn settle(
        &self,
        client: HostId,
        need: Need,
        cookie: u64,
    ) -> Result<(), Failure> {
        if let Need::Told(waits) = &need {
            recalls::told(waits).await;
            return Ok(());
        }
        let waits = matches!(need, Need::Trim(_) | Need::Spill { .. });
        let listing = matches!(need, Need::Listing(_));
        let is_executed = matches!(need, Need::Trim(_));
        let room = match waits {
            true => self.rooms.for_targets(),
            false => self.rooms.for_bucket(client),
        };
        let room = room.map_err(|failure| match is_executed {
            // The operation may have been executed.
            true => Failure { kind: ErrorKind::Unavailable, ..failure },
            false => failure,
        })?;
        let (hydration, trims) = (self.hydration.clone(), self.trims.clone());
        let spills = self.spills.clone();
        let work = async move {
            let _room = room;
            match need {
                Need::Name { directory, name } => {
                    let looked = hydration.before_lookup(directory, &name);
                    let looked = tokio::time::timeout(BUCKET_WAIT_MAX, looked).await;
                    looked.unwrap_or_else(|_| Err(not_answered()))
                }
                Need::Listing(directory) => match hydration.before_list(directory, cookie).await? {
                    Listing::Growing(_) | Listing::Complete(_) => Ok(()),
                    Listing::Failed(failure) => Err(failure),
                },
                Need::Fresh { directory, name } => {
                    hydration.refresh(directory, name.as_ref()).await;
                    Ok(())
                }
                Need::Trim(inode) => trims.settle(inode).await,
                Need::Spill { inode, by } => spills.settle(inode, by).await,
                Need::Recall(wait) | Need::Heard(wait) => given_back(&wait).await,
                Need::Told(waits) => {
                    recalls::told(&waits).await;
                    Ok(())
                }
                Need::Turns => Ok(()),
            }
        };
        let mut task = self.background.spawn(work);
        let ended = if waits {
            task.await
        } else {
            let Ok(ended) = tokio::time::timeout(BUCKET_WAIT_MAX, &mut task).await else {
                if listing {
                    // The listing itself goes on: this only waited for it.
                    task.abort();
                }
                return Err(not_answered());
            };
            ended
        };
        ended.unwrap_or_else(|error| {
            Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
        })
    }

    /// Has `work` done in the background, where it goes on when the caller gives up.
    ///
    /// # Errors
    /// What it comes to; [`ErrorKind::Busy`] when too many do so, [`ErrorKind::Internal`] when it
    /// panics.
    pub(super) async fn in_background<T: Send + 'static>(
        &self,
        work: BoxFuture<'static, Result<T, Failure>>,
    ) -> Result<T, Failure> {
        let room = self.rooms.for_others()?;
        let work = async move {
            let _room = room;
            work.await
        };
        self.background.spawn(work).await.unwrap_or_else(|error| {
            Err(Failure::new(ErrorKind::Internal, format!("background work failed: {error}")))
        })
    }

    /// Answers with something that others act on, once it is synced.
    pub(super) async fn once_synced(&self, read: Reading) -> Result<Answer, Failure> {
        let (answer, index) = self.engine.turn(read).await?;
        self.engine.synced(index).await?;
        Ok(answer)
    }
}

fn not_answered() -> Failure {
    Failure::new(ErrorKind::Busy, "the bucket has not answered yet")
}
