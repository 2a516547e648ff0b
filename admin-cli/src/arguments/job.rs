//! The commands that start a job.

use std::path::PathBuf;

use clap::{
    Args, ValueEnum,
    builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser},
};
use jiff::{Span, SpanRelativeTo};
use millrace_protocol::{
    admin::FileState,
    cluster::Bucket,
    job_options::{Destination, JobOptions, PRIORITY_MAX},
    selection::Selection,
};
use millrace_types::ByteLen;

use super::JobArgument;
use crate::{commands::link_add::check_url, exit::Misuse};

/// Arguments of the commands that start a job.
#[derive(Args, Debug)]
pub struct StartArguments {
    /// Stay until the job ends, with its progress; the job's result is the exit code
    #[arg(long)]
    pub wait: bool,
    /// Begin before jobs that wait with a lower one, from -10 to 10
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true,
        value_parser = clap::value_parser!(i8)
            .range(-i64::from(PRIORITY_MAX)..=i64::from(PRIORITY_MAX)))]
    pub priority: i8,
    /// Write down what becomes of each file, for `millrace job report`
    #[arg(long)]
    pub report: bool,
    /// A path inside a mount, or mr:/... for a path from the file system's root
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// Arguments of `job report`.
#[derive(Args, Debug)]
pub struct JobReportArguments {
    /// How files are listed
    #[arg(long, value_enum, default_value_t = ReportFormat::Jsonl)]
    pub format: ReportFormat,
    /// Write to a new file instead of the terminal; it appears when it is whole
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Have the server put it into a bucket instead: a key below the prefix of the job's link, or
    /// (root) the URL of an object in the bucket of a link; nothing is ever overwritten
    #[arg(long, value_name = "KEY|URL", conflicts_with = "out")]
    pub to: Option<String>,
    /// The job.
    #[command(flatten)]
    pub job: JobArgument,
}

/// How a report lists files.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReportFormat {
    /// A JSON object a line
    Jsonl,
    /// A table with a head
    Csv,
}

/// Arguments of the commands that start a job over some files of a tree.
#[derive(Args, Debug)]
pub struct SelectArguments {
    /// Path, and whether to wait.
    #[command(flatten)]
    pub start: StartArguments,
    /// Only files whose name matches, or with a `/` in GLOB whose path below PATH does (`**` passes
    /// directories); may be repeated
    #[arg(long, value_name = "GLOB", value_parser = NonEmptyStringValueParser::new())]
    pub include: Vec<String>,
    /// No files that match; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = NonEmptyStringValueParser::new())]
    pub exclude: Vec<String>,
    /// Only files of so many bytes at least
    #[arg(long, value_name = "SIZE")]
    pub larger: Option<ByteLen>,
    /// Only files of so many bytes at most
    #[arg(long, value_name = "SIZE")]
    pub smaller: Option<ByteLen>,
    /// Only files whose content has not changed for so long, such as 12h or 30d
    #[arg(long, value_name = "AGE", value_parser = seconds)]
    pub older: Option<u64>,
    /// Only files whose content has changed since
    #[arg(long, value_name = "AGE", value_parser = seconds)]
    pub newer: Option<u64>,
    /// Only files that nobody has read or changed for so long, as times of access tell: reads
    /// through mounts with noatime or ro leave none
    #[arg(long, value_name = "AGE", value_parser = seconds)]
    pub unused: Option<u64>,
    /// Only files that are in this state, or one of these, when the job comes to them (as
    /// `millrace state` tells); may be repeated
    #[arg(long, value_name = "STATE", value_delimiter = ',', value_parser = state_names())]
    pub state: Vec<FileState>,
    /// Work on the files that FILE names, one a line, and on all below its directories, instead of
    /// everything; - is standard input
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Names in FILE end in a zero byte instead of a line feed, as `find -print0` writes them
    #[arg(short = '0', long, requires = "files_from")]
    pub null: bool,
    /// Count what would be done, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Move so many bytes a second at most, such as 200MiB (hydrate and export)
    #[arg(long, value_name = "BYTES")]
    pub rate: Option<ByteLen>,
}

/// Arguments of `import`.
#[derive(Args, Debug)]
pub struct ImportArguments {
    /// Path, and whether to wait.
    #[command(flatten)]
    pub start: StartArguments,
    /// Only directories in or below which a path could match, such as 'train/**'; GLOB is for paths
    /// below PATH and has a `/`; may be repeated
    #[arg(long, value_name = "GLOB", value_parser = NonEmptyStringValueParser::new())]
    pub include: Vec<String>,
    /// No directories that match, nor what is below them; without a `/` GLOB is for their names;
    /// may be repeated
    #[arg(long, value_name = "GLOB", value_parser = NonEmptyStringValueParser::new())]
    pub exclude: Vec<String>,
    /// Count the directories that would be listed, as far as they are known, and ask no bucket
    #[arg(long)]
    pub dry_run: bool,
    /// What other jobs take.
    #[command(flatten)]
    pub of_files: OfFiles,
}

