//! `millrace metadata backup FILE`: has the server prepare a backup, fetches it, and keeps it.

use std::{io::Write as _, time::Duration};

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
    arguments::BackupArguments,
    connection::Connection,
    context::Context,
    exit::Exit,
    watch,
    whole_file::{self, Present},
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
    let present = if force { Present::Replaced } else { Present::Kept("--force replaces it") };
    let bar = watch::bytes_bar();
    let fetched = whole_file::write(&file, present, async |partial: &mut NamedTempFile| {
        let connection = context.cluster().await?;
        let backup = Random::system().number();
        let ready = prepare(&connection, backup, &bar).await?;
        fetch(&connection, backup, &ready, partial, &bar).await?;
        anyhow::Ok(ready)
    });
    let fetched = fetched.await;
    bar.finish_and_clear();
    let ready = fetched?;
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
