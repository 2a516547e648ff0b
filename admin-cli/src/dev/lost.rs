//! Targets of a dev cluster that were given up (`millrace target lost`). Their daemons run and
//! serve nothing: nobody waits for them.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use millrace_protocol::{admin::ClusterStatusReply, loss::LookLoss};
use millrace_types::TargetId;
use serde::Serialize;

use crate::{
    connection::Connection,
    dev::{daemon::Daemon, directory::DATA},
    programs,
};

/// A daemon whose target was given up.
#[derive(Serialize, Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The daemon's name.
    pub(crate) name: String,
    /// The target that it has.
    pub(crate) target: String,
    /// Where that lies.
    pub(crate) data: String,
}

impl Lost {
    /// What it is and what to do, in a line; `dir` is the cluster's directory.
    pub(crate) fn words(&self, dir: &str) -> String {
        let Self { name, target, data } = self;
        format!(
            "{name} serves nothing, since its target {target} was given up: to have it join anew, \
             run `millrace dev down --dir {dir}`, empty {data}, and run `dev up` again"
        )
    }
}

/// Which of the `targets` have one that was given up; `status` is the metadata server's, which
/// `connection` leads to.
pub(crate) async fn find(
    connection: &Connection,
    status: &ClusterStatusReply,
    targets: &[Daemon],
) -> Vec<Lost> {
    let is_known = |name: &str| status.targets.iter().any(|target| target.host_name == name);
    let mut lost = Vec::new();
    for daemon in targets.iter().filter(|daemon| !is_known(&daemon.name)) {
        let data = daemon.directory.join(DATA);
        let Some(target) = on_disk(&data) else { continue };
        // One that has not joined yet is unknown there.
        let looked = connection.request(&LookLoss { target, after: None }).await;
        if looked.is_ok_and(|page| page.given_up) {
            let (name, target) = (daemon.name.clone(), target.to_string());
            lost.push(Lost { name, target, data: data.display().to_string() });
        }
    }
    lost
}

/// The target in a directory, as the targets' own program reads it there; also while a daemon has
/// it.
fn on_disk(data: &Path) -> Option<TargetId> {
    let mut dump = Command::new(programs::find(programs::TARGET).ok()?);
    dump.arg("dump").arg(data).stdin(Stdio::null()).stderr(Stdio::null());
    in_dump(&String::from_utf8_lossy(&dump.output().ok()?.stdout))
}

/// Of `superblock A page 0: target 3f0a51c2b7e94d68 cluster ...`, the target.
fn in_dump(printed: &str) -> Option<TargetId> {
    printed.lines().filter(|line| line.starts_with("superblock ")).find_map(|line| {
        let (_, told) = line.split_once(": target ")?;
        TargetId::parse(told.split(' ').next()?).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_told_by_either_copy_of_its_superblock() {
        let dump = "superblock A page 0: the checksum is wrong\n\
                    superblock B page 8: target 3f0a51c2b7e94d68 cluster 8f write 2 losses 0\n\
                    root page 16: generation 4 through 9\n";
        assert_eq!(in_dump(dump).map(|id| id.to_string()).as_deref(), Some("3f0a51c2b7e94d68"));
        assert_eq!(in_dump("root page 16: target 3f0a51c2b7e94d68"), None);
        assert_eq!(in_dump(""), None);
    }

    #[test]
    fn nothing_lies_where_there_is_no_target() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(on_disk(&directory.path().join("data")), None);
    }

    #[test]
    fn the_line_names_the_target_and_its_directory() {
        let lost = Lost {
            name: "target-1".to_owned(),
            target: "3f0a51c2b7e94d68".to_owned(),
            data: "/d/target-1/data".to_owned(),
        };
        let words = lost.words("/d");
        assert!(words.contains("target-1") && words.contains("3f0a51c2b7e94d68"), "{words}");
        assert!(words.contains("empty /d/target-1/data") && !words.contains('\n'), "{words}");
    }
}
