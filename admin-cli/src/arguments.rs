//! What the command line may say. Types and help texts only; nothing here acts.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, builder::NonEmptyStringValueParser};
use millrace_protocol::metadata::INLINE_BYTES_MAX;
use millrace_types::{ByteLen, ChunkSize, JobId};

mod bucket;
mod dev;
mod fsck;
mod job;
mod link_options;
mod metadata;
mod pin;
mod resolve;
mod target;

pub use bucket::{
    ConflictsCommand, LinkCheckArguments, LinkLeftOutArguments, LinkListArguments,
    LinkUploadsArguments,
};
pub use dev::{CAPACITY_MIN, DevCommand, UpArguments};
pub use fsck::{FsckCommand, FsckShowArguments, FsckStartArguments};
pub use job::{
    ExportArguments, ImportArguments, JobReportArguments, OfFiles, ReportFormat, SelectArguments,
    StartArguments,
};
pub use link_options::{
    AttributesName, AutoExportName, FetchName, LinkOptionArguments, RefreshEvery, SwitchName,
};
pub use metadata::{BackupArguments, MetadataCommand, RestoreArguments};
pub use pin::PinArguments;
pub use resolve::{KeepName, ResolveArguments};
pub use target::{
    LostArguments, ScrubArguments, TargetAddArguments, TargetArgument, TargetCommand,
};

/// The operator's tool of Millrace, a parallel file system for machine learning.
#[derive(Parser, Debug)]
#[command(
    name = "millrace",
    version,
    max_term_width = 100,
    after_help = EXAMPLES,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What holds for every command.
    #[command(flatten)]
    pub globals: Globals,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that may stand before or after the subcommand.
#[derive(Args, Debug, Clone, Default)]
pub struct Globals {
    /// Settings that say which cluster [default: $MILLRACE_CONFIG, then /etc/millrace/admin.toml;
    /// for `mount` and `target add` see there]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub config: Option<PathBuf>,

    /// Directory of a cluster: its authority for `cluster`, everything for `dev`; elsewhere short
    /// for the settings in it
    #[arg(long, global = true, value_name = "D", help_heading = "Global options")]
    pub dir: Option<PathBuf>,

    /// Print JSON to standard output; fields are listed in docs/cli.md and stay
    #[arg(long, global = true, help_heading = "Global options")]
    pub json: bool,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a cluster's certificate authority and the certificates of its nodes
    #[command(subcommand)]
    Cluster(ClusterCommand),
    /// Run a whole cluster on this machine, to try Millrace or to develop with it
    #[command(subcommand)]
    Dev(DevCommand),
    /// Show health, servers, targets with their capacity, links and jobs
    #[command(after_help = STATUS_HELP)]
    Status,
    /// Mount the file system
    #[command(after_help = MOUNT_HELP)]
    Mount(MountArguments),
    /// Unmount, after writing back what is buffered
    #[command(visible_alias = "unmount")]
    Umount(UmountArguments),
    /// Show and set how files are spread over targets
    #[command(subcommand)]
    Stripe(StripeCommand),
    /// Bind directories to buckets
    #[command(subcommand)]
    Link(LinkCommand),
    /// Fetch a file or tree from its bucket before somebody reads it
    #[command(after_help = job::HYDRATE_HELP)]
    Hydrate(SelectArguments),
    /// List a linked tree again: new, changed and deleted objects are followed
    #[command(after_help = job::IMPORT_HELP)]
    Import(ImportArguments),
    /// Write changed files of a tree back to their bucket
    #[command(after_help = job::EXPORT_HELP)]
    Export(ExportArguments),
    /// Free the space of what the bucket has too; names stay and reads fetch again
    #[command(after_help = job::RELEASE_HELP)]
    Release(SelectArguments),
    /// Have targets keep a file or tree when they need room
    #[command(after_help = pin::PIN_HELP)]
    Pin(PinArguments),
    /// End a pin
    #[command(after_help = pin::UNPIN_HELP)]
    Unpin(PathArgument),
    /// Decide a conflict: which version of a file that changed here and in its bucket stays
    #[command(after_help = resolve::RESOLVE_HELP)]
    Resolve(ResolveArguments),
    /// List the files that changed here and in their buckets, and decide which version stays
    #[command(subcommand)]
    Conflicts(ConflictsCommand),
    /// Show how a file stands against its bucket, or count the files of a directory by state
    #[command(after_help = STATE_HELP)]
    State(PathArgument),
    /// List storage targets, check what is on them, tell whether one can go
    #[command(subcommand)]
    Target(TargetCommand),
    /// List, show and cancel jobs (import, hydrate, export, release)
    #[command(subcommand)]
    Job(JobCommand),
    /// Check the targets against the namespace: free orphans, report what files lack
    #[command(subcommand)]
    Fsck(FsckCommand),
    /// Back up all metadata into one file, and put it back
    #[command(subcommand)]
    Metadata(MetadataCommand),
}

