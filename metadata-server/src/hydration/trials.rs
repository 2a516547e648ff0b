//! Has the hosts try buckets: before one is linked or exported to, and when an operator asks.

use std::{
    fmt::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt, stream};
use millrace_object_source::{Trial, Untried};
use millrace_protocol::{
    bucket::{HostTrial, TryLink, TryLinkReply},
    cluster::{Bucket, Host, LinkMode},
    target::{CheckBucket, Tried, TryBucket},
};
use millrace_types::{ErrorKind, Failure, HostId};

use super::{
    environment::Environment,
    import::{Importer, broken, spec_of},
    links::{host_name, link_at},
};
use crate::store::{
    keys,
    records::{self, LinkRecord},
};

/// How long a target daemon may take to try a bucket: its own limit is 10 s.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(20);

/// Daemons that try a bucket at the same time.
const TRIALS_MAX: usize = 64;

/// Has every host that needs the bucket of a link try it now: whatever the link is for.
///
/// # Errors
/// [`ErrorKind::NotFound`] when the directory is not the top of a link. What hosts find is in the
/// reply.
pub(super) async fn try_link<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &TryLink,
) -> Result<TryLinkReply, Failure> {
    let link = link_at(environment, importer, &request.path).await?;
    let query = environment.read(move |view| {
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        let deletes = view.get(&keys::delete_propagation(link)).map_err(broken)?.is_some();
        Ok((record, deletes))
    });
    let (record, deletes) = query.await?;
    let LinkRecord { bucket, mode, .. } = record.ok_or(ErrorKind::NotFound)?;
    let exports = mode == LinkMode::ImportExport;
    let trial = Trial { read: true, write: exports, delete: deletes, uploads: exports };
    let hosts = try_everywhere(environment, importer, &bucket, trial).await?;
    Ok(TryLinkReply { bucket, mode, hosts })
}

/// Fails with a sentence that names each host that does not reach a bucket, and why. Nothing that
/// is there is read: some of it may be nobody's to read, and the rest is worth a link all the same.
pub(super) async fn check_everywhere<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    bucket: &Bucket,
    mode: LinkMode,
) -> Result<(), Failure> {
    let trial = Trial { write: mode == LinkMode::ImportExport, ..Trial::default() };
    complaint(try_everywhere(environment, importer, bucket, trial).await?)
}

/// How the metadata server and each target daemon fare with a bucket.
async fn try_everywhere<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    bucket: &Bucket,
    trial: Trial,
) -> Result<Vec<HostTrial>, Failure> {
    let prefix = spec_of(bucket)?.prefix().to_owned();
    let map = environment.map().await?;
    let begun = Instant::now();
    let tried = move |host: String, result: Result<Tried, Failure>| {
        let took_ms = u32::try_from(begun.elapsed().as_millis()).unwrap_or(u32::MAX);
        HostTrial { host, took_ms, result }
    };
    let own = async {
        let result = async {
            let untried = importer.bucket(bucket)?.try_out(&prefix, trial).await?;
            let deletes = trial.delete && !untried.contains(&Untried::Deleting);
            Ok(Tried { deletes, untried: untried.iter().map(ToString::to_string).collect() })
        };
        tried("the metadata server".to_owned(), result.await)
    };
    // Only this server deletes, and looks for uploads.
    let request = TryBucket { bucket: bucket.clone(), read: trial.read, write: trial.write };
    let serves = |host: &&Host| map.targets.iter().any(|target| target.host == host.id);
    // Owned, so that the future can be sent between threads.
    let hosts: Vec<Host> = map.hosts.iter().filter(serves).cloned().collect();
    let asked = stream::iter(hosts).map(|host| {
        let answer = ask(environment, host.id, request.clone());
        async move { tried(host_name(&host), answer.await) }
    });
    let (own, mut others) =
        tokio::join!(own, asked.buffer_unordered(TRIALS_MAX).collect::<Vec<_>>());
    others.sort_by(|a, b| a.host.cmp(&b.host));
    others.insert(0, own);
    Ok(others)
}

/// Has a daemon try; one from before the request, without reading.
async fn ask<E: Environment>(
    environment: &E,
    host: HostId,
    request: TryBucket,
) -> Result<Tried, Failure> {
    let TryBucket { bucket, read, write } = request.clone();
    match environment.ask(host, request, TRIAL_TIMEOUT).await {
        // That is what a bucket may be answered, too: then it is answered again.
        Err(failure) if failure.kind == ErrorKind::NotSupported => {}
        answer => return answer,
    }
    environment.ask(host, CheckBucket { bucket, write }, TRIAL_TIMEOUT).await?;
    let words = "reading was not tried: the daemon is older than that, upgrade it";
    let untried = read.then(|| words.to_owned()).into_iter().collect();
    Ok(Tried { deletes: false, untried })
}

/// One failure that names all hosts that failed, the same sentence once.
fn complaint(tried: Vec<HostTrial>) -> Result<(), Failure> {
    let mut sentences: Vec<(String, Vec<String>)> = Vec::new();
    let mut kind = None;
    for HostTrial { host, result, .. } in tried {
        let Err(failure) = result else { continue };
        kind.get_or_insert(failure.kind);
        let text = if failure.message.is_empty() { failure.to_string() } else { failure.message };
        match sentences.iter_mut().find(|(known, _)| *known == text) {
            Some((_, hosts)) => hosts.push(host),
            None => sentences.push((text, vec![host])),
        }
    }
    let Some(kind) = kind else { return Ok(()) };
    let mut message = String::new();
    for (text, hosts) in sentences {
        let separator = if message.is_empty() { "" } else { "; " };
        let written = write!(message, "{separator}on {}: {text}", hosts.join(", "));
        written.expect("writing to a string never fails");
    }
    Err(Failure::new(kind, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_names_every_host_and_says_each_sentence_once() {
        let fail = |kind, text: &str| Err(Failure::new(kind, text));
        let fine = || Ok(Tried { deletes: false, untried: Vec::new() });
        let tried = |host: &str, result| HostTrial { host: host.to_owned(), took_ms: 1, result };
        let all = vec![
            tried("the metadata server", fine()),
            tried("target host a", fail(ErrorKind::BucketUnavailable, "refused")),
            tried("target host b", fail(ErrorKind::BucketUnavailable, "refused")),
            tried("target host c", fail(ErrorKind::BucketDenied, "no credentials")),
        ];
        let failure = complaint(all).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::BucketUnavailable);
        assert_eq!(
            failure.message,
            "on target host a, target host b: refused; on target host c: no credentials"
        );
        assert_eq!(complaint(vec![tried("x", fine())]), Ok(()));
    }
}
