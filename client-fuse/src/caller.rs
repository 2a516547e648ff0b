//! Who asks: user and group as the kernel tells them, supplementary groups from `/proc`.
//!
//! The kernel checks permissions itself (`default_permissions`), with all groups of the process.
//! The server checks names again, and must know the same groups, or it would refuse what the kernel
//! has allowed.

use std::fs;

use millrace_protocol::session::Caller;

/// The caller with this user and group in `process`. A process that is gone, or not visible from
/// here (0), has no supplementary groups.
pub(crate) fn caller(uid: u32, gid: u32, process: u32) -> Caller {
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
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    let numbers = line.unwrap_or_default().split_ascii_whitespace();
    numbers.filter_map(|number| number.parse().ok()).take(Caller::GROUPS_MAX).collect()
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
}
