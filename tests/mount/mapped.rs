//! Bytes written through a mapping, as another mount shows them while the file stays mapped.

use std::{
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    os::unix::fs::FileExt as _,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use millrace_tests::cluster::{Cluster, Wish};

const LEN: usize = 300_000;

/// Maps a file, and for each line writes a text at a place and syncs the mapping, which stays.
const PROGRAM: &str = "import mmap, os, sys
view = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
print('mapped', flush=True)
for line in sys.stdin:
    at, text = line.split()
    view[int(at):int(at) + len(text)] = text.encode()
    view.flush()
    print('synced', flush=True)
";

#[test]
fn what_is_synced_through_a_mapping_another_mount_sees_while_it_stays_mapped() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let (one, two) = (cluster.mount().join("file"), second.join("file"));
    let mut expected = vec![b'-'; LEN];
    fs::write(&one, &expected)?;
    // Stays open, with pages of before in the kernel's cache.
    let mut older = File::open(&two)?;
    older.read_exact(&mut vec![0; LEN])?;

    let mut program = Command::new("python3")
        .args(["-c", PROGRAM])
        .arg(&one)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut orders = program.stdin.take().context("it is piped")?;
    let mut answers = BufReader::new(program.stdout.take().context("it is piped")?).lines();
    let mut answer = || -> Result<String> { Ok(answers.next().context("it has ended")??) };
    ensure!(answer()? == "mapped");
    // The same page again, the next one, and the last bytes.
    for (at, text) in [(10, "first"), (12, "second"), (5000, "third"), (LEN - 6, "fourth")] {
        writeln!(orders, "{at} {text}")?;
        ensure!(answer()? == "synced", "{text}");
        expected[at..at + text.len()].copy_from_slice(text.as_bytes());
        ensure!(fs::read(&two)? == expected, "{text}, by an open after it");
        let mut seen = vec![0; text.len()];
        older.read_exact_at(&mut seen, u64::try_from(at)?)?;
        ensure!(seen == text.as_bytes(), "{text}, by an older one after another's open");
        ensure!(program.try_wait()?.is_none(), "the file is mapped still");
    }
    drop(orders);
    ensure!(program.wait()?.success(), "the program has failed");
    ensure!(fs::read(&one)? == expected && fs::read(&two)? == expected);
    Ok(())
}
