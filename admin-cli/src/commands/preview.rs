//! What a hydrate will fetch, told before it has begun.

use std::time::Duration;

use millrace_protocol::{
    admin::{FileState, Job, ShowState, StateReply},
    job_detail::ShowJobDetail,
};
use millrace_types::ByteLen;

use crate::{connection::Connection, context::CALLER, output::counted, watch::say};

/// What of the tree at `path` is not here, as far as that is known in a moment.
pub(super) async fn look(connection: &Connection, path: &[u8]) -> Option<StateReply> {
    let request = ShowState { caller: CALLER, path: path.to_vec() };
    let state = tokio::time::timeout(PATIENCE, connection.request(&request)).await;
    state.ok().and_then(Result::ok)
}

/// Says what `job` fetches and from where; `state` is of its tree, and it does all of that or a
/// part.
pub(super) async fn tell(
    connection: &Connection,
    job: &Job,
    state: Option<&StateReply>,
    is_part: bool,
) {
    let reply = connection.request(&ShowJobDetail { id: job.id }).await.ok();
    let (targets, source) = reply.map_or((0, None), |reply| (reply.targets, reply.source));
    say(&words(state, targets, source.as_deref(), is_part));
}

fn words(state: Option<&StateReply>, targets: u32, source: Option<&str>, is_part: bool) -> String {
    let to = match targets {
        0 => String::new(),
        targets => format!(" to {}", counted(targets.into(), "target")),
    };
    let Some(state) = state else {
        return format!("fetches{to} what is not here; how much that is, it counts as it goes");
    };
    let origin = state.origin.as_ref().map(|(url, _)| url.as_str());
    let from = source.or(origin).unwrap_or("the linked buckets");
    let (files, bytes) = match state.directory {
        true => {
            let away = [FileState::Released, FileState::Partial];
            let sums = state.sums.iter().filter(|sum| away.contains(&sum.state));
            sums.fold((0, 0), |(files, bytes), sum| (files + sum.files, bytes + sum.size.0))
        }
        false => (1, state.size.0.saturating_sub(state.hydrated.0)),
    };
    let most = if is_part { "of the chosen files at most" } else { "up to" };
    let mut text =
        format!("fetches {most} {}, {} from {from}{to}", counted(files, "file"), ByteLen(bytes));
    if state.unlisted_directories > 0 {
        let unlisted = state.unlisted_directories;
        text.push_str(&format!("; nobody has listed yet what is in {unlisted} of its directories"));
    }
    text
}

/// Longer than a tree of some ten thousand files takes to be looked at; people wait for this.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use millrace_protocol::admin::StateSum;

    use super::*;

    fn sum(state: FileState, files: u64, size: u64) -> StateSum {
        StateSum { state, files, size: ByteLen(size) }
    }

    #[test]
    fn what_is_fetched_and_from_where_is_told() {
        let state = StateReply {
            state: None,
            directory: true,
            size: ByteLen(3 << 20),
            hydrated: ByteLen(1 << 20),
            sums: vec![
                sum(FileState::Released, 3, 2 << 20),
                sum(FileState::Partial, 1, 1 << 20),
                sum(FileState::Hydrated, 9, 9 << 20),
            ],
            unlisted_directories: 0,
            origin: None,
        };
        let expected = "fetches up to 4 files, 3 MiB from s3://data/train/ to 2 targets";
        assert_eq!(words(Some(&state), 2, Some("s3://data/train/"), false), expected);
        let part = StateReply { unlisted_directories: 2, ..state };
        let text = words(Some(&part), 0, None, true);
        assert!(text.contains("of the chosen files at most 4 files"), "{text}");
        assert!(text.contains("the linked buckets;") && text.contains("nobody"), "{text}");
        let file = StateReply { directory: false, sums: Vec::new(), ..part };
        assert!(
            words(Some(&file), 1, None, false).contains("1 file, 2 MiB"),
            "of it all but what is here"
        );
        assert!(words(None, 1, None, false).contains("as it goes"));
    }
}
