//! `millrace link remove PATH [--discard]`.

use std::time::Duration;

use anyhow::bail;
use millrace_protocol::admin::{ListLinks, RemoveLink};
use millrace_types::{ErrorKind, Failure};
use serde::Serialize;

use crate::{arguments::LinkRemoveArguments, context::Context, exit::Exit, output, watch::say};

#[derive(Serialize)]
struct Removed {
    path: String,
    removed: bool,
}

/// How long a server that is at work may take to list the links. With the question before it one
/// that hangs is given up after two minutes, as when a job is watched.
const LOOK_MAX: Duration = Duration::from_secs(30);

/// Asks the metadata server; files that were changed and not exported need `--discard`.
pub(crate) async fn run(context: &Context, arguments: LinkRemoveArguments) -> anyhow::Result<Exit> {
    let (connection, path) = context.operate_at(&arguments.path).await?;
    let request = RemoveLink { path: path.clone(), discard: arguments.discard };
    let plain = output::path_text(&path);
    let shown = output::shown(&plain);
    let ask = async || connection.request(&request).await.map(|_| ());
    let look = async || connection.request_within(&ListLinks {}, LOOK_MAX).await.map(|_| ());
    if let Err(failure) = remove(ask, look, &shown).await {
        bail!(complaint(&shown, &failure));
    }
    let report = Removed { path: plain, removed: true };
    context
        .output
        .result(&report, || format!("the link at {shown} is removed; its bucket is as it was"))?;
    Ok(Exit::Done)
}

/// Asks until the server tells an end: with many names it works for longer than one answer may
/// take, and goes on with that whether anybody waits or not. One that hangs gives no answer either:
/// so in between it is asked for something that is no work.
async fn remove(
    ask: impl AsyncFn() -> Result<(), Failure>,
    look: impl AsyncFn() -> Result<(), Failure>,
    path: &str,
) -> Result<(), Failure> {
    let mut waits = false;
    loop {
        match ask().await {
            Err(failure) if failure.kind == ErrorKind::DeadlineExceeded => {
                // Whatever else it says is an answer.
                if let Err(silence) = look().await
                    && matches!(silence.kind, ErrorKind::DeadlineExceeded | ErrorKind::Unavailable)
                {
                    return Err(silence);
                }
                if !waits {
                    say(&format!(
                        "the metadata server is still at work on {path}; it goes on also after \
                         Ctrl-C, and millrace link list has the link until it is removed"
                    ));
                }
                waits = true;
            }
            // It was removed between two questions.
            Err(failure) if waits && failure.kind == ErrorKind::NotFound => return Ok(()),
            answer => return answer,
        }
    }
}

/// What a person is told of a failure.
fn complaint(path: &str, failure: &Failure) -> String {
    match failure.kind.is_transient() {
        true => format!(
            "lost sight of the removal of the link at {path}: {failure}; once it has begun it goes \
             on by itself, and millrace status names the link until it is removed"
        ),
        // What keeps it, and what helps against that, the server says: changed files, or a job.
        false => format!("cannot remove the link at {path}: {failure}"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    type Answer = Result<(), ErrorKind>;

    const SILENCE: Answer = Err(ErrorKind::DeadlineExceeded);

    /// What becomes of a removal if the server answers this to its questions, and this in between.
    /// It asks for all of that.
    async fn end_of(asked: &[Answer], looked: &[Answer]) -> Answer {
        let (asked, looked) = (RefCell::new(asked.iter()), RefCell::new(looked.iter()));
        let next = |answers: &RefCell<std::slice::Iter<'_, Answer>>| {
            let answer = *answers.borrow_mut().next().expect("no more is asked");
            answer.map_err(Failure::from)
        };
        let ended = remove(async || next(&asked), async || next(&looked), "/train").await;
        assert_eq!((asked.borrow().len(), looked.borrow().len()), (0, 0), "all is asked");
        ended.map_err(|failure| failure.kind)
    }

    #[tokio::test]
    async fn a_server_that_is_at_work_is_asked_until_it_tells_an_end() {
        let in_use = Err(ErrorKind::InUse);
        assert_eq!(end_of(&[Ok(())], &[]).await, Ok(()));
        assert_eq!(end_of(&[SILENCE, SILENCE, Ok(())], &[Ok(()), Ok(())]).await, Ok(()));
        assert_eq!(end_of(&[SILENCE, in_use], &[Err(ErrorKind::Busy)]).await, in_use);
        let gone = Err(ErrorKind::NotFound);
        assert_eq!(end_of(&[SILENCE, gone], &[Ok(())]).await, Ok(()), "removed in between");
        assert_eq!(end_of(&[gone], &[]).await, gone);
    }

    #[tokio::test]
    async fn a_server_that_answers_nothing_at_all_is_not_asked_for_ever() {
        assert_eq!(end_of(&[SILENCE], &[SILENCE]).await, SILENCE);
        let away = Err(ErrorKind::Unavailable);
        assert_eq!(end_of(&[SILENCE, SILENCE], &[Ok(()), away]).await, away);
    }

    #[test]
    fn who_loses_sight_of_a_removal_is_told_that_it_goes_on_and_where_to_look() {
        let lost = complaint("/train", &ErrorKind::DeadlineExceeded.into());
        for part in ["lost sight", "/train", "goes on by itself", "millrace status"] {
            assert!(lost.contains(part), "{lost}");
        }
        let refused = complaint("/train", &Failure::new(ErrorKind::InUse, "job 7 works there"));
        assert!(refused.starts_with("cannot remove the link at /train"), "{refused}");
        assert!(refused.contains("job 7") && !refused.contains("goes on"), "{refused}");
    }
}
