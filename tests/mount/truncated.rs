//! What a program has written and not closed when another one truncates the file.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::FileExt as _,
};

use anyhow::{Result, ensure};
use millrace_tests::cluster::{Cluster, Wish};

/// More than a mount keeps to itself.
const BEFORE: usize = 24 << 20;

#[test]
fn what_was_written_before_a_truncation_does_not_come_back_in_holes() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let path = cluster.mount().join("file");
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    let mut old = File::create(&path)?;
    old.write_all(&vec![7; BEFORE])?;
    // The server has heard of no byte of it.
    let new = OpenOptions::new().write(true).truncate(true).open(&path)?;
    new.write_all_at(b"x", 2 * BEFORE as u64)?;
    new.sync_all()?;
    for path in [path, second.join("file")] {
        let all = fs::read(path)?;
        ensure!(all.len() == 2 * BEFORE + 1, "{} bytes", all.len());
        ensure!(all[..2 * BEFORE].iter().all(|byte| *byte == 0), "old bytes show");
    }
    drop(old);
    ensure!(fs::metadata(second.join("file"))?.len() == 2 * BEFORE as u64 + 1);
    Ok(())
}
