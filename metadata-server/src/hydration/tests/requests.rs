//! What links cost: the requests of all daemons, by bucket.

use std::sync::atomic::Ordering;

use millrace_protocol::{admin::JobKind, cluster::LinkMode, requests::RequestCounts};

use super::server::World;

#[tokio::test]
async fn links_into_one_bucket_are_counted_together_over_all_daemons() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("file", b"12345");
    world.job(JobKind::Import, "/data").await;
    let other = world.link_at("/again", LinkMode::ReadOnly).await.unwrap();
    let own = world.bucket.counters();
    let told = world.hydration.list_requests().await.unwrap();
    assert!(told.silent.is_empty() && told.buckets.len() == 1, "{told:?}");
    let bucket = &told.buckets[0];
    assert!(bucket.links.len() == 2 && bucket.links.contains(&other), "{told:?}");
    assert!(bucket.counts.list > 0 && bucket.counts.get == 40, "the target's come on top");
    let [list, ..] = own.by_class();
    assert_eq!(bucket.counts.list, list + 10);

    // A daemon that does not answer is named, and the others still count.
    world.server.uncounted.store(true, Ordering::Relaxed);
    let told = world.hydration.list_requests().await.unwrap();
    assert_eq!(told.silent, ["target host storage1"]);
    assert_eq!(told.buckets[0].counts.list, list);
}

#[tokio::test]
async fn without_links_nothing_is_counted() {
    let world = World::unlinked().await;
    let told = world.hydration.list_requests().await.unwrap();
    assert!(told.buckets.is_empty() && told.silent.is_empty());
    let mut sum = RequestCounts::default();
    let one = RequestCounts::new([1, 2, 3, 4, 5, 6, 7], 8, 9, 10);
    sum.add(&one);
    sum.add(&one);
    assert_eq!(sum, RequestCounts::new([2, 4, 6, 8, 10, 12, 14], 16, 18, 20));
}
