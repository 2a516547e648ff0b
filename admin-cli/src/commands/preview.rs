//! What a hydrate will fetch, and what a trial of an import leaves open, told before it has begun.

use std::time::Duration;

use millrace_protocol::{
    admin::{FileState, Job},
    job_detail::ShowJobDetail,
    known_state::KnownStateReply,
};
use millrace_types::ByteLen;

use super::state;
use crate::{connection::Connection, output::counted, watch::say};

/// What of the tree at `path` is not here, as far as that is known in a moment.
pub(super) async fn look(connection: &Connection, path: &[u8]) -> Option<KnownStateReply> {
    let known = tokio::time::timeout(PATIENCE, state::ask(connection, path)).await;
    known.ok().and_then(Result::ok)
}

/// Says what `job` fetches and from where; `known` is of its tree, and it does all of that or a
/// part.
pub(super) async fn tell(
    connection: &Connection,
    job: &Job,
    known: Option<&KnownStateReply>,
    is_part: bool,
) {
    let reply = connection.request(&ShowJobDetail { id: job.id }).await.ok();
    let (targets, source) = reply.map_or((0, None), |reply| (reply.targets, reply.source));
    say(&words(known, targets, source.as_deref(), is_part));
}

/// What a dry run of an import does not count; `known` is of its tree.
pub(super) fn unlisted(known: Option<&KnownStateReply>) -> String {
    match known.map(|known| known.state.unlisted_directories) {
        Some(0) => "counts the directories that would be listed; new ones in the bucket show only \
                    then"
            .to_owned(),
        Some(unlisted) => format!(
            "counts the directories that would be listed, as far as they are known: nobody has \
             listed yet what is in {unlisted} of those at and below it"
        ),
        None => "counts the directories that would be listed, as far as they are known: what is \
                 in those that nobody has listed yet shows only then"
            .to_owned(),
    }
}

fn words(
    known: Option<&KnownStateReply>,
    targets: u32,
    source: Option<&str>,
    is_part: bool,
) -> String {
    let to = match targets {
        0 => String::new(),
        targets => format!(" to {}", counted(targets.into(), "target")),
    };
    let origin = known.and_then(|known| known.state.origin.as_ref()).map(|(url, _)| url.as_str());
    let from = source.or(origin).unwrap_or("the linked buckets");
    let Some(KnownStateReply { state, unknown_files, silent, .. }) = known else {
        let what = "what is not here";
        return format!("fetches {what} from {from}{to}; how much that is, it counts as it goes");
    };
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
    if *unknown_files > 0 {
        let ids: Vec<_> = silent.iter().map(|silent| silent.target.to_string()).collect();
        let (more, who) = (counted(*unknown_files, "more file"), ids.join(", "));
        text.push_str(&format!(
            "; nobody knows what is here of {more}: no answer from target {who}"
        ));
    }
    text
}

/// Longer than a tree of some ten thousand files takes to be looked at; people wait for this.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        admin::{StateReply, StateSum},
        known_state::SilentTarget,
    };
    use millrace_types::TargetId;

    use super::*;

    fn sum(state: FileState, files: u64, size: u64) -> StateSum {
        StateSum { state, files, size: ByteLen(size) }
    }

    fn tree() -> KnownStateReply {
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
        KnownStateReply { state, unknown_files: 0, unknown_size: ByteLen(0), silent: Vec::new() }
    }

    #[test]
    fn what_is_fetched_and_from_where_is_told() {
        let expected = "fetches up to 4 files, 3 MiB from s3://data/train/ to 2 targets";
        assert_eq!(words(Some(&tree()), 2, Some("s3://data/train/"), false), expected);
        let mut part = tree();
        part.state.unlisted_directories = 2;
        let text = words(Some(&part), 0, None, true);
        assert!(text.contains("of the chosen files at most 4 files"), "{text}");
        assert!(text.contains("the linked buckets;") && text.contains("nobody"), "{text}");
        let mut file = tree();
        (file.state.directory, file.state.sums) = (false, Vec::new());
        file.state.origin = Some(("s3://data/train/a".to_owned(), "tag".to_owned()));
        let expected = "fetches up to 1 file, 2 MiB from s3://data/train/a to 1 target";
        assert_eq!(words(Some(&file), 1, None, false), expected, "of it all but what is here");
    }

    #[test]
    fn what_a_dry_run_of_an_import_cannot_know_is_told() {
        let mut known = tree();
        assert!(unlisted(Some(&known)).contains("new ones in the bucket"));
        known.state.unlisted_directories = 2;
        assert!(unlisted(Some(&known)).ends_with("what is in 2 of those at and below it"));
        assert!(unlisted(None).contains("nobody has listed yet"));
    }

    #[test]
    fn from_where_is_told_also_when_nobody_knows_how_much() {
        let expected = "fetches what is not here from s3://data/train/ to 1 target; how much that \
                        is, it counts as it goes";
        assert_eq!(words(None, 1, Some("s3://data/train/"), false), expected);
        assert!(words(None, 0, None, true).contains("from the linked buckets; how much"));
    }

    #[test]
    fn what_a_silent_target_holds_is_told_apart() {
        let mut known = tree();
        let (target, reason) = (TargetId([2; 8]), "it is offline".to_owned());
        known.unknown_files = 5;
        known.silent = vec![SilentTarget { target, files: 6, reason }];
        let text = words(Some(&known), 2, Some("s3://data/train/"), false);
        assert!(text.starts_with("fetches up to 4 files, 3 MiB from s3://data/train/"), "{text}");
        assert!(
            text.ends_with("of 5 more files: no answer from target 0202020202020202"),
            "{text}"
        );
    }
}
