//! `millrace target ...`

use std::path::PathBuf;

use clap::{ArgGroup, Args, Subcommand};
use millrace_protocol::upkeep::ScrubAction;
use millrace_types::{ByteLen, TargetId};

use super::dev::capacity;

/// `millrace target ...`
#[derive(Subcommand, Debug)]
pub enum TargetCommand {
    /// Name a further target in the settings of this host's daemon
    #[command(after_help = ADD_HELP)]
    Add(TargetAddArguments),
    /// List the targets with their space, damage and scrubs
    List,
    /// Show everything about a target, with each damaged block and its file
    #[command(after_help = SHOW_HELP)]
    Show(TargetArgument),
    /// Show, start, pause and resume the check of everything on a target, or set its rate
    #[command(after_help = SCRUB_HELP)]
    Scrub(ScrubArguments),
    /// Tell what would be lost if a target went away now
    #[command(after_help = DRAIN_HELP)]
    DrainCheck(TargetArgument),
    /// Give a target up that will not come back, or tell what that would damage
    #[command(after_help = LOST_HELP)]
    Lost(LostArguments),
}

/// Arguments of `target add`.
#[derive(Args, Debug)]
pub struct TargetAddArguments {
    /// The directory, on a file system of its own: an empty one becomes a new target, and one that
    /// holds a target joins with it
    #[arg(value_name = "DIRECTORY")]
    pub directory: PathBuf,
    /// The most bytes that it takes of its disk [default: what is free, less 256 MiB]
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<ByteLen>,
    /// The id of the target that the directory must hold; without one there it is refused
    #[arg(long, value_name = "ID", value_parser = target_id)]
    pub id: Option<TargetId>,
}

/// Arguments of `target lost`.
#[derive(Args, Debug)]
pub struct LostArguments {
    /// The target, as `target list` shows it
    #[arg(value_name = "ID", value_parser = target_id)]
    pub id: TargetId,
    /// Do it: the target is gone for good then, and so is what it alone had
    #[arg(long)]
    pub yes: bool,
}

/// A target.
#[derive(Args, Debug)]
pub struct TargetArgument {
    /// The target, as `target list` shows it
    #[arg(value_name = "ID", value_parser = target_id)]
    pub id: TargetId,
}

/// Arguments of `target scrub`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("which").required(true).args(["ids", "all"]))]
#[command(group = ArgGroup::new("action").args(["start", "pause", "resume", "rate"]))]
pub struct ScrubArguments {
    /// Targets, as `target list` shows them
    #[arg(value_name = "ID", value_parser = target_id)]
    pub ids: Vec<TargetId>,
    /// Every target
    #[arg(long)]
    pub all: bool,
    /// Begin a pass now; one that is under way goes on
    #[arg(long)]
    pub start: bool,
    /// Stop reading, until --resume or the daemon's next start
    #[arg(long)]
    pub pause: bool,
    /// Go on
    #[arg(long)]
    pub resume: bool,
    /// Read at most that much a second, until the daemon's next start; 0: off
    #[arg(long, value_name = "SIZE")]
    pub rate: Option<ByteLen>,
    /// Stay until the pass ends, with its progress; exit code 1 when it finds damage
    #[arg(long)]
    pub wait: bool,
}

impl ScrubArguments {
    /// What is asked for.
    pub(crate) fn action(&self) -> ScrubAction {
        match self.rate {
            Some(rate) => ScrubAction::SetRate(rate.0),
            None if self.start => ScrubAction::Start,
            None if self.pause => ScrubAction::Pause,
            None if self.resume => ScrubAction::Resume,
            None => ScrubAction::Show,
        }
    }
}

fn target_id(text: &str) -> Result<TargetId, String> {
    TargetId::parse(text)
        .map_err(|_| "use the 16 digits that `millrace target list` shows".to_owned())
}

const ADD_HELP: &str = "\
To be run on the storage host, as who may change the daemon's settings: --config FILE, by default
/etc/millrace/storage-target.toml. Comments and order stay, and the daemon's program looks at the
result before it replaces the file. The daemon reads its settings at its start: restart it then.
A directory that is named already is no error. Of a dev cluster, `millrace dev up --targets N` adds
targets.

Examples:
  millrace target add /var/lib/millrace/target-1
  millrace target add /srv/disk7 --capacity 3.5TiB --config /etc/millrace/storage-target.toml";

const SHOW_HELP: &str = "\
A damaged block is never read as data: whoever asks for it gets an error until the file is
overwritten there or removed. What a bucket still has is dropped and fetched again, and not listed
for long.

Examples:
  millrace target show 3f0a51c2b7e94d68
  millrace target show 3f0a51c2b7e94d68 --json";

const SCRUB_HELP: &str = "\
A pass reads everything on the target and checks it. It begins every week unless the settings of the
daemon ([scrub]) say otherwise, goes on where it was after a restart, and reads at most 32 MiB/s.

Examples:
  millrace target scrub --all                          how far each one is
  millrace target scrub 3f0a51c2b7e94d68 --start --wait
  millrace target scrub 3f0a51c2b7e94d68 --rate 200MiB";

const DRAIN_HELP: &str = "\
Exit codes: 0 nothing would be lost, 1 something would, or nobody can tell. Files that a bucket has
as they are could not be read either until the target is back, but they are not lost. What would be
lost is saved by `millrace export`, where there is a bucket, or by copying the files elsewhere.

Example:
  millrace target drain-check 3f0a51c2b7e94d68";

const LOST_HELP: &str = "\
Without --yes nothing is changed: the command tells which files would be damaged. With it the other
targets take the target's placement groups over. What a bucket has is fetched again when it is read.
Files of which some lay on the target and in no bucket are `lost`: reading what is gone gives EIO,
the rest can be read and copied, and nothing can be written but a new content (O_TRUNC).
`millrace resolve PATH --keep bucket` puts the bucket's version in the place of such a file.

The target must be offline. If its disk turns up later it is not used again under this id. Called
again, the command lists what is still damaged.

Examples:
  millrace target lost 3f0a51c2b7e94d68
  millrace target lost 3f0a51c2b7e94d68 --yes";