/// `millrace cluster ...`
#[derive(Subcommand, Debug)]
pub enum ClusterCommand {
    /// Make the cluster's authority, its id and the first admin identity in --dir D
    #[command(after_help = INIT_HELP)]
    Init,
    /// Issue the identity of one node: certificate, key and authority in one file
    #[command(after_help = INVITE_HELP)]
    Invite(InviteArguments),
}

/// Arguments of `cluster invite`.
#[derive(Args, Debug)]
pub struct InviteArguments {
    /// What the holder may be
    #[arg(long, value_enum)]
    pub role: RoleName,
    /// For a client: the only directory that it sees
    #[arg(long, value_name = "PATH")]
    pub subtree: Option<String>,
    /// For a client: treat its root user as nobody
    #[arg(long)]
    pub squash_root: bool,
    /// Where to write the bundle (mode 0600); never overwritten
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

/// The roles of a certificate.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleName {
    /// The metadata server
    Metadata,
    /// A storage target daemon
    Target,
    /// A host with mounts
    Client,
    /// An operator
    Admin,
}

/// Arguments of `mount`.
#[derive(Args, Debug)]
pub struct MountArguments {
    /// Comma-separated mount options
    #[arg(short = 'o', value_name = "OPTIONS", action = clap::ArgAction::Append)]
    pub options: Vec<String>,
    /// What to mount, as `HOST[:PORT][,HOST...]:/PATH` [default: the configured cluster]
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// Check the arguments with their options, mount nothing
    #[arg(short = 'f', long)]
    pub fake: bool,
    /// An existing directory
    pub mountpoint: PathBuf,
    /// Whether nothing is said when it is done: mount(8) calls, which says nothing either.
    #[arg(skip)]
    pub quiet: bool,
}

/// Arguments of `umount`.
#[derive(Args, Debug)]
pub struct UmountArguments {
    /// Detach at once although files are open; they keep working until they are closed
    #[arg(long)]
    pub lazy: bool,
    /// Where it is mounted
    pub mountpoint: PathBuf,
}

