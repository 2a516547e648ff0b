//! Objects and directories of one name: which of them is here, whatever pages they come on.

use millrace_protocol::{left_out::LeftOutReason, metadata::FileKind};
use millrace_types::Failure;

use super::{
    Environment, ImportKind, Importer, Linked, again::known, broken, entries::Found, key_of,
};
use crate::{
    namespace::{LinkedDirectory, tree},
    store::View,
};

/// What is imported, and the keys that have no place beside what is here.
type Sorted = (Vec<Found>, Vec<(String, LeftOutReason)>);

impl<E: Environment> Importer<E> {
    /// What was found, without objects whose names directories have here, and without directories
    /// whose names files have that are more than objects.
    pub(super) async fn without_shadowed(
        &self,
        linked: &Linked,
        found: Vec<Found>,
    ) -> Result<Sorted, Failure> {
        let linked = linked.clone();
        self.environment.read(move |view| sort(view, &linked, found)).await
    }
}

fn sort(view: &dyn View, linked: &Linked, found: Vec<Found>) -> Result<Sorted, Failure> {
    let known = known(view, linked.directory, &found)?;
    let of_link =
        LinkedDirectory { link: linked.link, prefix: linked.prefix.clone(), listed: linked.listed };
    let mut shadowed = Vec::new();
    let mut kept = Vec::with_capacity(found.len());
    for found in found {
        let entry = known.get(found.name());
        match (found.kind(), entry.map(|entry| (entry, entry.kind))) {
            (ImportKind::File(origin), Some((_, FileKind::Directory))) => {
                shadowed.push((origin.key.clone(), LeftOutReason::Directory));
                continue;
            }
            (ImportKind::Directory, Some((entry, FileKind::Regular))) => {
                let inode = tree::named(view, entry).map_err(broken)?;
                let key = key_of(&linked.prefix, found.name());
                if !inode.is_object_of(&of_link, found.name()) {
                    // Whether its object changed is asked for where names are missing.
                    shadowed.push((format!("{key}/"), LeftOutReason::File));
                    continue;
                }
                // The directory takes its place.
                shadowed.push((key, LeftOutReason::Directory));
            }
            (ImportKind::Directory, _) if found.is_over_object() => {
                let key = key_of(&linked.prefix, found.name());
                shadowed.push((key, LeftOutReason::Directory));
            }
            _ => {}
        }
        kept.push(found);
    }
    Ok((kept, shadowed))
}
