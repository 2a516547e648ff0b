//! Reports of jobs that go into the bucket.

use std::fs;

use millrace_protocol::{
    admin::{JobKind, StartJob},
    cluster::LinkMode,
    job_options::{JobOptions, PutReport, PutReportReply, StartWithOptions},
    selection::Selection,
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, JobId};

use super::server::{ROOT, World};

impl World {
    /// An import of `/data` that keeps a report, and has ended.
    async fn reported(&self) -> JobId {
        let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
        let options = JobOptions { report: true, ..JobOptions::default() };
        let selection = Selection::default();
        let request = StartWithOptions { start, selection, dry_run: false, options };
        let id = self.hydration.start_with_options(b"", &request).await.unwrap().id;
        self.run_until(|job| job.id == id && job.state.is_final()).await;
        id
    }

    async fn put_report(&self, id: JobId, to: &str, table: bool) -> Result<String, Failure> {
        let request = PutReport { caller: ROOT, id, to: to.to_owned(), table };
        let PutReportReply { url, size } = self.hydration.put_report(request).await?;
        let object = url.strip_prefix("file://").unwrap();
        assert_eq!(fs::metadata(object).unwrap().len(), size);
        Ok(fs::read_to_string(object).unwrap())
    }
}

#[tokio::test]
async fn a_report_goes_beside_the_data_and_never_over_anything_else() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a,b", b"12345");
    world.put("taken", b"somebody's");
    let id = world.reported().await;
    let lines = world.put_report(id, "logs/1.jsonl", false).await.unwrap();
    assert_eq!(lines.lines().count(), 3, "{lines}");
    let table = world.put_report(id, "logs/1.csv", true).await.unwrap();
    assert!(table.starts_with("path,outcome,bytes,error\n"), "{table}");
    assert!(table.contains("\"/data/a,b\",done,5,\n"), "{table}");
    // Once more is no conflict; another report of another job is.
    assert_eq!(world.put_report(id, "logs/1.jsonl", false).await.unwrap(), lines);
    let other = world.reported().await;
    for (job, to) in [(other, "logs/1.jsonl"), (id, "logs/1.csv"), (id, "taken")] {
        let refused = world.put_report(job, to, false).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Exists, "{to}: {refused}");
    }
    assert_eq!(fs::read(world.object("taken")).unwrap(), b"somebody's");
    let url = format!("file://{}/by-url", world.bucket_dir.path().display());
    assert_eq!(world.put_report(id, &url, false).await.unwrap(), lines);
    for (to, kind) in [
        ("../out", ErrorKind::InvalidArgument),
        ("a//b", ErrorKind::InvalidArgument),
        ("", ErrorKind::InvalidArgument),
        ("s3://elsewhere/x", ErrorKind::InvalidArgument),
    ] {
        assert_eq!(world.put_report(id, to, false).await.unwrap_err().kind, kind, "{to}");
    }
}

#[tokio::test]
async fn a_long_report_goes_by_parts() {
    let world = World::new(LinkMode::ImportExport).await;
    let id = world.reported().await;
    let line = "{\"path\":\"/data/some/file\",\"outcome\":\"done\",\"bytes\":7}\n";
    let report = line.repeat(400_000);
    let file = world.server.reports_dir().join(format!("job-{}.jsonl", id.0));
    fs::write(file, &report).unwrap();
    let object = world.put_report(id, "long.jsonl", false).await.unwrap();
    assert!(object == report && report.len() > 20_000_000, "{} bytes", object.len());
    let table = world.put_report(id, "long.csv", true).await.unwrap();
    assert_eq!(table.lines().count(), 400_001);
}

#[tokio::test]
async fn who_may_not_write_into_the_bucket_puts_no_report_there() {
    let world = World::new(LinkMode::Import).await;
    let id = world.reported().await;
    let refused = world.put_report(id, "report", false).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::ReadOnly);
    let stranger = Caller { uid: 1000, ..ROOT };
    let request = PutReport { caller: stranger, id, to: "report".to_owned(), table: false };
    let refused = world.hydration.put_report(request).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted, "the job is another's");
    assert!(!world.object("report").exists());
}
