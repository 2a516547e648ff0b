//! A large file whose export is interrupted in its middle by the death of a daemon: the parts that
//! the bucket has are not sent again, and its targets know afterwards what it has.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
    hostile::{Asked, Fault, Gate, HostileProxy, Rule},
    program::wait_for,
};
use serde_json::Value;

/// Parts of the file, each of the least size that there is.
const PARTS: u64 = 40;
const PART_LEN: usize = 8 << 20;

/// Parts that have been sent when a daemon is killed, and the most that are on their way then: each
/// of two targets has memory for seven. Sent anew the file would cost more than with these.
const BEFORE: u64 = 30;
const UNDER_WAY: u64 = 2 * 7;
const _: () = assert!(PARTS + UNDER_WAY < BEFORE + PARTS);

struct World {
    // Ended in this order: daemons, what is between them and the bucket, the bucket.
    cluster: Cluster,
    proxy: HostileProxy,
    bucket: Bucket,
}

fn bytes() -> Vec<u8> {
    let len = usize::try_from(PARTS).unwrap_or(0) * PART_LEN - 5;
    (0..len).map(|at| u8::try_from((at * 31 + at / 253) % 256).unwrap_or(0)).collect()
}

impl World {
    fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
        let proxy = HostileProxy::for_endpoint(&bucket.endpoint())?;
        let add = ["link", "add", "s3://data/run", "mr:/run", "--mode", "import-export"];
        cluster.cli(&[&add[..], &["--endpoint", &proxy.endpoint()]].concat())?.ok()?;
        Ok(Self { bucket, cluster, proxy })
    }

    fn file(&self) -> PathBuf {
        self.cluster.mount().join("run/model.pt")
    }

    /// Exports the file, and kills a daemon when most of it has been sent. The parts that the
    /// bucket was sent in all.
    fn export(&self, daemon: &str) -> Result<u64> {
        let gate = Gate::default();
        self.proxy.clear();
        self.proxy.add(Rule::always(Asked::Part, Fault::Gate(gate.clone())));
        let before = self.puts()?;
        gate.close_at(1 + BEFORE);
        let begun = self.cluster.json(&["export", "mr:/run"])?;
        let id = begun["id"].to_string();
        wait_for("a part that waits", || gate.is_closed().then_some(()))?;
        wait_for("those before it", || (self.puts().ok()? >= before + BEFORE).then_some(()))?;
        self.cluster.crash(daemon)?;
        gate.open();
        let job = wait_for("the export", || {
            let job = self.cluster.json(&["job", "show", &id, "--at-once"]).ok()?;
            (job["state"] != "queued" && job["state"] != "running").then_some(job)
        })?;
        ensure!(job["state"] == "succeeded", "{job}");
        Ok(self.puts()? - before)
    }

    fn puts(&self) -> Result<u64> {
        Ok(self.bucket.requests()?.get("PUT").copied().unwrap_or(0))
    }

    /// The object has these bytes, no upload is left, and the file is released and read again.
    fn check(&self, expected: &[u8]) -> Result<()> {
        let path = self.cluster.scratch()?.join("expected");
        fs::write(&path, expected)?;
        let script = "
body = client.get_object(Bucket='data', Key='run/model.pt')['Body'].read()
uploads = client.list_multipart_uploads(Bucket='data').get('Uploads', [])
print(json.dumps([body == open(sys.argv[2], 'rb').read(), len(uploads)]))
";
        let told = self.bucket.script(script, &[path.to_str().context("UTF-8")?])?;
        let told: Value = serde_json::from_str(&told)?;
        ensure!(told == serde_json::json!([true, 0]), "{told}");
        self.cluster.cli(&["release", "mr:/run", "--wait"])?.ok()?;
        let held = self.cluster.json(&["state", "mr:/run"])?;
        ensure!(held["hydrated_bytes"] == 0, "{held}");
        ensure!(fs::read(self.file())? == expected, "the file has other bytes");
        Ok(())
    }
}

#[test]
fn parts_of_a_large_file_are_not_sent_again_whoever_is_killed() -> Result<()> {
    let world = World::start()?;
    let mut expected = bytes();
    for daemon in ["metadata", "target-0"] {
        fs::write(world.file(), &expected)?;
        let parts = world.export(daemon)?;
        ensure!((PARTS..=PARTS + UNDER_WAY).contains(&parts), "{parts} after {daemon}'s death");
        world.check(&expected)?;
        expected.rotate_left(1);
    }
    Ok(())
}
