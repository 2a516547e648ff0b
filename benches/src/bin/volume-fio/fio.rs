//! What fio gets from the disk, on a file of its own beside the target.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// Runs fio on one file.
#[derive(Debug)]
pub(crate) struct Fio {
    file: PathBuf,
    mib: u64,
    seconds: u64,
}

impl Fio {
    pub(crate) fn new(directory: &Path, mib: u64, lasting: Duration) -> Self {
        Self { file: directory.join("fio.data"), mib, seconds: lasting.as_secs() }
    }

    /// MiB/s of writing the whole file, the last sync included, to space not written before, as the
    /// target's is.
    pub(crate) fn write_large(&self) -> Result<f64> {
        if self.file.exists() {
            std::fs::remove_file(&self.file).context("remove the file of fio")?;
        }
        self.run("write", &["--rw=write", "--bs=1M", "--iodepth=16", "--end_fsync=1"], "bw_bytes")
            .map(|bytes| bytes / f64::from(1 << 20))
    }

    /// MiB/s of reading it.
    pub(crate) fn read_large(&self) -> Result<f64> {
        self.run("read", &["--rw=read", "--bs=1M", "--iodepth=16"], "bw_bytes")
            .map(|bytes| bytes / f64::from(1 << 20))
    }

    /// 4 KiB reads per second.
    pub(crate) fn read_small(&self) -> Result<f64> {
        let seconds = format!("--runtime={}", self.seconds);
        let load = ["--rw=randread", "--bs=4k", "--iodepth=32", "--time_based", &seconds];
        self.run("read", &load, "iops")
    }

    /// 16 KiB writes with fdatasync per second, by one writer.
    pub(crate) fn durable_small(&self) -> Result<f64> {
        let seconds = format!("--runtime={}", self.seconds);
        let load = ["--rw=randwrite", "--bs=16k", "--iodepth=1", "--fdatasync=1", "--time_based"];
        self.run("write", &[&load[..], &[&seconds]].concat(), "iops")
    }

    /// The same by 32 writers at once, of whom all wait for one fdatasync after each of their
    /// writes: what a group commit could reach that keeps no records and computes no checksums.
    pub(crate) fn durable_together(&self) -> Result<f64> {
        let seconds = format!("--runtime={}", self.seconds);
        let load = ["--rw=randwrite", "--bs=16k", "--iodepth=32", "--iodepth_batch=32"];
        let durably = ["--fdatasync=32", "--time_based", &seconds];
        self.run("write", &[&load[..], &durably].concat(), "iops")
    }

    fn run(&self, direction: &str, load: &[&str], wanted: &str) -> Result<f64> {
        let mut fio = Command::new("fio");
        fio.args(["--name=bench", "--output-format=json", "--ioengine=io_uring", "--direct=1"]);
        fio.arg(format!("--filename={}", self.file.display()));
        fio.arg(format!("--size={}M", self.mib)).args(load);
        let said = fio.output().context("run fio (Debian package fio)")?;
        if !said.status.success() {
            bail!("fio failed: {}", String::from_utf8_lossy(&said.stderr));
        }
        let report: Value = serde_json::from_slice(&said.stdout).context("what fio printed")?;
        let job = &report["jobs"][0];
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let shares = (number(&job["usr_cpu"]) + number(&job["sys_cpu"])) / 100.0;
        let each = shares * number(&job["job_runtime"]) / number(&job[direction]["total_ios"]);
        println!("fio {}: {:.1} CPU-us for each", load.join(" "), each * 1e3);
        let figure = &report["jobs"][0][direction][wanted];
        figure.as_f64().with_context(|| format!("fio reports no {direction} {wanted}"))
    }
}
