//! Many processes that make files at the same time, through one mount or several of one file
//! system: how many in all, how long the slowest of them waits, and what each file costs the
//! metadata server in requests.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    collections::BTreeMap,
    env,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

/// Has processes make files at the same time and measures them.
#[derive(Parser, Debug)]
struct Arguments {
    /// The same directory as each mount shows it. The processes take turns at them.
    #[arg(required = true, value_name = "DIRECTORY")]
    directories: Vec<PathBuf>,
    /// Processes in all.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processes: u32,
    /// Files that each makes and closes.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    files: u32,
    /// All make their files in one directory, which is listed meanwhile; otherwise each has one of
    /// its own.
    #[arg(long)]
    together: bool,
    /// Where the metadata server shows its metrics, to count requests.
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Makes files in this directory under this name: what each process is started with.
    #[arg(long, hide = true, value_name = "NAME")]
    work_as: Option<String>,
}

/// A process that makes files.
struct Worker {
    child: Child,
    output: BufReader<ChildStdout>,
}

/// What was seen of the directory while it grew.
#[derive(Default)]
struct Listed {
    times: u32,
    slowest: Duration,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(name) = &arguments.work_as {
        return work(&arguments.directories[0], name, arguments.files);
    }
    let folder = format!("crowd-{}", std::process::id());
    fs::create_dir(arguments.directories[0].join(&folder)).context("making a directory")?;
    let mut workers = Vec::new();
    for nth in 0..arguments.processes {
        let of_mount = &arguments.directories[nth as usize % arguments.directories.len()];
        let directory = match arguments.together {
            true => of_mount.join(&folder),
            false => of_mount.join(&folder).join(format!("of-{nth}")),
        };
        fs::create_dir_all(&directory)?;
        workers.push(Worker::start(&directory, nth, arguments.files)?);
    }
    let before = arguments.metrics.as_deref().map(requests).transpose()?;
    let started = Instant::now();
    workers.iter_mut().try_for_each(Worker::go)?;
    let place = arguments.directories.last().expect("one at least").join(&folder);
    let listed = if arguments.together { watch(&mut workers, &place)? } else { Listed::default() };
    let slowest: Vec<Duration> = workers.into_iter().map(Worker::end).collect::<Result<_>>()?;
    let took = started.elapsed();
    let after = arguments.metrics.as_deref().map(requests).transpose()?;

    let files = u64::from(arguments.processes) * u64::from(arguments.files);
    check(&arguments, &folder, files)?;
    let slowest = slowest.into_iter().max().unwrap_or_default();
    println!(
        "{} processes, {} mounts, {files} files: {:.0} /s, the slowest took {:.1} ms",
        arguments.processes,
        arguments.directories.len(),
        files as f64 / took.as_secs_f64(),
        slowest.as_secs_f64() * 1e3,
    );
    if arguments.together {
        let slowest = listed.slowest.as_secs_f64() * 1e3;
        println!("listed {} times meanwhile, the slowest took {slowest:.1} ms", listed.times);
    }
    if let (Some(before), Some(after)) = (before, after) {
        tell_requests(&before, &after, files);
    }
    Ok(fs::remove_dir_all(arguments.directories[0].join(&folder))?)
}

impl Worker {
    fn start(directory: &Path, nth: u32, files: u32) -> Result<Self> {
        let mut child = Command::new(env::current_exe()?)
            .arg(directory)
            .args(["--work-as", &format!("{nth:04}"), "--files", &files.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = BufReader::new(child.stdout.take().expect("it is piped"));
        ensure!(output.read_line(&mut String::new())? > 0, "a process has not begun");
        Ok(Self { child, output })
    }

    fn go(&mut self) -> Result<()> {
        // Its end is the sign.
        drop(self.child.stdin.take());
        Ok(())
    }

    fn is_over(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// The time of its slowest file.
    fn end(mut self) -> Result<Duration> {
        let mut text = String::new();
        self.output.read_to_string(&mut text)?;
        ensure!(self.child.wait()?.success(), "a process has failed");
        Ok(Duration::from_micros(text.trim().parse()?))
    }
}

/// What a worker does.
fn work(directory: &Path, name: &str, files: u32) -> Result<()> {
    println!("ready");
    let mut sign = Vec::new();
    std::io::stdin().read_to_end(&mut sign)?;
    let mut slowest = Duration::ZERO;
    for number in 0..files {
        let path = directory.join(format!("{name}-{number:07}"));
        let started = Instant::now();
        drop(File::create_new(path)?);
        slowest = slowest.max(started.elapsed());
    }
    println!("{}", slowest.as_micros());
    Ok(())
}

/// Lists the directory for as long as files are made there.
fn watch(workers: &mut [Worker], directory: &Path) -> Result<Listed> {
    let mut listed = Listed::default();
    let mut most = 0;
    while !workers.iter_mut().map(Worker::is_over).collect::<Result<Vec<_>>>()?.contains(&true) {
        let started = Instant::now();
        let count = fs::read_dir(directory)?.count();
        listed.slowest = listed.slowest.max(started.elapsed());
        listed.times += 1;
        ensure!(count >= most, "{count} names are listed after {most}");
        most = count;
    }
    Ok(listed)
}

/// Every mount shows every file.
fn check(arguments: &Arguments, folder: &str, files: u64) -> Result<()> {
    for directory in &arguments.directories {
        let mut found = 0;
        let mut folders = vec![directory.join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder)? {
                let entry = entry?;
                match entry.file_type()?.is_dir() {
                    true => folders.push(entry.path()),
                    false => found += 1,
                }
            }
        }
        ensure!(found == files, "{} shows {found} files of {files}", directory.display());
    }
    Ok(())
}

/// How many requests of each kind the server has answered.
fn requests(address: &str) -> Result<BTreeMap<String, u64>> {
    let mut stream = TcpStream::connect(address).context("asking for the metrics")?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let counts = text.lines().filter_map(|line| {
        let (labels, count) =
            line.split_once("_request_duration_seconds_count{")?.1.rsplit_once(' ')?;
        Some((labels.split('"').nth(1)?.to_owned(), count.parse().ok()?))
    });
    Ok(counts.collect())
}

fn tell_requests(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>, files: u64) {
    let mut all = 0;
    for (kind, count) in after {
        let more = count - before.get(kind).unwrap_or(&0);
        all += more;
        if more * 100 >= files {
            println!("  {kind}: {:.2} a file", more as f64 / files as f64);
        }
    }
    println!("requests to the metadata server: {:.2} a file", all as f64 / files as f64);
}
