//! The command line of `millrace-target verify`.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::{Mutex, PoisonError},
};

use indicatif::{ProgressBar, ProgressStyle};

use super::{
    Options, Summary,
    report::{Observer, Remark, Severity},
    this_boot, verify,
};
use crate::image::{Image, Lock, PAGE};

/// Checks everything on a target's disk, and says in words what is wrong.
///
/// Reads only. The daemon must not be running on it.
#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "Exit codes: 0 sound, 1 damaged, 2 no target, in use, or wrong arguments.")]
pub struct Arguments {
    /// The target: its directory, block device or image file.
    pub path: PathBuf,
    /// Leave the pages of data out; only what says where they are is checked.
    #[arg(long)]
    pub quick: bool,
    /// JSON on standard output.
    #[arg(long)]
    pub json: bool,
}

/// Runs the command.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let image = match Image::open(&arguments.path, Lock::Shared) {
        Ok(image) => image,
        Err(error) => return refuse(&error.to_string()),
    };
    let options = Options { quick: arguments.quick, boot: this_boot(&image).ok() };
    let screen = Screen::new(arguments.json);
    let summary = match verify(&image, &options, &screen) {
        Ok(summary) => summary,
        Err(error) => return refuse(&format!("{}: {error}", arguments.path.display())),
    };
    match screen.finish(&summary, arguments.quick) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => refuse(&error.to_string()),
        _ if summary.is_sound() => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Says why nothing was checked.
fn refuse(reason: &str) -> ExitCode {
    // Nobody can be told that standard error is gone.
    drop(writeln!(io::stderr(), "millrace-target verify: {reason}"));
    ExitCode::from(2)
}

/// Where remarks and progress go.
struct Screen {
    json: bool,
    bar: ProgressBar,
    /// Remarks printed, and why no more can be.
    printed: Mutex<io::Result<u64>>,
}

impl Screen {
    fn new(json: bool) -> Self {
        // Hidden by itself where standard error is no terminal.
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes} {eta}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { json, bar, printed: Mutex::new(Ok(0)) }
    }

    fn print(&self, remark: &Remark) {
        let mut printed = self.printed.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(count) = *printed else { return };
        let line = || -> io::Result<()> {
            let mut out = io::stdout().lock();
            if self.json {
                let before = if count == 0 { "{\"remarks\": [\n" } else { ",\n" };
                write!(out, "{before}{}", serde_json::to_string(remark)?)
            } else {
                writeln!(out, "{}", in_words(remark))
            }
        };
        *printed = self.bar.suspend(line).map(|()| count + 1);
    }

    fn finish(self, summary: &Summary, quick: bool) -> io::Result<()> {
        self.bar.finish_and_clear();
        let count = self.printed.into_inner().unwrap_or_else(PoisonError::into_inner)?;
        let mut out = io::stdout().lock();
        if self.json {
            let before = if count == 0 { "{\"remarks\": [" } else { "\n" };
            let summary = serde_json::to_string(summary)?;
            writeln!(out, "{before}],\n\"summary\": {summary}}}")?;
        } else {
            writeln!(out, "{}", summary_in_words(summary, quick))?;
        }
        out.flush()
    }
}

impl Observer for Screen {
    fn remark(&self, remark: &Remark) {
        self.print(remark);
    }

    fn progress(&self, checked: u64, expected: u64) {
        self.bar.set_length(expected.max(checked) * PAGE as u64);
        self.bar.set_position(checked * PAGE as u64);
    }
}

fn in_words(remark: &Remark) -> String {
    let severity = match remark.severity {
        Severity::Damage => "damage",
        Severity::Note => "note",
    };
    let page = remark.page.map_or_else(String::new, |page| format!("page {page}: "));
    format!("{severity}: {page}{}. {}", remark.text, capitalised(remark.remedy))
}

fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().map(|letter| letter.to_uppercase().to_string());
    format!("{}{}.", first.unwrap_or_default(), letters.as_str())
}

fn summary_in_words(summary: &Summary, quick: bool) -> String {
    let Summary { target, cluster, generation, through, .. } = summary;
    let Summary { newest_record, nodes, entries, sections, .. } = summary;
    let Summary { clean_pages, written_pages, checked_pages, damages, notes, .. } = summary;
    let ended =
        if summary.ended_in_order { "it ended in order" } else { "it did not end in order" };
    let data = match quick {
        true => "the data was not read".to_owned(),
        false => {
            format!("{checked_pages} pages of data match their checksums, or are listed above")
        }
    };
    let verdict = match (damages, notes) {
        (0, 0) => "sound: nothing is wrong".to_owned(),
        (0, notes) => format!("sound: nothing is wrong; {}", counted(*notes, "note")),
        (damages, 0) => format!("damaged: {}", counted(*damages, "damage")),
        (damages, notes) => {
            format!("damaged: {}, {}", counted(*damages, "damage"), counted(*notes, "note"))
        }
    };
    format!(
        "target {target} of cluster {cluster}: checkpoint {generation} with the records up to \
         {through}, journal up to {newest_record}, {ended}\n\
         {nodes} index nodes, {entries} entries, {sections} sections with {clean_pages} clean and \
         {written_pages} written pages; {data}\n\
         {verdict}"
    )
}

fn counted(count: u64, thing: &str) -> String {
    if count == 1 { format!("1 {thing}") } else { format!("{count} {thing}s") }
}
