//! Which targets a daemon begins with, and which come later.

use std::{fs, path::Path, sync::Arc, time::Duration};

use millrace_service::metrics::Metrics;
use millrace_types::{ClusterId, TargetId};
use tokio::{runtime::Handle, sync::oneshot};

use super::{Missing, Opener, Opening, StartError, Starting, Table};
use crate::{
    background::Background,
    cluster::Cluster,
    daemon::{Daemon, Exporter, Stores, tests::NoOther},
    disk::BufferPool,
    format::batch::BootId,
    links::Links,
    metrics::Counters,
    misses::Misses,
    store::Store,
};

/// For targets at these places in a directory, of which the first has to be a certain one or not.
fn opener(dir: &Path, places: &[&str], first: Option<TargetId>) -> Arc<Opener> {
    let mut text = "[cluster]\nservers = ['meta-1:7440']\nidentity = '/i.pem'\n".to_owned();
    for (nth, place) in places.iter().enumerate() {
        let place = dir.join(place);
        text += &format!("[[target]]\ndirectory = {place:?}\ncapacity = '64MiB'\n");
        if let Some(id) = first.filter(|_| nth == 0) {
            text += &format!("id = '{id}'\n");
        }
    }
    let file = dir.join("target.toml");
    fs::write(&file, text).unwrap();
    Arc::new(Opener {
        settings: millrace_service::config::load_with(Some(&file), "MILLRACE_", []).unwrap(),
        cluster: ClusterId([1; 16]),
        boot: BootId([1; 16]),
        links: Links::new(millrace_object_source::Settings::default()),
        counters: Counters::register(&mut Metrics::new()),
        buckets: Handle::current(),
        misses: Misses::default(),
    })
}

fn daemon(opener: &Opener, stores: Vec<Store>) -> Daemon {
    Daemon::new(
        Stores::new(stores, opener.settings.targets().len()),
        Cluster::new(),
        opener.links.clone(),
        Exporter::new(Arc::new(NoOther), Handle::current()),
        opener.counters.clone(),
        Background::new(4),
    )
}

/// Opens all targets, and closes them.
async fn make(opener: &Arc<Opener>) -> Vec<TargetId> {
    let (stores, missing) = opener.open_all(&BufferPool::new(0)).await.unwrap();
    assert!(missing.is_empty(), "{missing:?}");
    let ids = stores.iter().map(Store::id).collect();
    let count = stores.len();
    Stores::new(stores, count).close().await;
    ids
}

/// Why none is served.
async fn refusal(opener: &Arc<Opener>) -> StartError {
    let opened = opener.open_all(&BufferPool::new(0)).await;
    opened.map(drop).unwrap_err()
}

#[tokio::test]
async fn a_disk_that_is_gone_leaves_the_others_and_is_taken_in_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let (mount, away) = (dir.path().join("mount"), dir.path().join("away"));
    fs::create_dir(&mount).unwrap();
    let opener = opener(dir.path(), &["a", "mount/b"], None);
    let both = make(&opener).await;
    fs::rename(&mount, &away).unwrap();
    let (stores, missing) = opener.open_all(&BufferPool::new(0)).await.unwrap();
    assert_eq!(stores.iter().map(Store::id).collect::<Vec<_>>(), both[..1]);
    let [Missing { table, opening: None }] = &missing[..] else { panic!("{missing:?}") };
    let daemon = daemon(&opener, stores);
    // Where it is to be mounted another one must not begin.
    fs::create_dir_all(mount.join("b")).unwrap();
    opener.take_in(table, opener.begin(table, false), &daemon).await.unwrap_err();
    assert!(fs::read_dir(mount.join("b")).unwrap().next().is_none());
    assert_eq!((daemon.stores.open_count(), daemon.stores.count()), (1, 2));
    fs::remove_dir_all(&mount).unwrap();
    fs::rename(&away, &mount).unwrap();
    let late = opener.take_in(table, opener.begin(table, false), &daemon).await.unwrap();
    assert_eq!(late.id(), both[1]);
    let mut reported: Vec<_> = daemon.reports().iter().map(|report| report.id).collect();
    reported.sort_unstable();
    let mut expected = both.clone();
    expected.sort_unstable();
    assert_eq!(reported, expected);
    daemon.stores.close().await;
}

#[tokio::test]
async fn a_disk_that_hangs_and_one_that_panics_hold_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let opener = opener(dir.path(), &["a", "b", "c"], None);
    let pools = BufferPool::new(0).divide(3);
    let tables = opener.settings.targets().into_iter().zip(pools);
    let mut tables = tables.map(|(target, pool)| Table { target, pool });
    let mut next = || tables.next().unwrap();
    let (answers, waits) = oneshot::channel::<()>();
    let works = next();
    let works = Starting { opening: opener.begin(&works, true), table: works, ended: None };
    let hangs = next();
    let (late, table) = (Arc::clone(&opener), hangs.clone());
    let opening = tokio::spawn(async move {
        waits.await.unwrap();
        Box::pin(late.open(&table, true)).await
    });
    let hangs = Starting { opening, table: hangs, ended: None };
    let opening: Opening = tokio::spawn(async { panic!("as a broken journal must not") });
    let panics = Starting { opening, table: next(), ended: None };
    let gathered = opener.gather(vec![works, hangs, panics], Duration::ZERO).await;
    let (stores, missing) = gathered.unwrap();
    let mut missing = missing.into_iter();
    let daemon = daemon(&opener, stores);
    assert_eq!((daemon.stores.open_count(), missing.len()), (1, 2));
    answers.send(()).unwrap();
    // It was begun at the start, and so makes a target yet.
    opener.open_later(missing.next().unwrap(), &daemon).await;
    assert_eq!(daemon.stores.open_count(), 2);
    daemon.stores.close().await;
}

#[tokio::test]
async fn without_any_disk_there_is_no_start() {
    let dir = tempfile::tempdir().unwrap();
    let error = refusal(&opener(dir.path(), &["gone/a", "gone/b"], None)).await;
    assert!(matches!(error, StartError::Directory { .. }), "{error}");
    assert!(matches!(refusal(&opener(dir.path(), &[], None)).await, StartError::NoTarget));
}

#[tokio::test]
async fn a_disk_that_is_not_the_one_of_the_settings_is_no_disk_that_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let places = ["a", "b"];
    make(&opener(dir.path(), &places, None)).await;
    let other = opener(dir.path(), &places, Some(TargetId([9; 8])));
    let error = refusal(&other).await;
    assert!(matches!(error, StartError::OtherTarget { .. }), "{error}");
}

#[tokio::test]
async fn of_a_disk_and_its_copy_none_is_served() {
    let dir = tempfile::tempdir().unwrap();
    make(&opener(dir.path(), &["a"], None)).await;
    fs::create_dir(dir.path().join("b")).unwrap();
    fs::copy(dir.path().join("a/store"), dir.path().join("b/store")).unwrap();
    let error = refusal(&opener(dir.path(), &["a", "b"], None)).await;
    assert!(matches!(error, StartError::Twice { .. }), "{error}");
}