/// What chooses files, or moves their bytes, and so makes no import: taken to say that.
#[derive(Args, Debug)]
pub struct OfFiles {
    #[arg(long, hide = true)]
    larger: Option<String>,
    #[arg(long, hide = true)]
    smaller: Option<String>,
    #[arg(long, hide = true)]
    older: Option<String>,
    #[arg(long, hide = true)]
    newer: Option<String>,
    #[arg(long, hide = true)]
    unused: Option<String>,
    #[arg(long, hide = true)]
    state: Option<String>,
    #[arg(long, hide = true)]
    files_from: Option<String>,
    #[arg(long, hide = true)]
    rate: Option<String>,
}

/// Arguments of `export`.
#[derive(Args, Debug)]
pub struct ExportArguments {
    /// Path, which files, and whether to wait.
    #[command(flatten)]
    pub select: SelectArguments,
    /// PATH is a directory that counts as a whole: once every file of it is in the bucket, put
    /// .millrace-manifest.json there, which names them all with their versions
    #[arg(long, conflicts_with_all =
        ["include", "exclude", "larger", "smaller", "older", "newer", "unused", "state",
         "dry_run"])]
    pub atomic: bool,
    /// Put the files of PATH there instead: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,
    /// az://CONTAINER/PREFIX or file:///DIRECTORY; nothing here counts as exported by that
    #[arg(long, value_name = "URL", help_heading = "To another place")]
    pub to: Option<String>,
    /// The address of the S3 server, such as http://127.0.0.1:8333
    #[arg(long, value_name = "URL", requires = "to", help_heading = "To another place")]
    pub endpoint: Option<String>,
    /// The region that requests are signed for
    #[arg(long, requires = "to", help_heading = "To another place")]
    pub region: Option<String>,
    /// A section of the servers' credentials files, or `anonymous`
    #[arg(long, value_name = "SECTION", requires = "to", help_heading = "To another place")]
    pub credentials: Option<String>,
    /// Replace objects there that no such export made, too
    #[arg(long, requires = "to", help_heading = "To another place")]
    pub overwrite: bool,
}

impl ExportArguments {
    /// Where the files go, if not to the bucket of their link.
    ///
    /// # Errors
    /// For a URL that Millrace cannot reach.
    pub(crate) fn destination(&self) -> Result<Option<Destination>, Misuse> {
        let Some(url) = self.to.clone() else { return Ok(None) };
        check_url(&url)?;
        let (endpoint, region) = (self.endpoint.clone(), self.region.clone());
        let bucket = Bucket { url, endpoint, region, credentials: self.credentials.clone() };
        Ok(Some(Destination { bucket, overwrite: self.overwrite }))
    }
}

impl ImportArguments {
    /// Which directories.
    ///
    /// # Errors
    /// For what chooses files.
    pub(crate) fn selection(&self) -> Result<Selection, Misuse> {
        let Self { include, exclude, of_files, .. } = self;
        let named = [
            ("larger", &of_files.larger),
            ("smaller", &of_files.smaller),
            ("older", &of_files.older),
            ("newer", &of_files.newer),
            ("unused", &of_files.unused),
            ("state", &of_files.state),
            ("files-from", &of_files.files_from),
            ("rate", &of_files.rate),
        ];
        if let Some((name, _)) = named.into_iter().find(|(_, given)| given.is_some()) {
            return Err(Misuse(format!(
                "an import takes no --{name}: it lists directories, each as a whole, and moves \
                 none of the bytes of files; --include and --exclude choose directories"
            )));
        }
        let (include, exclude) = (include.clone(), exclude.clone());
        Ok(Selection { include, exclude, ..Selection::default() })
    }
}

impl StartArguments {
    /// How the job is done.
    pub(crate) fn options(&self) -> JobOptions {
        let (priority, report) = (self.priority, self.report);
        JobOptions { priority, report, ..JobOptions::default() }
    }
}

impl SelectArguments {
    /// How the job is done.
    pub(crate) fn options(&self) -> JobOptions {
        let bytes_per_second = self.rate.map(|rate| rate.0);
        JobOptions { bytes_per_second, ..self.start.options() }
    }

    /// Which files.
    pub(crate) fn selection(&self) -> Selection {
        Selection {
            include: self.include.clone(),
            exclude: self.exclude.clone(),
            size_min: self.larger.map(|size| size.0),
            size_max: self.smaller.map(|size| size.0),
            age_min: self.older,
            age_max: self.newer,
        }
    }

    /// The states, each once; none: any.
    pub(crate) fn states(&self) -> Vec<FileState> {
        let named = |state: &FileState| self.state.contains(state);
        FileState::ALL.into_iter().filter(named).collect()
    }
}

