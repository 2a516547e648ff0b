//! Who asks: user and group as the kernel tells them, supplementary groups from `/proc`.
//!
//! The kernel checks permissions itself (`default_permissions`), with all groups of the process.
//! The server checks names again, and must know the same groups, or it would refuse what the kernel
//! has allowed.

use std::fs;

use millrace_protocol::session::Caller;

/// The caller with this user and group in `process`, which waits for the answer. (What it asks may
/// be as another user than it says it is, as by `access`.) A process that is not visible from here
/// (0) has no supplementary groups.
pub(crate) fn caller(uid: u32, gid: u32, process: u32) -> Caller {
    with_groups(uid, gid, process, groups)
}

/// The caller that has connected as this user. It need not be there any more, and another process
/// may have its number: of one that does not act for the user the groups are not the caller's.
pub(crate) fn connected(uid: u32, gid: u32, process: u32) -> Caller {
    let own = |status: &str| if acts_for(status, uid) { groups(status) } else { Vec::new() };
    with_groups(uid, gid, process, own)
}

fn with_groups(uid: u32, gid: u32, process: u32, groups: impl Fn(&str) -> Vec<u32>) -> Caller {
    // Root passes every check; its groups are not asked for.
    let groups = if uid == 0 || process == 0 {
        Vec::new()
    } else {
        fs::read_to_string(format!("/proc/{process}/status"))
            .map(|status| groups(&status))
            .unwrap_or_default()
    };
    Caller { uid, gid, groups }
}

fn groups(status: &str) -> Vec<u32> {
    numbers(status, "Groups:").take(Caller::GROUPS_MAX).collect()
}

/// Whether this is a process with the user's rights.
fn acts_for(status: &str, uid: u32) -> bool {
    // Real, effective, saved, and that of its file accesses.
    numbers(status, "Uid:").nth(1) == Some(uid)
}

fn numbers<'a>(status: &'a str, name: &str) -> impl Iterator<Item = u32> + use<'a> {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let words = line.unwrap_or_default().split_ascii_whitespace();
    words.filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        assert_eq!(groups("Name:\tcat\nGroups:\t4 24 1000 \nNStgid:\t1\n"), [4, 24, 1000]);
        assert!(groups("Name:\tcat\nGroups:\t \n").is_empty());
        assert!(groups("").is_empty());
    }

    #[test]
    fn a_process_acts_for_its_effective_user() {
        let acts = |users: &str| acts_for(&format!("Name:\tsu\nUid:\t{users}\nGid:\t7\n"), 7);
        assert!(acts("7\t7\t7\t7") && acts("0\t7\t0\t7"));
        // What a user starts and has another one's rights has other groups, too.
        assert!(!acts("7\t0\t7\t0") && !acts("8\t8\t8\t8") && !acts(""));
    }

    /// This process, whose number somebody else had before.
    #[test]
    fn who_has_connected_has_no_groups_of_another_users_process() {
        let (own, other) = (rustix::process::geteuid().as_raw(), 4_000_000_000);
        assert!(connected(other, 7, std::process::id()).groups.is_empty());
        let asks = caller(other, 7, std::process::id());
        assert_eq!(asks.groups.len(), rustix::process::getgroups().unwrap().len());
        assert_eq!(connected(own, 7, std::process::id()).uid, own);
    }
}
