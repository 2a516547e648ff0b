//! What `dump` prints, and that it prints something of everything.

use std::{fs::File, process::Command};

use millrace_storage_target::{
    dump::{What, dump},
    format::{section::SectionKey, table::TableKey},
};

use super::{
    snapshot::{PAGE, Snapshot},
    target::{LAYOUT, Target, key},
};

async fn written() -> Snapshot {
    let mut target = Target::new(31).await;
    for inode in 1..80 {
        target.write(inode, 0..2 * PAGE).await;
    }
    target.close().await;
    target.open().await.unwrap();
    target.write(500, 0..PAGE).await;
    target.close().await;
    target.snapshot().await
}

fn lines(snapshot: &Snapshot, what: &What) -> Vec<String> {
    let mut out = Vec::new();
    dump(snapshot, what, &mut out).unwrap();
    String::from_utf8(out).unwrap().lines().map(str::to_owned).collect()
}

fn count(lines: &[String], start: &str) -> usize {
    lines.iter().filter(|line| line.starts_with(start)).count()
}

#[tokio::test]
async fn everything_has_its_line() {
    let snapshot = written().await;
    let overview = lines(&snapshot, &What::Overview);
    assert_eq!(count(&overview, "superblock A page 0: target 0707070707070707 cluster 0909"), 1);
    assert_eq!((count(&overview, "superblock"), count(&overview, "root page ")), (2, 4));
    assert_eq!(
        count(&overview, "fact: totals: 0 clean pages, 159 written pages"),
        1,
        "{overview:#?}"
    );
    assert_eq!(count(&overview, "fact: journal position: page "), 1);

    let all = lines(&snapshot, &What::Entries { inode: None });
    assert_eq!(count(&all, "section: inode "), 80);
    let one = lines(&snapshot, &What::Entries { inode: Some(7) });
    assert_eq!(one.len(), 1);
    let start = "section: inode 7 generation 1 chunk 0 copy 0 section 0: version 1.";
    assert!(one[0].starts_with(start) && one[0].contains(" length 8192 "), "{one:?}");
    assert!(one[0].contains(" blocks w------- extents 0+2@"), "{one:?}");

    let name = SectionKey { chunk: key(7), section: 0 };
    let name = TableKey::Section(name).encode().as_slice().to_vec();
    assert_eq!(lines(&snapshot, &What::Key(name.clone())), one);
    assert_eq!(lines(&snapshot, &What::Key(vec![2; 9])).len(), 1);

    let regions = lines(&snapshot, &What::Regions);
    assert!(
        count(&regions, "free map: region 0: ") == 1
            && count(&regions, "summaries: group 0: ") == 1
    );
    let journal = lines(&snapshot, &What::Journal);
    assert!(journal[0].starts_with("batch page "), "{journal:?}");
    assert_eq!(count(&journal, "journal: goes on at page "), 1);
    assert!(journal[journal.len() - 2].ends_with(": stop"), "{journal:?}");

    // The place of the extent is that of the page, and the page knows its section.
    let place = one[0].rsplit('@').next().unwrap().parse::<u64>().unwrap();
    let data = lines(&snapshot, &What::Page(place));
    assert!(data[0].starts_with(&format!("page {place}: in the regions, ")), "{data:?}");
    assert!(data[1].contains("inode 7 ") && data[1].ends_with(" matches"), "{data:?}");
    let (leaf, _) = snapshot.path(&name).pop().unwrap();
    let node = lines(&snapshot, &What::Page(leaf.page));
    assert!(node[1].starts_with(&format!("node page {}: level 0 ", leaf.page)), "{node:?}");
    assert!(node.contains(&one[0]), "{node:?}");
    for (page, start) in [(0, "superblock A"), (LAYOUT.roots, "root page 16"), (300, "batch page")]
    {
        let page = lines(&snapshot, &What::Page(page));
        assert!(page[1].starts_with(start), "{page:?}");
    }
    assert_eq!(lines(&snapshot, &What::Page(LAYOUT.capacity)).len(), 1, "past the end");
}

#[tokio::test]
async fn damage_is_a_line_among_others() {
    let mut snapshot = written().await;
    let name = SectionKey { chunk: key(7), section: 0 };
    let name = TableKey::Section(name).encode().as_slice().to_vec();
    let (leaf, _) = snapshot.path(&name).pop().unwrap();
    snapshot.flip(leaf.page, 100, 1);
    snapshot.flip(0, 100, 1);
    let all = lines(&snapshot, &What::Entries { inode: None });
    assert_eq!(count(&all, &format!("node page {}: the checksum", leaf.page)), 1);
    assert!(count(&all, "section: inode ") > 10, "the other leaves are printed");
    let overview = lines(&snapshot, &What::Overview);
    assert_eq!(count(&overview, "superblock A page 0: the checksum"), 1);
    assert_eq!(count(&overview, "superblock B page 32: target"), 1);
}

#[tokio::test]
async fn the_program_prints_and_refuses() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    written().await.write_to(&File::create(&image).unwrap());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace-target"));
        let output = command.arg("dump").arg(&image).args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let (code, said, _) = run(&["--inode", "7"]);
    assert_eq!((code, said.lines().count()), (Some(0), 1));
    let (code, said, _) = run(&["--key", "0601"]);
    assert!(code == Some(0) && said.starts_with("fact: loss count: "), "{said}");
    for wrong in [&["--key", "0"][..], &["--key", "zz"], &["--journal", "--regions"]] {
        let (code, said, error) = run(wrong);
        assert!(code == Some(2) && said.is_empty() && !error.is_empty(), "{error}");
    }
    let daemon = File::open(&image).unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&daemon, lock).unwrap();
    let (code, said, warning) = run(&[]);
    assert!(code == Some(0) && said.starts_with("superblock A"), "{said}");
    assert!(warning.contains("a daemon serves this target"), "{warning}");
}