/// Reads the word for a state.
fn state_names() -> impl TypedValueParser<Value = FileState> {
    PossibleValuesParser::new(FileState::ALL.map(FileState::name)).try_map(|name| {
        let known = FileState::ALL.into_iter().find(|state| state.name() == name);
        known.ok_or_else(|| format!("{name} is no state"))
    })
}

/// Reads an age; a day has 24 hours.
pub(super) fn seconds(text: &str) -> Result<u64, String> {
    let wrong = |_| format!("{text} is no age: write it as 90s, 15m, 12h, 30d or 8w");
    let span: Span = text.parse().map_err(wrong)?;
    let age = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(wrong)?;
    u64::try_from(age.as_secs()).map_err(|_| format!("{text} lies in the future"))
}

macro_rules! job_help {
    ($what:literal, $examples:literal) => {
        concat!(
            $what,
            "\n\n\
The job runs in the cluster: it goes on when this command is interrupted, and after a restart of the
servers. With --wait the exit code is the job's result: 0 when every file is done, 1 otherwise.
Without, watch it with `millrace job show ID --wait`.

Examples:\n",
            $examples
        )
    };
}

pub(super) const REPORT_HELP: &str = "\
Each file has a path, an outcome (done, failed, would be done), its bytes, and of a failed one the
error. The bytes are a size: of what was fetched or here already, dropped or not here, sent, found;
0 where there was nothing to do. Of a directory in which keys of the bucket can be no names there is
a line as well: left out, and which they are.

Examples:
  millrace hydrate /mnt/data/train --report --wait
  millrace job report 7 | grep '\"failed\"'
  millrace job report 7 --format csv --out train.csv
  millrace job report 7 --to reports/7.jsonl";

pub(super) const HYDRATE_HELP: &str = job_help!(
    "Afterwards reads ask the bucket for nothing. What was changed here stays as it is.",
    "  millrace hydrate /mnt/data/train --wait
  millrace hydrate /mnt/data --include '*.safetensors' --dry-run
  millrace hydrate /mnt/data --state partial,released --dry-run
  millrace hydrate /mnt/data --rate 200MiB --priority -1
  millrace hydrate /mnt/data --files-from needed.txt
  millrace hydrate mr:/train --json        prints the job"
);

pub(super) const IMPORT_HELP: &str = job_help!(
    "Names, sizes and times are fetched, with --attributes objects also owners, modes and symbolic
links, and no content. Files that were not changed here follow their objects. Of a single file its
object is asked for. Patterns choose the directories that are listed, each as a whole; what they
leave out is listed when somebody looks there.",
    "  millrace import /mnt/data/train --wait
  millrace import /mnt/data --include 'train/**' --include 'val/**' --exclude old --wait
  millrace import /mnt/data --include 'train/**' --dry-run --wait
  millrace import mr:/train/cat.jpg"
);

pub(super) const EXPORT_HELP: &str = job_help!(
    "An object that was changed in the bucket meanwhile is never overwritten: the file is in
conflict then (`millrace resolve`). Files that are open for writing are left out and reported.",
    "  millrace export /mnt/data/run7 --wait && millrace release /mnt/data/run7
  millrace export /mnt/data --state dirty --newer 7d --wait
  millrace export /mnt/data/run7/step-100 --atomic --wait
  millrace export /mnt/data/run7 --to s3://checkpoints/run7 --credentials archive --wait
  millrace export mr:/out --json           prints the job"
);

pub(super) const RELEASE_HELP: &str = job_help!(
    "What was changed here and not exported stays.",
    "  millrace release /mnt/data/train --wait
  millrace release /mnt/data --unused 30d --larger 1GiB
  millrace release /mnt/data --state exported
  millrace release mr:/train"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_says_why_it_takes_nothing_that_chooses_files() {
        #[derive(clap::Parser)]
        struct Import {
            #[command(flatten)]
            import: ImportArguments,
        }
        let read = |options: &[&str]| {
            let line = [&["import", "mr:/p"], options].concat();
            <Import as clap::Parser>::try_parse_from(line).unwrap().import.selection()
        };
        let patterns = read(&["--include", "a/**", "--exclude", "old", "--dry-run"]).unwrap();
        assert_eq!((patterns.include, patterns.exclude), (vec!["a/**".into()], vec!["old".into()]));
        for name in ["larger", "smaller", "older", "newer", "unused", "state", "files-from", "rate"]
        {
            let wrong = read(&[&format!("--{name}"), "1"]).unwrap_err().to_string();
            assert!(wrong.contains(&format!("no --{name}:")) && wrong.contains("as a whole"));
        }
    }

    #[test]
    fn an_age_has_a_unit_and_days_have_24_hours() {
        assert_eq!(seconds("90s"), Ok(90));
        assert_eq!(seconds("12h"), Ok(12 * 3600));
        assert_eq!(seconds("30d"), Ok(30 * 86_400));
        assert_eq!(seconds("2w"), Ok(14 * 86_400));
        for wrong in ["", "30", "d", "yesterday", "-3d"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
