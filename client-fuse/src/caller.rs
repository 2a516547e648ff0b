//! Who asks: user and group as the kernel tells them, supplementary groups from `/proc`.
//!
//! The kernel checks permissions itself (`default_permissions`), with all groups of the process.
//! The server checks names again, and must know the same groups, or it would refuse what the kernel
//! has allowed.

use std::fs;

use millrace_protocol::session::Caller;

/// The caller with this user and group in `process`. A process that is gone, or not visible from
/// here (0), has no supplementary groups; nor has one that is another user's, which may have got
/// the number of the one that asked.
pub(crate) fn caller(uid: u32, gid: u32, process: u32) -> Caller {
    // Root passes every check; its groups are not asked for.
    let groups = if uid == 0 || process == 0 {
        Vec::new()
    } else {
        fs::read_to_string(format!("/proc/{process}/status"))
            .map(|status| groups(&status, uid))
            .unwrap_or_default()
    };
    Caller { uid, gid, groups }
}

/// The groups of a process that acts for this user.
fn groups(status: &str, uid: u32) -> Vec<u32> {
    let numbers = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap_or_default().split_ascii_whitespace();
        words.filter_map(|number| number.parse::<u32>().ok())
    };
    // Real, effective, saved, and that of its file accesses.
    let acts_for = |(at, user): (usize, u32)| (at == 1 || at == 3) && user == uid;
    match numbers("Uid:").enumerate().any(acts_for) {
        true => numbers("Groups:").take(Caller::GROUPS_MAX).collect(),
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        let status = |groups: &str| format!("Name:\tcat\nUid:\t7\t7\t7\t7\nGroups:\t{groups}\n");
        assert_eq!(groups(&format!("{}NStgid:\t1\n", status("4 24 1000 ")), 7), [4, 24, 1000]);
        assert!(groups(&status(" "), 7).is_empty());
        assert!(groups("", 7).is_empty());
    }

    #[test]
    fn groups_of_another_users_process_are_nobodys() {
        let status = |users: &str| format!("Name:\tsu\nUid:\t{users}\nGroups:\t27\n");
        assert!(groups(&status("8\t8\t8\t8"), 7).is_empty());
        // What a user starts and has another one's rights has other groups, too.
        assert!(groups(&status("7\t0\t7\t0"), 7).is_empty());
        for acting in ["0\t7\t0\t7", "0\t0\t0\t7", "8\t7\t7\t7"] {
            assert_eq!(groups(&status(acting), 7), [27], "{acting}");
        }
    }
}
