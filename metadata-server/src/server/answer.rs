//! What requests are answered with, whatever they are.
//!
//! Requests are of a hundred kinds, each with a reply of its own. The turns of an operation, what
//! is done in the background and what is sent do not depend on the kind, and are written, and
//! compiled, once for answers of any kind.

use std::sync::Arc;

use futures::future::BoxFuture;
use millrace_protocol::Request;
use millrace_transport::{EncodedReply, IncomingCall};
use millrace_types::{Failure, LogIndex};

use super::client;
use crate::{
    engine::Core,
    ops::{Client, Step},
};

/// A reply of some kind, which takes its form on the wire where it is sent: outside of the turn
/// that gave it.
pub(super) type Answer = Box<dyn FnOnce() -> EncodedReply + Send>;

/// An operation on its request, for one turn after the other until nothing must happen first.
pub(super) type Attempt =
    Arc<dyn Fn(&mut Core, &Client) -> Result<Step<Answer>, Failure> + Send + Sync>;

/// What is read within one turn, and the log index that must be synced before anybody hears of it.
pub(super) type Reading = Box<dyn FnOnce(&mut Core) -> Result<(Answer, LogIndex), Failure> + Send>;

/// One operation of [`crate::ops`].
pub(super) type Operation<R> =
    fn(&mut Core, &Client, &R) -> Result<Step<<R as Request>::Reply>, Failure>;

/// Reads something that others act on, with the log index that must be synced before the answer.
pub(super) type SyncedRead<R> =
    fn(&mut Core, &Client, &R) -> Result<(<R as Request>::Reply, LogIndex), Failure>;

/// When a reply may be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// Once the record is in the kernel.
    Written,
    /// Once the record is on stable storage: others act on it.
    Synced,
}

/// How a request is answered.
pub(super) enum Work<'a> {
    /// By an operation.
    Operation(Durability, Attempt),
    /// By what something else comes to.
    Other(BoxFuture<'a, Result<Answer, Failure>>),
}

/// The reply to an `R`.
pub(super) fn answer<R: Request>(reply: R::Reply) -> Answer {
    Box::new(move || EncodedReply::of::<R>(&reply))
}

/// Answers an `R` by an operation, as soon as its record is in the kernel.
pub(super) fn written<R: Request>(
    call: &IncomingCall,
    operation: Operation<R>,
) -> Result<Work<'static>, Failure> {
    Ok(Work::Operation(Durability::Written, attempt(call.decode::<R>()?, operation)))
}

/// Answers an `R` by an operation, once its record is on stable storage.
pub(super) fn synced<R: Request>(
    call: &IncomingCall,
    operation: Operation<R>,
) -> Result<Work<'static>, Failure> {
    Ok(Work::Operation(Durability::Synced, attempt(call.decode::<R>()?, operation)))
}

/// An operation with its request.
pub(super) fn attempt<R: Request>(request: R, operation: Operation<R>) -> Attempt {
    Arc::new(move |core, client| {
        Ok(match operation(core, client, &request)? {
            Step::Done(reply) => Step::Done(answer::<R>(reply)),
            Step::Need(need) => Step::Need(need),
        })
    })
}

/// What is read for an `R`.
pub(super) fn reading<R: Request>(
    call: &IncomingCall,
    read: SyncedRead<R>,
) -> Result<Reading, Failure> {
    let (request, client) = (call.decode::<R>()?, client(call));
    Ok(Box::new(move |core| {
        let (reply, index) = read(core, &client, &request)?;
        Ok((answer::<R>(reply), index))
    }))
}

/// Answers an `R` with what `reply` comes to.
pub(super) fn other<'a, R: Request>(
    reply: impl Future<Output = Result<R::Reply, Failure>> + Send + 'a,
) -> Work<'a> {
    Work::Other(Box::pin(async move { Ok(answer::<R>(reply.await?)) }))
}
