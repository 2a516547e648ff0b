//! `millrace resolve` of more than one file: those that are named, or all conflicts below
//! directories.
//!
//! Each is decided by a request of its own, some at a time. Nothing is remembered: who begins again
//! after this was interrupted meets the files that are still in conflict.

use std::{cell::Cell, collections::HashSet, path::PathBuf, time::Duration};

use anyhow::Context as _;
use futures::{StreamExt as _, stream};
use millrace_protocol::{
    admin::{FileState, Keep, ResolveConflict, ResolveReply, ShowJob, ShowLayout, StateReply},
    bucket::Conflict,
};
use millrace_types::{ByteLen, ErrorKind, Failure, JobId};

use super::{conflicts_list, file_list, resolve, state};
use crate::{
    arguments::ResolveArguments,
    connection::Connection,
    context::{CALLER, Context, at, from_root},
    exit::Exit,
    output::{counted, path_text, shown},
    place::Place,
    report::{ResolutionsReport, ResolveReport, ResolvedReport},
    watch::say,
};

/// Decides them, or looks at them, each whatever becomes of the others.
pub(super) async fn run(
    context: &Context,
    keep: Keep,
    arguments: ResolveArguments,
) -> anyhow::Result<Exit> {
    let ResolveArguments { recursive, files_from, null, dry_run, mut paths, .. } = arguments;
    if let Some(source) = &files_from {
        paths.extend(file_list::paths(source, null)?);
    }
    let mut seen = HashSet::new();
    paths.retain(|path| seen.insert(path.clone()));
    let (cluster, files) = match recursive {
        true => below(context, &paths).await?,
        false => named(context, &paths).await?,
    };
    let work = Work { keep, dry_run, cluster, is_away: Cell::new(false) };
    let mut report = ResolutionsReport::new(keep, dry_run);
    let mut outcomes = stream::iter(&files).map(|file| work.of(file)).buffered(AT_ONCE);
    while let Some((path, outcome)) = outcomes.next().await {
        tell(context, &mut report, keep, path, outcome)?;
    }
    context.output.result(&report, || words(&report, recursive))?;
    Ok(if report.failed + report.untried > 0 { Exit::Failed } else { Exit::Done })
}

/// A file that may be in conflict.
struct File {
    /// How it is called here.
    path: String,
    /// Where it is; of a path that leads nowhere, why.
    place: Result<Place, String>,
    /// What is known of it without asking.
    listed: Option<Listed>,
}

/// What a list of conflicts says of a file.
struct Listed {
    size: ByteLen,
    key: Option<String>,
}

/// What became of a file.
enum Outcome {
    Decided(ResolveReply),
    /// It is in conflict, has so many bytes here, and stands against this object.
    Would(ByteLen, Option<String>),
    Failed(String),
    Untried,
}

/// The files at paths, of which some may lead nowhere.
async fn named(
    context: &Context,
    paths: &[PathBuf],
) -> anyhow::Result<(Option<Connection>, Vec<File>)> {
    let file = |path: &PathBuf| File {
        path: path.display().to_string(),
        place: Place::resolve(path).map_err(|error| format!("{error:#}")),
        listed: None,
    };
    let files: Vec<_> = paths.iter().map(file).collect();
    let cluster = match files.iter().any(|file| matches!(file.place, Ok(Place::Cluster(_)))) {
        true => Some(context.cluster().await?),
        false => None,
    };
    Ok((cluster, files))
}

/// All that are in conflict at or below paths.
async fn below(
    context: &Context,
    paths: &[PathBuf],
) -> anyhow::Result<(Option<Connection>, Vec<File>)> {
    let places: Vec<_> = paths
        .iter()
        .map(|path| Ok((path, Place::resolve(path)?)))
        .collect::<anyhow::Result<_>>()?;
    let cluster = context.cluster().await?;
    let mut tops = Tops::default();
    for (path, place) in places {
        let top = from_root(&cluster, place).await?;
        check_there(&cluster, &top).await.with_context(|| at(path))?;
        tops.add(&top);
    }
    let conflicts = conflicts_list::all(&cluster).await?;
    let files = conflicts.into_iter().filter(|conflict| tops.has(&conflict.path)).map(listed);
    let files = files.collect();
    Ok((Some(cluster), files))
}

fn listed(conflict: Conflict) -> File {
    let Conflict { path, size, key, .. } = conflict;
    File {
        path: path_text(&path),
        place: Ok(Place::Cluster(path)),
        listed: Some(Listed { size, key }),
    }
}

