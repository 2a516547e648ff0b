//! Removes names.

use millrace_protocol::{metadata::Remove, session::Done};
use millrace_types::Failure;

use super::{Client, Step, broken, is_repeated, last_name::Losing, need_listing, need_name};
use crate::{
    command::{self, Command},
    engine::Core,
    namespace::tree,
};

/// unlink and rmdir.
///
/// # Errors
/// As POSIX has it.
pub fn remove(core: &mut Core, client: &Client, request: &Remove) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    if is_repeated(core, request.operation)? {
        return Ok(Step::Done(Done { index: core.last_index() }));
    }
    let parent = client.enter(core, request.parent)?;
    let entry = tree::entry(core.view(), parent.id, &request.name);
    let entry = entry.map_err(|error| broken(core, error))?;
    let mut losing = None;
    match entry {
        Some(entry) => {
            let inode = tree::named(core.view(), &entry).map_err(|error| broken(core, error))?;
            if request.directory
                && let Some(need) = need_listing(client, &inode)
            {
                return Ok(Step::Need(need));
            }
            if request.directory {
                // Whether it is empty tells of them.
                core.note_names_told(inode.id);
            }
            losing = Losing::of(core, &inode, (parent.id, &request.name));
        }
        None => {
            if let Some(need) = need_name(client, &parent, &request.name) {
                return Ok(Step::Need(need));
            }
        }
    }
    let command = Command::Remove(command::Remove {
        caller: client.caller(&request.caller),
        parent: parent.id,
        name: request.name.clone(),
        directory: request.directory,
        readers: losing.as_ref().map(Losing::readers).unwrap_or_default(),
    });
    core.execute(Some(request.operation), command)?;
    if let Some(losing) = losing {
        losing.handle_lost(core);
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}
