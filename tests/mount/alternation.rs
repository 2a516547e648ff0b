//! Two mounts that change one file in turn: `tests/e2e/alternate.py`, which has the model.
//!
//! `MILLRACE_TEST_SEED` chooses the seed, `MILLRACE_TEST_LENGTH` makes it so many times as long.

use std::{fs, process::Command, time::Duration};

use anyhow::Result;
use millrace_tests::{
    bucket::python,
    chance,
    cluster::{Cluster, Wish},
    figures,
    program::{PATIENCE, finish, repository},
};

const OPERATIONS: u64 = 2000;

#[test]
fn a_file_that_two_mounts_change_in_turn_is_what_a_model_has() -> Result<()> {
    let (seed, length) = (chance::seed()?, chance::length()?);
    let cluster = Cluster::start(Wish::default())?;
    let mounts = [cluster.mount(), cluster.mount_named("second")];
    cluster.mount_also(&mounts[1])?;
    let mounts = mounts.map(|mount| mount.join("folder"));
    fs::create_dir(&mounts[0])?;
    // Small chunks, so that the file has many, on both targets.
    let folder = mounts[0].display().to_string();
    cluster.cli(&["stripe", "set", "--chunk-size", "64KiB", &folder])?.ok()?;
    let mut command = Command::new(python());
    command.arg(repository().join("tests/e2e/alternate.py")).arg("--mounts").args(&mounts);
    command.args(["--operations", &(OPERATIONS * length).to_string()]);
    command.args(["--seed", &seed.to_string()]);
    let patience = PATIENCE * u32::try_from(length).unwrap_or(u32::MAX).min(100);
    let said = finish(&mut command, patience.min(Duration::from_secs(7200)))?.ok()?;
    figures::report(said.trim_end())
}
