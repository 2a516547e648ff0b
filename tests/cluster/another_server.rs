//! The way of bytes from a bucket and back with another S3 server than the other tests have.

use std::fs;

use anyhow::{Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
};

#[test]
fn files_come_from_and_go_to_a_bucket_of_another_server() -> Result<()> {
    let bucket = Bucket::start_moto()?;
    let large: Vec<u8> = (0..20_000_000_u32).map(|at| (at % 251) as u8).collect();
    bucket.put("set/small", b"small")?;
    bucket.put("set/sub/large", &large)?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/set", "mr:/set", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    let set = cluster.mount().join("set");
    ensure!(fs::read(set.join("small"))? == b"small", "read at first");
    cluster.cli(&["hydrate", "mr:/set", "--wait"])?.ok()?;
    ensure!(fs::read(set.join("sub/large"))? == large, "hydrated");

    // By one PUT where something stands, by parts where nothing does.
    fs::write(set.join("small"), b"changed here")?;
    fs::write(set.join("checkpoint"), &large)?;
    cluster.cli(&["export", "mr:/set", "--wait"])?.ok()?;
    ensure!(bucket.get("set/small")? == b"changed here", "replaced");
    ensure!(bucket.get("set/checkpoint")? == large, "made of parts");
    cluster.cli(&["release", "mr:/set", "--wait"])?.ok()?;
    ensure!(fs::read(set.join("checkpoint"))? == large, "fetched again");

    bucket.put("set/small", b"changed in the bucket")?;
    cluster.cli(&["import", "mr:/set", "--wait"])?.ok()?;
    ensure!(fs::read(set.join("small"))? == b"changed in the bucket", "followed");
    fs::write(set.join("small"), b"both")?;
    bucket.put("set/small", b"sides")?;
    let failed = cluster.cli(&["export", "mr:/set", "--wait"])?;
    ensure!(failed.code == Some(1) && failed.stdout.contains("small"), "{failed}");
    ensure!(bucket.get("set/small")? == b"sides", "nothing is overwritten");
    Ok(())
}
