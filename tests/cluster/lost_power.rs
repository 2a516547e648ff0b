//! The host of the metadata server loses power, and with it the end of the command log.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use millrace_metadata_server::{
    engine::marker::Marker,
    files::MachineFiles,
    log::{record, segment},
};
use millrace_tests::cluster::{Cluster, Wish};
use millrace_types::ClusterId;

/// Makes something durable, and more that is not; and syncs all of it when it is told to.
const PROGRAM: &str = "import errno, os, sys
folder = sys.argv[1]
directory = os.open(folder, os.O_RDONLY)
file = os.open(folder + '/file', os.O_RDWR | os.O_CREAT, 0o644)
assert os.write(file, b'x' * 100000) == 100000
os.fsync(file)
os.close(os.open(folder + '/temporary', os.O_WRONLY | os.O_CREAT, 0o644))
os.fsync(directory)
os.rename(folder + '/temporary', folder + '/first-of-what-is-lost')
assert os.write(file, b'y' * 100000) == 100000
os.close(os.dup(file))
print('changed', flush=True)
sys.stdin.readline()
def sync(descriptor):
    try:
        os.fsync(descriptor)
        return 'synced'
    except OSError as error:
        return errno.errorcode[error.errno]
print(sync(directory), sync(directory), sync(file), sync(file), flush=True)
";

/// Takes from the log of a server that does not run the first record that has these bytes in it,
/// with all behind it, and leaves it as it is found after another boot.
fn lose_power(data: &Path, bytes: &[u8]) -> Result<()> {
    let mut lost = false;
    for (first, path) in segment::list(&MachineFiles, &data.join("log"))? {
        if lost {
            fs::remove_file(path)?;
            continue;
        }
        let found = fs::read(&path)?;
        let cluster = found.get(16..32).context("a head names the cluster")?;
        let head = segment::Head::read(&found, first, ClusterId(cluster.try_into()?))?;
        let mut at = head.len;
        while let Ok((_, body)) = record::decode(&found[at..], head.secret) {
            lost = body.windows(bytes.len()).any(|window| window == bytes);
            if lost {
                fs::File::options().write(true).open(&path)?.set_len(u64::try_from(at)?)?;
                break;
            }
            at += record::HEADER_LEN + body.len();
        }
    }
    ensure!(lost, "the log has no such record");
    let marker = Marker::load(&MachineFiles, data)?.context("it was started")?;
    Ok(Marker { boot: "another boot".to_owned(), ..marker }.save(&MachineFiles, data)?)
}

#[test]
fn who_syncs_what_a_loss_of_power_took_hears_of_it_once() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let folder = cluster.mount().join("folder");
    fs::create_dir(&folder)?;
    let mut program = Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(&folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut input = program.stdin.take().context("it is piped")?;
    let mut output = BufReader::new(program.stdout.take().context("it is piped")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line == "changed\n", "it said {line:?}");

    cluster.daemon("metadata")?.kill()?;
    lose_power(&cluster.dir().join("metadata/data"), b"first-of-what-is-lost")?;
    // The targets have heard of more than the log has, of which it tells.
    if let Err(failure) = cluster.up_once() {
        ensure!(failure.to_string().contains("degraded"), "{failure}");
    }
    writeln!(input)?;
    line.clear();
    output.read_line(&mut line)?;
    ensure!(line == "EIO synced EIO synced\n", "it said {line:?}");
    ensure!(program.wait()?.success(), "it ended with a failure");

    // The name is gone; what was written is at the targets, which were told of again.
    ensure!(!folder.join("first-of-what-is-lost").exists() && folder.join("temporary").exists());
    let expected = [vec![b'x'; 100_000], vec![b'y'; 100_000]].concat();
    ensure!(fs::read(folder.join("file"))? == expected, "the file is another one");
    // Changes that come after that are as durable as ever.
    fs::write(folder.join("later"), "later")?;
    fs::File::open(folder.join("later"))?.sync_all()?;
    fs::File::open(&folder)?.sync_all()?;
    Ok(())
}
