//! `export --atomic`, as a training job and who reads its checkpoints from the bucket see it.

use std::fs;

use anyhow::{Result, ensure};
use millrace_tests::{
    bucket::Bucket,
    cluster::{Cluster, Wish},
};
use serde_json::json;

/// Reads a checkpoint by its manifest, each object in the version that it names.
const READ: &str = "
manifest = json.loads(client.get_object(
    Bucket='data', Key='run/step-1/.millrace-manifest.json')['Body'].read())
read = {}
for file in manifest['files']:
    got = client.get_object(
        Bucket='data', Key=manifest['prefix'] + file['path'], IfMatch=file['tag'])
    body = got['Body'].read()
    assert len(body) == file['size'], file
    read[file['path']] = len(body)
print(json.dumps(read))
";

#[test]
fn a_checkpoint_is_in_the_bucket_as_a_whole_once_its_manifest_is() -> Result<()> {
    let bucket = Bucket::start()?;
    let cluster = Cluster::start(Wish::default().with_bucket(&bucket))?;
    let add = ["link", "add", "s3://data/run", "mr:/run", "--mode", "import-export"];
    cluster.cli(&add)?.ok()?;
    let step = cluster.mount().join("run/step-1");
    fs::create_dir_all(step.join("optim"))?;
    let expected = json!({ "model.pt": 20_000_000, "optim/rank-0.pt": 300_000, "config.json": 2 });
    for (path, len) in expected.as_object().into_iter().flatten() {
        let len = usize::try_from(len.as_u64().unwrap_or(0))?;
        fs::write(step.join(path), vec![7; len])?;
    }
    let open = fs::OpenOptions::new().append(true).open(step.join("config.json"))?;
    let path = step.to_str().unwrap_or_default();
    let failed = cluster.cli(&["export", path, "--atomic", "--wait"])?;
    ensure!(failed.code == Some(1) && failed.stdout.contains("config.json"), "{failed}");
    ensure!(bucket.get("run/step-1/.millrace-manifest.json").is_err(), "not all is there");
    drop(open);

    let whole = cluster.cli(&["export", path, "--atomic", "--wait"])?;
    ensure!(whole.code == Some(0), "{whole}");
    let read: serde_json::Value = serde_json::from_str(&bucket.script(READ, &[])?)?;
    assert_eq!(read, expected);
    let refused = cluster.cli(&["export", path, "--atomic", "--include", "*.pt"])?;
    ensure!(refused.code == Some(2) && refused.stderr.contains("--include"), "{refused}");
    let refused = cluster.cli(&["export", &format!("{path}/model.pt"), "--atomic"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("not a directory"), "{refused}");
    Ok(())
}
