//! Uploads by parts that were begun below a link and never ended, by whomever: they cost what their
//! parts take, and nothing shows them.

use std::{collections::BTreeSet, sync::Arc};

use millrace_object_source::BegunUpload;
use millrace_protocol::bucket::{ListUploads, UPLOADS_MAX, UnfinishedUpload, UploadsReply};
use millrace_types::{Failure, Timestamp};

use super::{
    environment::Environment,
    import::{Importer, broken, spec_of},
    links::record_at,
};
use crate::{
    namespace::tree,
    store::{
        keys,
        records::{CopyRecord, Export},
    },
};

/// The most pages of a thousand that are asked for.
const PAGES_MAX: usize = 1000;

/// Lists what was begun below a link, and gives up what is old enough and used by no export here.
///
/// # Errors
/// [`ErrorKind::NotFound`](millrace_types::ErrorKind::NotFound) when the directory is not the top
/// of a link; those of the bucket.
pub async fn list<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    request: &ListUploads,
) -> Result<UploadsReply, Failure> {
    let link = record_at(environment, importer, &request.path).await?;
    let bucket = importer.bucket(&link.bucket)?;
    let prefix = spec_of(&link.bucket)?.prefix().to_owned();
    let now = environment.now();
    let mut reply = UploadsReply { uploads: Vec::new(), total: 0, aborted: 0 };
    let mut after = None;
    for _ in 0..PAGES_MAX {
        let page = bucket.list_uploads_below(&prefix, after.as_ref()).await?;
        // After the listing: what was begun before it has been recorded, but for moments.
        let used = used(environment).await?;
        for BegunUpload { key, upload, begun } in page.uploads {
            let is_used = used.contains(upload.as_str());
            let age = request.abort_older_than_seconds;
            let is_old = age.is_some_and(|age| is_older(begun, age, now));
            let aborted = is_old && !is_used;
            if aborted {
                bucket.abort_upload(&key, &upload).await?;
                tracing::info!(key, upload = upload.as_str(), "an unfinished upload is aborted");
            }
            reply.total += 1;
            reply.aborted += u64::from(aborted);
            if reply.uploads.len() < UPLOADS_MAX {
                let upload_id = upload.as_str().to_owned();
                reply.uploads.push(UnfinishedUpload { key, upload_id, begun, is_used, aborted });
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    Ok(reply)
}

fn is_older(begun: Timestamp, age_seconds: u64, now: Timestamp) -> bool {
    let age = i64::try_from(age_seconds).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
    begun.0.saturating_add(age) <= now.0
}

/// The names of all uploads that exports of this cluster have under way.
async fn used<E: Environment>(environment: &E) -> Result<BTreeSet<String>, Failure> {
    let query = environment.read(|view| {
        let exports = tree::scan::<Export>(view, &keys::exports(), usize::MAX).map_err(broken)?;
        let copies = tree::scan::<CopyRecord>(view, &keys::copies(), usize::MAX).map_err(broken)?;
        let exports = exports.into_iter().filter_map(|(_, export)| export.upload_id);
        Ok(exports.chain(copies.into_iter().filter_map(|(_, copy)| copy.upload_id)).collect())
    });
    query.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upload_is_old_from_its_age_on_and_one_without_a_time_never() {
        let second = 1_000_000_000;
        assert!(is_older(Timestamp(5 * second), 10, Timestamp(15 * second)));
        assert!(!is_older(Timestamp(5 * second), 10, Timestamp(15 * second - 1)));
        assert!(!is_older(Timestamp(i64::MAX), 0, Timestamp(15 * second)));
        assert!(!is_older(Timestamp(0), u64::MAX, Timestamp(i64::MAX - 1)));
    }
}
