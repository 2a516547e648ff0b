//! Decides conflicts: which of two versions of a file stays. Puts the bucket's in the place of what
//! was lost with a target.

use std::sync::Arc;

use millrace_protocol::admin::{Keep, ResolveConflict, ResolveReply};
use millrace_types::{ByteLen, ErrorKind, Failure};

use super::{
    environment::Environment,
    holdings::{Inquiry, Patience, reason},
    import::{Importer, Object, spec_of},
    walk::{Viewpoint, inode, resolve as resolve_path},
};
use crate::{
    command::{self, Command, Observation, Outcome},
    namespace::{FileBody, Inode, ObjectState, permission},
};

/// Looks at the object as it is now, and keeps one version of the file at a path, whose beginning
/// is `top`.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] when the caller may not search the way to it;
/// [`ErrorKind::NotPermitted`] for others than the owner and root;
/// [`ErrorKind::InvalidArgument`] when the file is not in conflict; [`ErrorKind::InUse`] while
/// somebody writes what would be given up; [`ErrorKind::Lost`] when bytes that the local version
/// needs were never fetched and exist nowhere any more; that a target does not answer which may
/// have them.
pub(super) async fn resolve<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
    top: &[u8],
    request: &ResolveConflict,
) -> Result<ResolveReply, Failure> {
    let path = request.path.escape_ascii().to_string();
    let from = Viewpoint { top, caller: &request.caller };
    let file = resolve_path(environment, importer, from, &request.path).await?;
    if !permission::is_root(&request.caller) && request.caller.uid != file.uid {
        let text = format!("only the owner of {path} or root decides its conflict");
        return Err(Failure::new(ErrorKind::NotPermitted, text));
    }
    let body = file.file().map_err(|kind| Failure::new(kind, format!("{path} is no file")))?;
    let calm = || Failure::new(ErrorKind::InvalidArgument, format!("{path} is not in conflict"));
    match body.state {
        ObjectState::Conflict => {}
        ObjectState::Lost => check_replaceable(body, request.keep, &path)?,
        _ => return Err(calm()),
    }
    if request.keep == Keep::Local {
        check_whole(environment, &file, body, &path).await?;
    }
    let id = file.id;
    let object = environment.read(move |view| Object::of(view, id)).await?.ok_or_else(calm)?;
    if body.state == ObjectState::Lost && object.elsewhere {
        let text = format!(
            "{path} was renamed: the object at {} may be another file's by now; copy it from the \
             bucket, if it is the right one",
            object.key
        );
        return Err(Failure::new(ErrorKind::Lost, text));
    }
    let found = importer.head(&object).await?;
    if body.state == ObjectState::Lost && found.is_none() {
        let text = format!("the object of {path} is no longer in the bucket");
        return Err(Failure::new(ErrorKind::NotFound, text));
    }
    // The object of its old name may be another file's by now: its own is made under the new one.
    let found = found.filter(|_| request.keep == Keep::Bucket || !object.elsewhere);
    let origin = match &found {
        Some(found) => {
            let url = spec_of(&object.bucket)?.url_of(&found.origin.key);
            Some((url, found.origin.tag.clone()))
        }
        None => None,
    };
    let (caller, keep) = (request.caller.clone(), request.keep);
    let decide = command::ResolveConflict { caller, inode: id, keep, found };
    let decided = environment.execute(Command::ResolveConflict(decide), true).await;
    let Outcome::Observed(observation) = decided.map_err(|failure| in_words(failure, &path))?
    else {
        return Err(ErrorKind::Internal.into());
    };
    importer.counts.observed(observation);
    tracing::info!(inode = %id, path, ?keep, ?observation, "a conflict is decided");
    let removed = observation == Observation::Removed;
    let size = if removed { 0 } else { inode(environment, id).await?.size };
    Ok(ResolveReply { removed, size: ByteLen(size), origin })
}

/// What lay on a target that was given up is nowhere: only the bucket has a whole version.
fn check_replaceable(body: &FileBody, keep: Keep, path: &str) -> Result<(), Failure> {
    let text = match (keep, &body.origin) {
        (Keep::Bucket, Some(_)) => return Ok(()),
        (Keep::Bucket, None) => format!("{path} came from no bucket, and was never in one"),
        (Keep::Local, _) => format!(
            "parts of {path} lay on a target that was given up: copy what can be read, or keep \
             the bucket's version"
        ),
    };
    Err(Failure::new(ErrorKind::Lost, text))
}

/// What was written here may lie over bytes of the version that it was imported from. Those that
/// were never fetched are gone with that version: the new object's bytes never stand in for them.
async fn check_whole<E: Environment>(
    environment: &E,
    file: &Inode,
    body: &FileBody,
    path: &str,
) -> Result<(), Failure> {
    let unknown = |failure: Failure| {
        let words = format!(
            "nobody knows now whether all of {path} is here: {}; try again later, or keep the \
             bucket's version",
            reason(&failure)
        );
        Failure::new(failure.kind, words)
    };
    let missing = missing(environment, file, body).await.map_err(unknown)?;
    if missing.0 == 0 {
        return Ok(());
    }
    Err(Failure::new(
        ErrorKind::Lost,
        format!(
            "{missing} of {path} were never fetched, and the version that they belong to is no \
             longer in the bucket: copy what can be read, or keep the bucket's version"
        ),
    ))
}

/// How many bytes of a file are nowhere but in its object. Holes count as well: nobody can tell
/// them from bytes that were never fetched. Nor can anybody tell where bytes lie that a mount has
/// written past the end and not told this server of, so that as many others may be missing.
///
/// # Errors
/// That a target does not answer which may hold some of the file; that the server is busy or
/// shutting down.
pub(super) async fn missing<E: Environment>(
    environment: &E,
    file: &Inode,
    body: &FileBody,
) -> Result<ByteLen, Failure> {
    if body.origin_length == 0 || body.inline.is_some() {
        return Ok(ByteLen(0));
    }
    let mut inquiry = Inquiry::new(environment, Patience::DECISION).await?;
    let held = inquiry.held_of(environment, file).await?;
    let held_len = held.clean.0.saturating_add(held.written.0).saturating_add(held.zero.0);
    let here = held_len.saturating_sub(held.end.saturating_sub(file.size));
    Ok(ByteLen(file.size.saturating_sub(here)))
}

fn in_words(failure: Failure, path: &str) -> Failure {
    let text = match failure.kind {
        ErrorKind::InUse => format!("{path} is open for writing: close it first"),
        ErrorKind::InvalidArgument => format!("{path} is not in conflict any more"),
        _ => return failure,
    };
    Failure::new(failure.kind, text)
}