/// Nothing is in conflict below a path that was mistyped, which is not what was asked.
async fn check_there(cluster: &Connection, path: &[u8]) -> Result<(), Failure> {
    let there = ShowLayout { caller: CALLER, path: path.to_vec() };
    match cluster.request(&there).await {
        Err(failure) if failure.kind == ErrorKind::NotFound => Err(failure),
        Err(failure) if failure.kind.is_transient() => Err(failure),
        _ => Ok(()),
    }
}

/// Directories, by their paths from the root without slashes at the ends.
#[derive(Default)]
struct Tops(HashSet<Vec<u8>>);

impl Tops {
    fn add(&mut self, path: &[u8]) {
        self.0.insert(path.strip_suffix(b"/").unwrap_or(path).to_vec());
    }

    /// Whether a path is one of them, or lies below one. A file without a name has none.
    fn has(&self, path: &[u8]) -> bool {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(end, _)| end);
        !path.is_empty() && ends.chain([path.len()]).any(|end| self.0.contains(&path[..end]))
    }
}

/// What is done with each.
struct Work {
    keep: Keep,
    dry_run: bool,
    /// There where a path is one of the cluster.
    cluster: Option<Connection>,
    /// Whether nobody answers any more.
    is_away: Cell<bool>,
}

impl Work {
    async fn of(&self, file: &File) -> (String, Outcome) {
        (file.path.clone(), self.outcome(file).await)
    }

    async fn outcome(&self, file: &File) -> Outcome {
        if self.is_away.get() {
            return Outcome::Untried;
        }
        let mount;
        let (connection, path) = match (&file.place, &self.cluster) {
            (Err(error), _) => return Outcome::Failed(error.clone()),
            (Ok(Place::Cluster(path)), Some(cluster)) => (cluster, path),
            (Ok(Place::Cluster(_)), None) => return Outcome::Untried,
            (Ok(Place::Mount(at, path)), _) => {
                mount = Connection::to_mount(at);
                (&mount, path)
            }
        };
        let failure = match (&file.listed, self.dry_run) {
            (Some(Listed { size, key }), true) => return Outcome::Would(*size, key.clone()),
            (None, true) => match state::ask(connection, path).await {
                Ok(known) => return self.would(known.state),
                Err(failure) => failure,
            },
            (_, false) => {
                let request =
                    ResolveConflict { caller: CALLER, path: path.clone(), keep: self.keep };
                match connection.request(&request).await {
                    Ok(reply) => return Outcome::Decided(reply),
                    Err(failure) => failure,
                }
            }
        };
        // A target that is away keeps some files from being decided, and not the others.
        if failure.kind.is_transient() && !answers(connection).await {
            self.is_away.set(true);
        }
        Outcome::Failed(failure.to_string())
    }

    /// What a file's state says. Only the metadata server knows whether it can be decided so.
    fn would(&self, known: StateReply) -> Outcome {
        let url = known.origin.map(|(url, _)| url);
        match (known.state, self.keep) {
            _ if known.directory => {
                Outcome::Failed("it is no file: --recursive decides what is below it".to_owned())
            }
            (Some(FileState::Conflict), _) => Outcome::Would(known.size, url),
            (Some(FileState::Lost), Keep::Bucket) if url.is_some() => {
                Outcome::Would(known.size, url)
            }
            (Some(FileState::Lost), _) => {
                Outcome::Failed("it is lost, and the bucket has nothing to keep".to_owned())
            }
            _ => Outcome::Failed("it is not in conflict".to_owned()),
        }
    }
}

/// Whether somebody answers, whatever: there is no such job.
async fn answers(connection: &Connection) -> bool {
    let asked = connection.request_within(&ShowJob { id: JobId(0) }, PATIENCE).await;
    asked.err().is_none_or(|failure| !failure.kind.is_transient())
}

/// Says what became of a file, and adds it to the report.
fn tell(
    context: &Context,
    report: &mut ResolutionsReport,
    keep: Keep,
    path: String,
    outcome: Outcome,
) -> anyhow::Result<()> {
    let resolved = match outcome {
        Outcome::Decided(reply) => {
            report.decided += 1;
            let decided = ResolveReport::new(path, keep, &reply);
            context.output.line(&resolve::words(&decided))?;
            decided.into()
        }
        Outcome::Would(size, object) => {
            report.decided += 1;
            let object = object.map_or_else(String::new, |it| format!(", against {}", shown(&it)));
            context.output.line(&format!("{} ({size} here{object})", shown(&path)))?;
            let size_bytes = Some(size.0);
            ResolvedReport { size_bytes, ..ResolvedReport::new(path, "would be decided") }
        }
        Outcome::Failed(error) => {
            report.failed += 1;
            say(&format!("{}: {}", shown(&path), shown(&error)));
            ResolvedReport { error: Some(error), ..ResolvedReport::new(path, "failed") }
        }
        Outcome::Untried => {
            report.untried += 1;
            ResolvedReport::new(path, "untried")
        }
    };
    report.files.push(resolved);
    Ok(())
}

