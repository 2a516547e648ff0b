//! Lists jobs: a client that may see a part of the tree sees the jobs that work there, with paths
//! from its own top.

use millrace_protocol::admin::{Job, JobReply, JobsReply, ListJobs, PathBytes, ShowJob};
use millrace_types::{ErrorKind, Failure, InodeId, JobId};

use super::{Client, Step, broken, read};
use crate::{
    engine::Core,
    namespace::tree,
    store::{keys, records::JobRecord},
};

/// The jobs that the client may see, newest first.
///
/// # Errors
/// When the store is broken; as [`Client::top`].
pub fn list(core: &mut Core, client: &Client, _: &ListJobs) -> Result<Step<JobsReply>, Failure> {
    let jobs = all(core, client)?;
    Ok(Step::Done(JobsReply { jobs }))
}

/// One job.
///
/// # Errors
/// [`ErrorKind::NotFound`], also for one that the client may not see.
pub fn show(
    core: &mut Core,
    client: &Client,
    request: &ShowJob,
) -> Result<Step<JobReply>, Failure> {
    let job = find(core, client, request.id)?;
    Ok(Step::Done(JobReply { job }))
}

/// One job as the client sees it.
pub(crate) fn find(core: &mut Core, client: &Client, id: JobId) -> Result<Job, Failure> {
    let missing = || Failure::new(ErrorKind::NotFound, format!("no job {}", id.0));
    let record: JobRecord = read(core, &keys::job(id))?.ok_or_else(missing)?;
    let top = client.top(core)?;
    visible(core, client, top, record)?.ok_or_else(missing)
}

/// Every job that the client may see, newest first.
pub(crate) fn all(core: &mut Core, client: &Client) -> Result<Vec<Job>, Failure> {
    let found = tree::scan::<JobRecord>(core.view(), &keys::jobs(), usize::MAX);
    let found = found.map_err(|error| broken(core, error))?;
    let top = client.top(core)?;
    let mut jobs = Vec::with_capacity(found.len());
    for (_, record) in found.into_iter().rev() {
        jobs.extend(visible(core, client, top, record)?);
    }
    Ok(jobs)
}

/// The job as the client sees it, if what it works on lies, or lay, where the client may look.
fn visible(
    core: &mut Core,
    client: &Client,
    top: InodeId,
    record: JobRecord,
) -> Result<Option<Job>, Failure> {
    let mut job = record.job;
    let Some(subtree) = &client.subtree else {
        return Ok(Some(job));
    };
    let root = tree::find(core.view(), record.root).map_err(|error| broken(core, error))?;
    let below = match root.filter(|root| root.links > 0) {
        Some(root) => {
            let below = tree::is_below(core.view(), &root, top);
            below.map_err(|error| broken(core, error))?
        }
        None => below(subtree, &job.path).is_some(),
    };
    if !below {
        return Ok(None);
    }
    job.path = shown(subtree, &job.path);
    for failure in &mut job.failures {
        failure.path = shown(subtree, &failure.path);
    }
    Ok(Some(job))
}

/// A path as the client names it; of one that has been moved into its subtree, the last name.
fn shown(subtree: &[u8], path: &[u8]) -> PathBytes {
    below(subtree, path).unwrap_or_else(|| {
        let last = names(path).last().unwrap_or_default();
        [b"/", last].concat()
    })
}

/// The part of a path below `subtree`, from `/` on.
fn below(subtree: &[u8], path: &[u8]) -> Option<PathBytes> {
    let mut rest = names(path);
    for name in names(subtree) {
        if rest.next() != Some(name) {
            return None;
        }
    }
    let rest: Vec<_> = rest.collect();
    Some([&b"/"[..], &rest.join(&b'/')].concat())
}

fn names(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_from_the_top_of_the_subtree() {
        assert_eq!(shown(b"/team/a", b"/team/a/train/x"), b"/train/x");
        assert_eq!(shown(b"team/a/", b"/team/a"), b"/");
        assert_eq!(shown(b"/", b"/team"), b"/team");
        assert_eq!(below(b"/team/a", b"/team/ab"), None);
        assert_eq!(shown(b"/team/a", b"/old/place"), b"/place");
    }
}
