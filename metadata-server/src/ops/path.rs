//! Paths of administrative requests: from the top of what the client may see.

use millrace_protocol::session::Caller;
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{Client, Step, find, need_name};
use crate::{
    engine::Core,
    namespace::{Inode, tree},
};

/// Walks a path, never following symbolic links.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`].
pub fn resolve(
    core: &mut Core,
    client: &Client,
    caller: &Caller,
    path: &[u8],
) -> Result<Step<Inode>, Failure> {
    let caller = client.caller(caller);
    let mut at = client.enter(core, InodeId::ROOT)?;
    for name in tree::components(path)? {
        match find(core, &caller, &at, &name)? {
            Some(inode) => at = inode,
            None => match need_name(client, &at, &name) {
                Some(need) => return Ok(Step::Need(need)),
                None => {
                    let text = format!("{} does not exist", String::from_utf8_lossy(path));
                    return Err(Failure::new(ErrorKind::NotFound, text));
                }
            },
        }
    }
    Ok(Step::Done(at))
}
