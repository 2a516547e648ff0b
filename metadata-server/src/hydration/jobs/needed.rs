//! Whether a file that was moved away needs the object that an export is to replace.

use millrace_protocol::capability::Origin;
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{Context, Environment, file_export::Source};
use crate::{
    hydration::{
        conflicts::missing, destination::Destination, holdings::reason, import::broken,
        walk::path_of,
    },
    namespace::{Body, tree},
};

/// Refuses to replace an object that a file still needs which was moved away from it: bytes that
/// were never fetched would be gone. While a target is away that the file lies on, nobody knows.
pub(super) async fn check_not_needed<E: Environment>(
    context: &Context<'_, E>,
    source: &Source,
) -> Result<(), Failure> {
    let (Some(removed), Some(id)) = (&source.removed, source.moved) else { return Ok(()) };
    if id == source.inode.id {
        return Ok(());
    }
    check_not_needed_by(context, &source.destination, removed, id).await
}

/// The same of one file, and the version of the object with this tag.
pub(super) async fn check_not_needed_by<E: Environment>(
    context: &Context<'_, E>,
    to: &Destination,
    tag: &str,
    id: InodeId,
) -> Result<(), Failure> {
    let query = context.environment.read(move |view| tree::find(view, id).map_err(broken));
    let Some(other) = query.await? else { return Ok(()) };
    let Body::File(body) = &other.body else { return Ok(()) };
    let needs = |origin: &Origin| to.is_of(origin) && origin.tag == tag;
    if !body.origin.as_ref().is_some_and(needs) {
        return Ok(());
    }
    let missing = missing(&**context.environment, &other, body).await;
    if missing.as_ref().is_ok_and(|missing| missing.0 == 0) {
        return Ok(());
    }
    let path = path_of(&**context.environment, &other).await;
    let moved = format!("{} was moved away from {}", path.escape_ascii(), to.key);
    Err(match missing {
        Ok(missing) => Failure::new(
            ErrorKind::Conflict,
            format!(
                "{moved}, and {missing} of it are nowhere but in the object there: hydrate or \
                 export it before the object is replaced"
            ),
        ),
        Err(failure) => {
            let words = format!("{moved} and may need the object there: {}", reason(&failure));
            Failure::new(failure.kind, words)
        }
    })
}
