//! `millrace fsck ...`

use clap::{Args, Subcommand};
use millrace_types::TargetId;

/// The check of the namespace, and of the targets against it.
#[derive(Subcommand, Debug)]
pub enum FsckCommand {
    /// Check the namespace, and what targets hold against it; free what no file has
    #[command(after_help = START_HELP)]
    Start(FsckStartArguments),
    /// Show the check that runs, or the last one, with its findings
    Show(FsckShowArguments),
    /// End the check that runs
    Cancel,
    /// Vouch for the namespace after a restore, so that orphans are freed again
    #[command(after_help = TRUST_HELP)]
    Trust,
}

/// Arguments of `fsck start`.
#[derive(Args, Debug)]
pub struct FsckStartArguments {
    /// Only this target; may be given several times [default: all]
    #[arg(long = "target", value_name = "ID", value_parser = target_id)]
    pub targets: Vec<TargetId>,
    /// Free nothing, only report
    #[arg(long)]
    pub report_only: bool,
    /// Repair what of the namespace can be repaired safely
    #[arg(long, conflicts_with_all = ["targets", "report_only"])]
    pub repair: bool,
    /// Free orphans also when they are more than 256 chunks and 1 % of a target
    #[arg(long, conflicts_with = "report_only")]
    pub free_many: bool,
    /// How long to stay.
    #[command(flatten)]
    pub wait: FsckShowArguments,
}

/// Arguments of `fsck show`.
#[derive(Args, Debug)]
pub struct FsckShowArguments {
    /// Stay until the check ends; exit code 1 if something is left wrong or not all was checked
    #[arg(long)]
    pub wait: bool,
}

fn target_id(text: &str) -> Result<TargetId, String> {
    TargetId::parse(text).map_err(|_| "use the id that `millrace status` shows".to_owned())
}

const START_HELP: &str = "\
First the namespace is checked against itself: names, link counts, directories, and what belongs to
inodes. With --repair, what is wrong there is set right where that is safe: counts become what is
there, what leads nowhere is removed, and what nothing leads to is named in /lost+found by its
number. A check of some targets alone leaves this out.

Orphans are contents on targets that no file has any more; they are freed after two looks, longer
apart than a session's lease. Nothing is freed while the namespace is not trusted: after a restore,
and after the server's store was made anew (`millrace fsck trust`). Of a target on which more than
256 chunks and more than 1 % of all are orphans, nothing is freed without --free-many: look first
whether these files are meant to be gone. Missing are chunks that a file needs and its target does
not have; nothing is done about them. The cluster runs a check by itself once a day.

Examples:
  millrace fsck start --wait
  millrace fsck start --repair --wait
  millrace fsck start --report-only --target 00112233445566ff
  millrace fsck show --json";

const TRUST_HELP: &str = "\
Look at `millrace fsck show` first: what it calls orphans would be freed by the next check. After an
older copy of the metadata directory was put back, these are the files made since that copy.

Targets that `millrace status` calls older copies of themselves are taken as they are: what was
overwritten since the copy was made is then there as it was.

Examples, each looked at before the next:
  millrace fsck start --report-only --wait
  millrace fsck show
  millrace fsck trust";