fn words(report: &ResolutionsReport, recursive: bool) -> String {
    let ResolutionsReport { decided, failed, untried, dry_run, keep, .. } = report;
    if recursive && report.files.is_empty() {
        return "nothing is in conflict there".to_owned();
    }
    let verb = if *dry_run { "would be decided" } else { "decided" };
    let mut text = format!("{} {verb} ({keep})", counted(*decided, "conflict"));
    if *failed > 0 {
        text.push_str(&format!(", {failed} failed"));
    }
    if *untried > 0 {
        text.push_str(&format!(", {untried} not tried, because nobody answers"));
    }
    text
}

/// Files that are decided at a time. Each is a look at its object, of which a metadata server has
/// more at a time, so that lookups have room beside these.
const AT_ONCE: usize = 8;
/// How long somebody may take to answer whether he is there.
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_what_lies_in_it_and_itself_and_nothing_beside_it() {
        let mut tops = Tops::default();
        tops.add(b"/run7");
        tops.add(b"/a/b/");
        for (path, expected) in [
            (&b"/run7/x/y"[..], true),
            (b"/run7", true),
            (b"/run70/x", false),
            (b"/a/b/c", true),
            (b"/a/c", false),
            (b"", false),
        ] {
            assert_eq!(tops.has(path), expected, "{}", path.escape_ascii());
        }
        tops.add(b"/");
        assert!(tops.has(b"/any/file") && tops.has(b"/file"));
        assert!(!tops.has(b""), "it has no name any more");
    }

    #[test]
    fn of_what_a_file_is_now_a_trial_says_whether_it_would_be_decided() {
        let work = |keep| {
            let (cluster, is_away) = (None, Cell::new(false));
            Work { keep, dry_run: true, cluster, is_away }
        };
        let would = |keep, state, directory, origin: Option<&str>| {
            let origin = origin.map(|url| (url.to_owned(), "t".to_owned()));
            let (size, hydrated, sums) = (ByteLen(5), ByteLen(0), Vec::new());
            let unlisted_directories = 0;
            let known =
                StateReply { state, directory, size, hydrated, sums, unlisted_directories, origin };
            match work(keep).would(known) {
                Outcome::Would(size, url) => Ok((size.0, url)),
                Outcome::Failed(error) => Err(error),
                Outcome::Decided(_) | Outcome::Untried => panic!("nothing is done"),
            }
        };
        let url = Some("s3://b/k");
        let known = Ok((5, url.map(str::to_owned)));
        let (conflict, lost) = (Some(FileState::Conflict), Some(FileState::Lost));
        assert_eq!(would(Keep::Local, conflict, false, url), known);
        assert_eq!(would(Keep::Bucket, conflict, false, None), Ok((5, None)));
        assert_eq!(would(Keep::Bucket, lost, false, url), known);
        assert!(would(Keep::Bucket, lost, false, None).unwrap_err().contains("lost"));
        assert!(would(Keep::Local, lost, false, url).unwrap_err().contains("lost"));
        let calm = would(Keep::Local, Some(FileState::Dirty), false, url).unwrap_err();
        assert!(calm.contains("not in conflict"), "{calm}");
        for state in [conflict, None] {
            assert!(would(Keep::Local, state, true, None).unwrap_err().contains("--recursive"));
        }
    }

    #[tokio::test]
    async fn nobody_asks_for_each_file_once_none_answers() {
        let is_away = Cell::new(true);
        let work = Work { keep: Keep::Local, dry_run: false, cluster: None, is_away };
        let file = File { path: "f".to_owned(), place: Err("unclear".to_owned()), listed: None };
        assert!(matches!(work.outcome(&file).await, Outcome::Untried));
        work.is_away.set(false);
        assert!(matches!(work.outcome(&file).await, Outcome::Failed(_)));
    }

    #[test]
    fn the_count_says_what_is_left() {
        let mut report = ResolutionsReport::new(Keep::Bucket, false);
        assert_eq!(words(&report, true), "nothing is in conflict there");
        report.files = vec![ResolvedReport::new("/a".to_owned(), "failed")];
        (report.decided, report.failed, report.untried) = (1, 2, 3);
        let expected = "1 conflict decided (bucket), 2 failed, 3 not tried, because nobody answers";
        assert_eq!(words(&report, true), expected);
        report = ResolutionsReport { dry_run: true, failed: 0, untried: 0, ..report };
        assert_eq!(words(&report, false), "1 conflict would be decided (bucket)");
    }
}
