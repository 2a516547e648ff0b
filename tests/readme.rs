//! What the README shows is run: its shell blocks, in order, in one shell.

use std::{env, fs, process::Command};

use anyhow::{Context, Result};
use millrace_tests::{
    bucket::{Bucket, python},
    program::{LONG_PATIENCE, PATIENCE, binaries, finish, repository},
};

#[test]
fn the_tour_of_the_readme_works_as_shown() -> Result<()> {
    let readme = fs::read_to_string(repository().join("README.md"))?;
    let tour = readme.split("## A short tour").nth(1).context("the README has a tour")?;
    let tour = tour.split("\n## ").next().unwrap_or(tour);
    let blocks: Vec<_> =
        tour.split("```sh\n").skip(1).filter_map(|block| block.split("```").next()).collect();
    assert!(blocks.len() > 2, "the tour has commands");

    let bucket = Bucket::start()?;
    for index in 0..3 {
        bucket.put(&format!("pictures/{index}.jpg"), &vec![index; 100_000])?;
    }
    let place = tempfile::tempdir()?;
    let script = format!("set -eux\n{}", blocks.concat().replace("/tmp/millrace", "$PLACE"));
    let path = format!("{}:{}", binaries().display(), env::var("PATH")?);
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).env("PATH", path).env("PLACE", place.path().join("tour"));
    shell.env("PYTHON", python()).envs(bucket.environment()).current_dir(repository());
    let said = finish(&mut shell, LONG_PATIENCE);
    // Whatever the tour left running is taken down before the verdict.
    let mut down = Command::new(binaries().join("millrace"));
    down.args(["dev", "down", "--dir"]).arg(place.path().join("tour"));
    drop(finish(&mut down, PATIENCE));
    said?.ok()?;
    Ok(())
}