/// A file or directory.
#[derive(Args, Debug)]
pub struct PathArgument {
    /// A path inside a mount, or mr:/... for a path from the file system's root
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `millrace stripe ...`
#[derive(Subcommand, Debug)]
pub enum StripeCommand {
    /// Set the layout that new files below a directory get; existing files stay as they are
    #[command(after_help = STRIPE_HELP)]
    Set(StripeSetArguments),
    /// Show a directory's defaults, or a file's layout with the targets of each chunk
    Show(PathArgument),
}

/// Arguments of `stripe set`.
#[derive(Args, Debug)]
pub struct StripeSetArguments {
    /// What to set.
    #[command(flatten)]
    pub layout: LayoutArguments,
    /// A directory inside a mount, or mr:/...
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Parts of a layout; at least one.
#[derive(Args, Debug)]
#[group(required = true, multiple = true)]
pub struct LayoutArguments {
    /// Bytes of a chunk: a power of two from 64KiB to 64MiB
    #[arg(long, value_name = "S", value_parser = chunk_size)]
    pub chunk_size: Option<ChunkSize>,
    /// Over how many placement groups a file is spread; -1 means all of the pool
    #[arg(long, value_name = "N", value_parser = stripe_count, allow_negative_numbers = true)]
    pub count: Option<i32>,
    /// The pool that new files are placed in
    #[arg(long, value_name = "P", value_parser = NonEmptyStringValueParser::new())]
    pub pool: Option<String>,
    /// Files up to this many bytes may live in their inode, at the metadata server: up to 16KiB; 0
    /// for none
    #[arg(long, value_name = "S", value_parser = inline_bytes)]
    pub inline: Option<u32>,
}

/// `millrace link ...`
#[derive(Subcommand, Debug)]
pub enum LinkCommand {
    /// Bind a directory to a bucket and prefix; its objects appear as files
    #[command(after_help = LINK_HELP)]
    Add(LinkAddArguments),
    /// List the links
    List(LinkListArguments),
    /// Have every host try the bucket of a link, and tell in words what is wrong
    #[command(after_help = bucket::LINK_CHECK_HELP)]
    Check(LinkCheckArguments),
    /// Tell which keys of a bucket can be no names here, and why
    #[command(after_help = bucket::LINK_LEFT_OUT_HELP)]
    LeftOut(LinkLeftOutArguments),
    /// Set how a link follows its bucket
    #[command(after_help = LINK_SET_HELP)]
    Set(LinkSetArguments),
    /// List uploads below a link's prefix that were begun and not ended, and abort old ones
    #[command(after_help = bucket::LINK_UPLOADS_HELP)]
    Uploads(LinkUploadsArguments),
    /// Unbind a directory; the bucket is not touched
    Remove(LinkRemoveArguments),
}

/// Arguments of `link add`.
#[derive(Args, Debug)]
pub struct LinkAddArguments {
    /// s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory
    #[arg(value_name = "URL")]
    pub url: String,
    /// The directory, made if it is missing
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
    /// Another endpoint than the cloud's own, such as http://127.0.0.1:8333
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// The bucket's region (s3:// only)
    #[arg(long, value_name = "R")]
    pub region: Option<String>,
    /// Section of the servers' credentials file, or `anonymous` for requests that are not signed
    /// [default: the servers' environment]
    #[arg(long, value_name = "NAME")]
    pub credentials: Option<String>,
    /// What may be changed, and whether it goes back
    #[arg(long, value_enum, default_value_t = LinkModeName::ReadOnly)]
    pub mode: LinkModeName,
    /// How it follows its bucket.
    #[command(flatten)]
    pub options: LinkOptionArguments,
}

/// Arguments of `link set`.
#[derive(Args, Debug)]
pub struct LinkSetArguments {
    /// How it follows its bucket.
    #[command(flatten)]
    pub options: LinkOptionArguments,
    /// The linked directory
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// The modes of a link.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkModeName {
    /// Files can only be read
    ReadOnly,
    /// Files can be changed; nothing goes back to the bucket
    Import,
    /// Files can be changed and exported
    ImportExport,
}

/// Arguments of `link remove`.
#[derive(Args, Debug)]
pub struct LinkRemoveArguments {
    /// Also when files were changed or renamed, and not exported: that is lost
    #[arg(long)]
    pub discard: bool,
    /// The linked directory
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `millrace job ...`
#[derive(Subcommand, Debug)]
pub enum JobCommand {
    /// List jobs, the newest first
    List,
    /// Show one job with its failures
    Show(JobDetailArguments),
    /// Start a job once more that has ended; files that are done are passed over
    Retry(JobShowArguments),
    /// Ask a job to stop; what it has done stays done
    Cancel(JobArgument),
    /// Print what became of each file, of a job that was started with --report and has ended
    #[command(after_help = job::REPORT_HELP)]
    Report(JobReportArguments),
}

/// Arguments of `job show`.
#[derive(Args, Debug)]
pub struct JobDetailArguments {
    /// With how far each directory right below its own is
    #[arg(long)]
    pub directories: bool,
    /// Do not watch a running job for a second to tell its rate and the time left
    #[arg(long, conflicts_with = "wait")]
    pub at_once: bool,
    /// The job, and whether to stay.
    #[command(flatten)]
    pub show: JobShowArguments,
}

/// Arguments of `job show` and `job retry`.
#[derive(Args, Debug)]
pub struct JobShowArguments {
    /// Stay until the job ends, with its progress; the job's result is the exit code
    #[arg(long)]
    pub wait: bool,
    /// The job.
    #[command(flatten)]
    pub job: JobArgument,
}

/// A job.
#[derive(Args, Debug)]
pub struct JobArgument {
    /// The job's number, as `job list` shows it
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
}

fn chunk_size(text: &str) -> Result<ChunkSize, String> {
    let bytes: ByteLen = text.parse().map_err(|error| format!("{error}"))?;
    ChunkSize::new(bytes.0).map_err(|_| "use a power of two from 64KiB to 64MiB".to_owned())
}

fn inline_bytes(text: &str) -> Result<u32, String> {
    let bytes: ByteLen = text.parse().map_err(|error| format!("{error}"))?;
    let bytes = u32::try_from(bytes.0).ok().filter(|&bytes| bytes <= INLINE_BYTES_MAX);
    bytes.ok_or_else(|| "use a size up to 16KiB, or 0 for none".to_owned())
}

fn stripe_count(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(count) if count == -1 || count > 0 => Ok(count),
        _ => Err("use a number of groups from 1 on, or -1 for all".to_owned()),
    }
}

fn job_id(text: &str) -> Result<JobId, String> {
    let digits = text.strip_prefix('j').unwrap_or(text);
    digits
        .parse()
        .map(JobId)
        .map_err(|_| "use the number that `millrace job list` shows".to_owned())
}

const EXAMPLES: &str = "\
Examples:
  millrace dev up --dir ~/mr --targets 2 --mount ~/mnt     a cluster on this machine
  millrace --dir ~/mr link add s3://bucket/train ~/mnt/train
  millrace state ~/mnt/train                               what is here, what is in the bucket
  millrace --dir ~/mr link add s3://bucket/run ~/mnt/out --mode import-export
  millrace export ~/mnt/out --wait                         write results back
  millrace --dir ~/mr status --json
  millrace dev down --dir ~/mr

Exit codes: 0 done, 1 failed, 2 wrong use, 130 Ctrl-C ended a wait, and what was waited for goes on;
`status`: 0 healthy, 1 degraded, 2 unreachable.
Paths: a path inside a mount, or mr:/... for a path from the file system's root. Inside a mount,
stripe, state, resolve, pin, unpin, import, hydrate, release, export and link left-out need no
identity: the mount acts for the caller.";

const STATUS_HELP: &str = "\
Exit codes: 0 healthy, 1 degraded (the problems are listed), 2 unreachable.

Examples:
  millrace status                          the cluster of /etc/millrace/admin.toml
  millrace --dir ~/mr status --json        a dev cluster, for a program";

const MOUNT_HELP: &str = "\
Options (-o), separated by commas; those of fstab(5), such as _netdev and nofail, are left alone:
  ro, rw                      refuse changes, or not
  identity=FILE               the client's identity
  config=FILE, log=FILE       settings and log of this mount
  path=/DIR                   the directory of the file system to show
  hard, soft, timeout=10m     wait for ever for absent servers, or fail with EIO after a time
  local_locks, nolocal_locks  keep flock and fcntl locks within this host, or not
  acl, noacl                  keep and check POSIX access control lists, or not
  delegations, nodelegations  make files without asking where no other mount is, or not
  security_xattrs, nosecurity_xattrs  offer attributes security.*, as of setcap, or not
  relatime, noatime, diratime, nodiratime  have reading move times of access, or not (directories)
  allow_other, noallow_other  let other users in; root's mounts do
  suid, nosuid, dev, nodev, exec, noexec  as for every file system
  memory=256MiB               for read-ahead and write-behind of all files together
  channel=auto                how requests come from the kernel: auto, dev or uring

The command returns when the file system is mounted; the daemon then runs in the background. Its
settings are those of --config, D/client.toml of --dir D, or /etc/millrace/client-fuse.toml;
MILLRACE_CONFIG names an operator's, and none of a mount's.

Examples:
  millrace --config client.toml mount /mnt/data
  millrace mount -o ro,identity=/etc/millrace/client.pem --source meta-1:/train /mnt/train
  mount -t millrace meta-1:/train /mnt/train -o ro,identity=/etc/millrace/client.pem

In /etc/fstab:
  meta-1:/train  /mnt/train  millrace  ro,identity=/etc/millrace/client.pem,_netdev  0 0";

/// The help of a command that starts a job: what it does besides, and examples.
const STATE_HELP: &str = "\
released: only the name is here; partial: some bytes are; hydrated: all are; dirty: differs from the
bucket; exported: written here and in the bucket since; conflict: changed on both sides; lost: part
of it lay on a target that was given up (`millrace target lost`), and nowhere else.

Examples:
  millrace state /mnt/data/train/cat.jpg
  millrace state mr:/train --json";

const INIT_HELP: &str = "\
Writes D/authority.pem (keep it safe and off the servers: it can make any identity) and
D/admin.pem (an operator's identity). Fails when D has a cluster already.

Example:
  millrace cluster init --dir ./cluster";

const INVITE_HELP: &str = "\
Copy the file to its node and nowhere else: whoever holds it is that node.

Examples:
  millrace cluster invite --dir ./cluster --role metadata --out meta-1.pem
  millrace cluster invite --dir ./cluster --role client --subtree /train --out gpu.pem";

const LINK_SET_HELP: &str = "\
A link is made with --refresh 0, and with --attributes objects if its mode is import-export,
otherwise listing; and with --fetch ahead. What they cost in requests is in docs/operations.md.

Examples:
  millrace link set mr:/train --refresh 300
  millrace link set mr:/hub --attributes objects       symbolic links and modes come back
  millrace link set mr:/runs --auto-export 30          checkpoints go out 30 s after their close
  millrace link set mr:/runs --auto-export off
  millrace link set mr:/hub --fetch asked              nothing that nobody asked for";

const STRIPE_HELP: &str = "\
Examples:
  millrace stripe set --chunk-size 1MiB /mnt/data/small-records
  millrace stripe set --count -1 /mnt/data/checkpoints      over every group of the pool
  millrace stripe set --inline 16KiB /mnt/data/labels       small files live in their inodes";

const LINK_HELP: &str = "\
Every server that will need the bucket is asked to reach it first; when one cannot, the command
fails and names it. Keys are never sent: --credentials names a section of the servers' own file.

Examples:
  millrace link add s3://datasets/imagenet mr:/imagenet --region eu-central-1
  millrace link add s3://runs/7 /mnt/data/run7 --mode import-export --credentials team-a
  millrace link add s3://train mr:/train --endpoint http://127.0.0.1:8333 --region us-east-1
  millrace link add gs://datasets/imagenet mr:/imagenet --credentials google-reader";

#[cfg(test)]
mod tests;
