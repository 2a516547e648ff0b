//! Which exports were left under way.

use std::sync::Arc;

use millrace_types::{Failure, InodeId};

use super::Export;
use crate::{
    hydration::{Environment, import::broken},
    namespace::tree,
    store::{View, keys, records},
};

/// So many exports are settled at once: as many as a job that was interrupted may have had under
/// way.
const LEFT_MAX: usize = 10_000;

/// Records of exports that are looked at in one turn: nobody else has one meanwhile.
const PAGE_RECORDS: usize = 1_000;

/// The exports under way that are wanted; of others there may be any number before them. What comes
/// and goes while they are looked for does not matter: each is looked at again before anything
/// happens to it.
pub(super) async fn left<E: Environment>(
    environment: &Arc<E>,
    is_wanted: impl Fn(&dyn View, InodeId, &records::Export) -> Result<bool, Failure>
    + Send
    + Sync
    + 'static,
) -> Result<Vec<Export>, Failure> {
    let is_wanted = Arc::new(is_wanted);
    let (mut after, mut left) = (Some(keys::exports()), Vec::new());
    while let Some(from) = after.filter(|_| left.len() < LEFT_MAX) {
        let is_wanted = Arc::clone(&is_wanted);
        let page = environment.read(move |view| wanted(view, &from, &*is_wanted));
        let (found, next) = page.await?;
        left.extend(found);
        after = next;
    }
    Ok(left)
}

/// Those of a page of records, and behind which key the next page begins, if there is one.
fn wanted(
    view: &dyn View,
    after: &[u8],
    is_wanted: &impl Fn(&dyn View, InodeId, &records::Export) -> Result<bool, Failure>,
) -> Result<(Vec<Export>, Option<Vec<u8>>), Failure> {
    let page = tree::scan_after::<records::Export>(view, &keys::exports(), after, PAGE_RECORDS);
    let page = page.map_err(broken)?;
    let next = page.last().filter(|_| page.len() == PAGE_RECORDS).map(|(at, _)| at.clone());
    let mut found = Vec::new();
    for (at, record) in page {
        if let Some(id) = keys::number_at(&at, 1).map(InodeId)
            && is_wanted(view, id, &record)?
        {
            found.push(Export::new(id, record));
        }
    }
    Ok((found, next))
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChangeCount, ContentGeneration, JobId, LinkId};

    use super::*;
    use crate::store::{Batch, MetaStore as _, memory::MemoryStore, records::Record as _};

    #[test]
    fn exports_of_others_hide_none() {
        let mut store = MemoryStore::default();
        let mut batch = Batch::default();
        let last = LEFT_MAX as u64 + 1;
        for id in 0..=last {
            let record = records::Export {
                job: JobId(1),
                id: u128::from(id),
                change_count: ChangeCount(1),
                generation: ContentGeneration(1),
                size: 0,
                link: LinkId(if id == last { 2 } else { 1 }),
                key: id.to_string(),
                replaces: None,
                part_size: 0,
                upload_id: None,
            };
            batch.put(keys::export(InodeId(id)), record.encode());
        }
        store.commit(&batch).unwrap();
        let of = |link: LinkId| {
            let (mut after, mut left) = (Some(keys::exports()), Vec::new());
            while let Some(from) = after {
                let page = wanted(&store, &from, &|_, _, record| Ok(record.link == link));
                let (found, next) = page.unwrap();
                left.extend(found);
                after = next;
            }
            left
        };
        let found: Vec<InodeId> = of(LinkId(2)).iter().map(|export| export.inode).collect();
        assert_eq!(found, [InodeId(last)]);
        assert_eq!(of(LinkId(1)).len(), LEFT_MAX + 1);
    }
}
