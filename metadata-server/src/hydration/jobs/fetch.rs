//! Has a target fetch items from buckets, again when these were away meanwhile.

use millrace_protocol::{cluster::Map, target::Item};
use millrace_types::{ByteLen, ErrorKind, Failure, InodeId};
use tokio::time::Instant;

use super::{
    Context, Environment,
    dispatch::{self, Task, check_places},
    patience::Tries,
};
use crate::hydration::spread::Place;

/// An item of a file, of which so many bytes are to be moved.
pub(super) struct Wanted {
    pub(super) inode: InodeId,
    pub(super) item: Item,
    pub(super) bytes: u64,
}

/// One of the items of a request.
struct One {
    wanted: Wanted,
    tries: Tries,
    /// What became of it, if that is known for good.
    answer: Option<Result<ByteLen, Failure>>,
}

/// Has a target fetch items of files, whose places `known` tells; says of each how many bytes were
/// moved, or why it could not be had. The caller has waited for the turn of their bytes.
///
/// What is here already needs no bucket, and only the target knows it: so after the job has given a
/// bucket up, too, each item is asked for, once.
pub(super) async fn run<E: Environment>(
    context: &Context<'_, E>,
    known: &Map,
    place: Place,
    items: Vec<Wanted>,
) -> Vec<Result<ByteLen, Failure>> {
    let begin = |wanted| One { wanted, tries: Tries::default(), answer: None };
    let mut all: Vec<One> = items.into_iter().map(begin).collect();
    let mut is_first = true;
    loop {
        let open: Vec<&mut One> = all.iter_mut().filter(|one| one.answer.is_none()).collect();
        if open.is_empty() {
            break;
        }
        let has_turn = is_first && context.is_fair();
        for one in &open {
            if context.answered(one.wanted.inode).await.is_err() {
                tracing::debug!(inode = %one.wanted.inode, "of a bucket that is given up");
            }
        }
        // Behind a wait many go on together.
        if !has_turn {
            context.paced(open.iter().map(|one| one.wanted.bytes).sum()).await;
        }
        is_first = false;
        let wanted: Vec<Item> = open.iter().map(|one| one.wanted.item.clone()).collect();
        let ids: Vec<_> = open.iter().map(|one| one.wanted.inode).collect();
        let begun = Instant::now();
        let asked = context.watched(&ids, ask(context, known, place, wanted)).await;
        // The same for all, so that one look serves them.
        let tried = (begun, Instant::now());
        let mut answers = asked.into_iter();
        for one in open {
            let answer = answers.next().unwrap_or_else(|| Err(ErrorKind::Protocol.into()));
            let Err(failure) = answer else {
                one.answer = Some(answer);
                continue;
            };
            // It is asked for again, if it may be.
            let again = context.again(one.wanted.inode, failure, tried, &mut one.tries).await;
            one.answer = again.err().map(Err);
        }
    }
    let unanswered = || Err(ErrorKind::Protocol.into());
    all.into_iter().map(|one| one.answer.unwrap_or_else(unanswered)).collect()
}

/// Asks for some items once. What is true of all of them is said of each.
async fn ask<E: Environment>(
    context: &Context<'_, E>,
    known: &Map,
    place: Place,
    items: Vec<Item>,
) -> Vec<Result<ByteLen, Failure>> {
    let environment = &**context.environment;
    let count = items.len();
    let asked = async {
        check_places(environment, known, &items).await?;
        dispatch::ask(environment, place, Task::Hydrate, items).await
    };
    match asked.await {
        Ok(reply) if reply.results.len() == count => reply.results,
        Ok(_) => vec![Err(ErrorKind::Protocol.into()); count],
        Err(failure) => vec![Err(failure); count],
    }
}
