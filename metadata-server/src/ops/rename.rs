//! Moves names.

use millrace_protocol::{
    metadata::{Rename, RenameMode},
    session::Done,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{Client, Need, Step, broken, is_repeated, last_name::Losing, need_listing, need_name};
use crate::{
    command::{self, Command},
    engine::Core,
    namespace::{Inode, tree},
};

/// Moves a name.
///
/// # Errors
/// As POSIX has it.
pub fn rename(core: &mut Core, client: &Client, request: &Rename) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    if is_repeated(core, request.operation)? {
        return Ok(Step::Done(Done { index: core.last_index() }));
    }
    let source = client.enter(core, request.source_parent)?;
    let target = client.enter(core, request.target_parent)?;
    let moved = match named(core, client, &source, &request.source_name)? {
        Ok(moved) => moved,
        Err(need) => return Ok(Step::Need(need)),
    };
    let replaced = match named(core, client, &target, &request.target_name)? {
        Ok(replaced) => replaced,
        Err(need) => return Ok(Step::Need(need)),
    };
    let is_directory = |inode: &Option<Inode>| inode.as_ref().is_some_and(Inode::is_directory);
    if source.id != target.id && (is_directory(&moved) || is_directory(&replaced)) {
        check_depth(core, &source)?;
        check_depth(core, &target)?;
    }
    let mut losing = None;
    if let Some(replaced) = replaced {
        core.note_names_told(replaced.id);
        if let Some(need) = need_listing(client, &replaced) {
            return Ok(Step::Need(need));
        }
        if request.mode == RenameMode::Replace {
            losing = Losing::of(core, &replaced, (target.id, &request.target_name));
        }
    }
    core.note_name_told(target.id, &request.target_name);
    let command = Command::Rename(command::Rename {
        caller: client.caller(&request.caller),
        source_parent: parent(&source),
        source_name: request.source_name.clone(),
        target_parent: parent(&target),
        target_name: request.target_name.clone(),
        mode: request.mode,
        readers: losing.as_ref().map(Losing::readers).unwrap_or_default(),
    });
    core.execute(Some(request.operation), command)?;
    if let Some(losing) = losing {
        losing.handle_lost(core);
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// No directory is moved from or to where it is not known what lies above: it could be the
/// directory itself. Here and not in apply: a log from before this check still replays.
fn check_depth(core: &mut Core, parent: &Inode) -> Result<(), Failure> {
    match tree::is_deep(core.view(), parent).map_err(|error| broken(core, error))? {
        true => Err(Failure::new(ErrorKind::Loop, "the directory lies too deep")),
        false => Ok(()),
    }
}

fn parent(directory: &Inode) -> InodeId {
    directory.id
}

/// What a name leads to, or what must happen before that is known.
fn named(
    core: &mut Core,
    client: &Client,
    directory: &Inode,
    name: &FileName,
) -> Result<Result<Option<Inode>, Need>, Failure> {
    let entry = tree::entry(core.view(), directory.id, name);
    match entry.map_err(|error| broken(core, error))? {
        Some(entry) => {
            let inode = tree::named(core.view(), &entry).map_err(|error| broken(core, error))?;
            Ok(Ok(Some(inode)))
        }
        None => Ok(need_name(client, directory, name).map_or(Ok(None), Err)),
    }
}
