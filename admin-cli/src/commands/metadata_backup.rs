//! `millrace metadata backup FILE`: has the server prepare a backup, fetches it, and keeps it.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail, ensure};
use indicatif::ProgressBar;
use millrace_protocol::backup::{
    BACKUP_PIECE_MAX, BackupReply, BackupState, PrepareBackup, ReadBackup,
};
use millrace_runtime::Random;
use millrace_types::{ByteLen, Crc32c};
use serde::Serialize;
use tempfile::NamedTempFile;

use crate::{
    arguments::BackupArguments, connection::Connection, context::Context, exit::Exit, named_file,
    watch,
};

/// Between two looks at a backup that is being prepared.
const LOOK: Duration = Duration::from_millis(200);

/// What was written.
#[derive(Serialize, Debug)]
struct BackupReport {
    file: String,
    /// The last command of the log that it shows.
    index: u64,
    size_bytes: u64,
    /// crc32c of the whole file, hexadecimal.
    checksum: String,
}

/// Fetches a backup; FILE appears when it is whole and on stable storage.
pub(crate) async fn run(context: &Context, arguments: BackupArguments) -> anyhow::Result<Exit> {
    let BackupArguments { file, force } = arguments;
    check(&file, force)?;
    let parent = parent_of(&file);
    let partial = NamedTempFile::new_in(&parent)
        .with_context(|| format!("cannot write to {}", parent.display()))?;
    let connection = context.cluster().await?;
    let backup = Random::system().number();
    let bar = watch::bytes_bar();
    let ready = prepare(&connection, backup, &bar).await?;
    fetch(&connection, backup, &ready, &partial, &bar).await?;
    bar.finish_and_clear();
    keep(partial, &file, &parent, force)?;
    let report = BackupReport {
        file: file.display().to_string(),
        index: ready.index.0,
        size_bytes: ready.size.0,
        checksum: format!("{:08x}", ready.checksum.0),
    };
    context.output.result(&report, || {
        format!("{}: {}, up to command {}", report.file, ready.size, report.index)
    })?;
    Ok(Exit::Done)
}

/// Refuses a place where a backup may not go.
fn check(file: &Path, force: bool) -> anyhow::Result<()> {
    let is_there = named_file::is_there(file)?;
    ensure!(force || !is_there, "{} exists; --force replaces it", file.display());
    Ok(())
}

/// The directory of a file that may be named without one.
fn parent_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Waits until the server has all of it on its disk.
async fn prepare(
    connection: &Connection,
    backup: u64,
    bar: &ProgressBar,
) -> anyhow::Result<BackupReply> {
    loop {
        let reply = connection.request(&PrepareBackup { backup }).await?;
        bar.set_message(format!("the server writes: {}", reply.size));
        match reply.state {
            BackupState::Ready => return Ok(reply),
            BackupState::Failed(failure) => bail!("the server cannot make a backup: {failure}"),
            BackupState::Preparing => tokio::time::sleep(LOOK).await,
        }
    }
}

/// Copies every byte, and checks them.
async fn fetch(
    connection: &Connection,
    backup: u64,
    ready: &BackupReply,
    partial: &NamedTempFile,
    bar: &ProgressBar,
) -> anyhow::Result<()> {
    let (mut offset, mut checksum) = (0, Crc32c::EMPTY);
    while offset < ready.size.0 {
        let request = ReadBackup { backup, offset, len: BACKUP_PIECE_MAX };
        let (piece, body) = connection.fetch(&request).await?;
        let whole = body.checksum() == piece.checksum && !body.is_empty();
        ensure!(whole, "the backup was damaged on its way; try again");
        for bytes in body.pieces() {
            let written = partial.as_file().write_all(bytes);
            written.with_context(|| format!("cannot write {}", partial.path().display()))?;
        }
        checksum = checksum.combine(piece.checksum, body.len());
        offset += body.len() as u64;
        bar.set_message(format!("{} of {}", ByteLen(offset), ready.size));
    }
    ensure!(
        (offset, checksum) == (ready.size.0, ready.checksum),
        "the backup was damaged on the server's disk; try again"
    );
    Ok(())
}

/// Gives the file its name, durably.
fn keep(partial: NamedTempFile, file: &Path, parent: &Path, force: bool) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", file.display());
    partial.as_file().sync_all().with_context(failed)?;
    // Fetching may have taken long.
    check(file, force)?;
    let kept = if force { partial.persist(file) } else { partial.persist_noclobber(file) };
    kept.map_err(|error| error.error).with_context(failed)?;
    std::fs::File::open(parent).and_then(|dir| dir.sync_all()).with_context(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_replaces_a_regular_file_alone_and_only_when_told_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("backup");
        let partial = || NamedTempFile::new_in(directory.path()).unwrap();
        keep(partial(), &file, directory.path(), false).unwrap();
        let again = keep(partial(), &file, directory.path(), false).unwrap_err().to_string();
        assert!(again.contains("--force"), "{again}");
        keep(partial(), &file, directory.path(), true).unwrap();
        for force in [false, true] {
            let refused = check(Path::new("/dev/null"), force).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(keep(partial(), &link, directory.path(), true).is_err());
        assert!(link.is_symlink());
    }
}
