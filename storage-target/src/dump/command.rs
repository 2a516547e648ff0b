//! The command line of `millrace-target dump`.

use std::{
    io::{self, BufWriter, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use super::{DumpError, What, dump};
use crate::image::{Image, Lock};

/// Prints what lies on a target's disk: at first superblocks, roots and facts.
///
/// Reads only. On a target that a daemon serves the lines may contradict each other.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Exit codes: 0 printed, 2 no target, nothing to print, or wrong arguments.")]
pub struct Arguments {
    /// The target: its directory, block device or image file.
    pub path: PathBuf,
    #[command(flatten)]
    what: Choice,
}

/// At most one of these.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(multiple = false)]
struct Choice {
    /// What is known of one inode: sections, mark, findings.
    #[arg(long, value_name = "NUMBER")]
    inode: Option<u64>,
    /// Every entry of the index.
    #[arg(long)]
    all: bool,
    /// Free maps and summaries of the regions.
    #[arg(long)]
    regions: bool,
    /// Batches and records of the journal.
    #[arg(long)]
    journal: bool,
    /// One page, by what it is, and who uses it.
    #[arg(long, value_name = "NUMBER")]
    page: Option<u64>,
    /// One entry of the index, by its key in hexadecimal.
    #[arg(long, value_name = "HEX", value_parser = bytes_of)]
    key: Option<KeyBytes>,
}

/// A key, kept in one value so that clap does not take it for a list.
#[derive(Clone, Debug)]
struct KeyBytes(Vec<u8>);

impl Choice {
    fn what(&self) -> What {
        match self {
            Self { page: Some(page), .. } => What::Page(*page),
            Self { key: Some(KeyBytes(key)), .. } => What::Key(key.clone()),
            Self { inode: Some(inode), .. } => What::Entries { inode: Some(*inode) },
            Self { all: true, .. } => What::Entries { inode: None },
            Self { regions: true, .. } => What::Regions,
            Self { journal: true, .. } => What::Journal,
            _ => What::Overview,
        }
    }
}

fn bytes_of(text: &str) -> Result<KeyBytes, String> {
    let wrong = || format!("{text} is no key: 1 to 32 bytes, two hexadecimal digits each");
    let pairs = text.as_bytes().chunks(2).map(|pair| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    });
    let bytes = pairs.collect::<Option<Vec<u8>>>().ok_or_else(wrong)?;
    if (1..=32).contains(&bytes.len()) { Ok(KeyBytes(bytes)) } else { Err(wrong()) }
}

/// Runs the command.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    // Nobody can be told that standard error is gone.
    let say = |text: &str| drop(writeln!(io::stderr(), "millrace-target dump: {text}"));
    let image = match Image::open(&arguments.path, Lock::IfFree) {
        Ok(image) => image,
        Err(error) => {
            say(&error.to_string());
            return ExitCode::from(2);
        }
    };
    if image.is_in_use() {
        say("a daemon serves this target: what is printed may contradict itself");
    }
    let mut out = BufWriter::new(io::stdout().lock());
    let printed = dump(&image, &arguments.what.what(), &mut out);
    match printed.and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(DumpError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // What was printed before comes first.
            drop(out);
            say(&format!("{}: {error}", arguments.path.display()));
            ExitCode::from(2)
        }
    }
}
