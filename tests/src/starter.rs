//! Starts daemons for a test that has files of the mount open.
//!
//! A process that starts another closes the copies of its descriptors there, and each such close
//! waits for the servers: for the one that it is about to start, too. So the starting is done by a
//! process that was made before any file was opened.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{cluster::Cluster, program::binaries};

/// A process that runs `millrace dev up` when it is told to. Dropping this ends it.
#[derive(Debug)]
pub struct Starter {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Starter {
    /// Makes the process. No file of a mount may be open in this one.
    ///
    /// # Errors
    /// When there is no shell.
    pub fn new(cluster: &Cluster) -> Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", SCRIPT])
            .arg(binaries().join("millrace"))
            .arg(cluster.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting a shell")?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("stdout is piped")?);
        Ok(Self { child, orders, answers })
    }

    /// Begins to start whatever does not run. [`Self::finish`] tells how it went.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn begin(&mut self) -> Result<()> {
        let orders = self.orders.as_mut().context("it takes orders until it is dropped")?;
        Ok(orders.write_all(b"up\n")?)
    }

    /// Waits for the end of what was begun; whether everything serves now.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn finish(&mut self) -> Result<bool> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        ensure!(!answer.is_empty(), "the process that starts daemons has ended");
        Ok(answer == "0\n")
    }
}

impl Drop for Starter {
    fn drop(&mut self) {
        // The end of its input tells the shell to end.
        drop(self.orders.take());
        drop(self.child.wait());
    }
}

/// What `dev up` says of a daemon stands in its log, too. It is repeated while everything runs and
/// only the cluster is not healthy yet: a target's heartbeat may be late.
const SCRIPT: &str = "while read order; do
    tries=0
    while said=$(\"$0\" --dir \"$1\" dev up 2>/dev/null </dev/null); code=$?; [ $code -ne 0 ]; do
        tries=$((tries + 1))
        case $said in *stopped*) break;; *': degraded'* | *': unreachable'*) ;; *) break;; esac
        [ $tries -lt 200 ] || break
    done
    echo $code
done";
