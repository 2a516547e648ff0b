//! What a release job drops: looked at when a file is found, and again right before each request
//! to a target, because between the two a file lies in a batch and waits for a target.
//!
//! What begins between the last look and the drop comes after the drop: the target drops clean
//! blocks only, so that bytes which are written meanwhile stay, and the others are fetched again
//! from the version that the file was made from. That fails where the bucket has another version
//! within this time too: the time of one request, a minute at the most, since a target drops
//! nothing more once its caller has given up. The file is then as one that was written to before
//! all of it had been fetched. No target can tell: its blocks know the file's generation, which
//! neither a write nor a conflict raises, and no tag of an object.

use millrace_protocol::{capability::Content, target::Item};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{
    Environment,
    dispatch::{Answer, Attempts, RELEASE_ATTEMPTS, Task, once, passes},
};
use crate::{
    hydration::{destination::is_saved, import::broken, spread::Place},
    leases::touched::writers,
    namespace::{Body, pins, tree},
    store::{View, keys},
};

/// Whether the clean blocks of a file may go.
///
/// # Errors
/// When the store is broken.
pub(super) fn may_go(view: &dyn View, id: InodeId) -> Result<bool, Failure> {
    let Some(inode) = tree::find(view, id).map_err(broken)? else { return Ok(false) };
    let Body::File(body) = &inode.body else { return Ok(false) };
    let written = !writers(view, id).map_err(broken)?.is_empty();
    let pinned = pins::is_pinned(view, &inode).map_err(broken)?;
    // Its targets do not know yet that they may drop it.
    let exporting = view.get(&keys::export(id)).map_err(broken)?.is_some();
    Ok(!written && !pinned && !exporting && is_saved(view, &inode, body)?)
}

/// The same, of a file that must still have this content, of the same version of its object.
fn may_still_go(view: &dyn View, content: &Content) -> Result<bool, Failure> {
    let inode = tree::find(view, content.inode).map_err(broken)?;
    let Some(now) = inode.and_then(|inode| inode.content()) else { return Ok(false) };
    let tag_of = |content: &Content| content.origin.as_ref().map(|origin| origin.tag.clone());
    let is_same = now.generation == content.generation && tag_of(&now) == tag_of(content);
    Ok(is_same && may_go(view, content.inode)?)
}

/// Has a target drop items, again while it is busy or away, or is so for some of them; says what
/// became of each. What may not go any more is left out.
pub(super) async fn ask<E: Environment>(
    environment: &E,
    place: Place,
    items: &[Item],
) -> Vec<Result<Answer, Failure>> {
    let unanswered = Err(Failure::from(ErrorKind::Unavailable));
    let mut answers: Vec<Result<Answer, Failure>> = vec![unanswered; items.len()];
    let mut attempts = Attempts::new(RELEASE_ATTEMPTS);
    loop {
        let is_open = |at: &usize| answers[*at].as_ref().err().filter(passes).is_some();
        let open: Vec<usize> = (0..items.len()).filter(is_open).collect();
        let asked = open.iter().map(|&at| items[at].clone()).collect();
        match ask_once(environment, place, asked).await {
            Ok(told) => {
                for (at, answer) in open.into_iter().zip(told) {
                    answers[at] = answer;
                }
            }
            Err(failure) => {
                for at in open {
                    answers[at] = Err(failure.clone());
                }
            }
        }
        let failure = answers.iter().filter_map(|one| one.as_ref().err()).find(passes).cloned();
        let Some(failure) = failure else { return answers };
        if !attempts.wait(&failure).await {
            return answers;
        }
    }
}

/// Looks at the files of items as they are now, and asks for what may go.
async fn ask_once<E: Environment>(
    environment: &E,
    place: Place,
    items: Vec<Item>,
) -> Result<Vec<Result<Answer, Failure>>, Failure> {
    environment.named(items.iter().map(|item| item.content.inode).collect()).await?;
    let contents: Vec<Content> = items.iter().map(|item| item.content.clone()).collect();
    let query = environment
        .read(move |view| contents.iter().map(|content| may_still_go(view, content)).collect());
    let may_go: Vec<bool> = query.await?;
    let going = items.into_iter().zip(&may_go).filter(|(_, may_go)| **may_go);
    let going: Vec<Item> = going.map(|(item, _)| item).collect();
    let mut results = Vec::new();
    if !going.is_empty() {
        results = once(environment, place, Task::Release, going).await?.results;
    }
    let mut results = results.into_iter();
    let answer = |may_go| match may_go {
        true => {
            let result = results.next().unwrap_or_else(|| Err(ErrorKind::Protocol.into()));
            result.map(Answer::Moved)
        }
        false => Ok(Answer::Kept),
    };
    Ok(may_go.into_iter().map(answer).collect())
}
