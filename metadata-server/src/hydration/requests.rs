//! What the buckets of links were asked, by all daemons since they began: what links cost.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use millrace_protocol::{
    cluster::{Bucket, Host},
    requests::{BucketRequests, CountRequests, RequestCounts, RequestsReply},
};
use millrace_types::Failure;

use super::{
    environment::Environment,
    import::{Importer, spec_of},
    links::{host_name, statuses},
};

/// How long one target daemon may take to look at its counters.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Daemons that are asked at the same time.
const HOSTS_MAX: usize = 64;

/// Counts by bucket, over this server and every target daemon.
///
/// # Errors
/// That the server is busy or shutting down. Daemons that do not answer are named in the reply.
pub async fn count<E: Environment>(
    environment: &E,
    importer: &Arc<Importer<E>>,
) -> Result<RequestsReply, Failure> {
    // Links into one bucket share its connections, and so its counters.
    let (mut specs, mut asked, mut buckets) = (Vec::new(), Vec::new(), Vec::new());
    for link in environment.read(statuses).await? {
        let spec = spec_of(&link.bucket)?.without_prefix();
        if let Some(at) = specs.iter().position(|known| *known == spec) {
            let known: &mut BucketRequests = &mut buckets[at];
            known.links.push(link.id);
            continue;
        }
        let counts = own(importer, &link.bucket);
        buckets.push(BucketRequests { url: spec.url_of(""), links: vec![link.id], counts });
        specs.push(spec);
        asked.push(link.bucket);
    }
    let mut silent = Vec::new();
    if !asked.is_empty() {
        let map = environment.map().await?;
        let serves = |host: &&Host| map.targets.iter().any(|target| target.host == host.id);
        // Owned, so that the future can be sent between threads.
        let hosts: Vec<Host> = map.hosts.iter().filter(serves).cloned().collect();
        let request = CountRequests { buckets: asked };
        let replies = stream::iter(hosts).map(|host| {
            let ask = environment.ask(host.id, request.clone(), TIMEOUT);
            async move { (host_name(&host), ask.await) }
        });
        let mut replies = replies.buffer_unordered(HOSTS_MAX);
        while let Some((host, reply)) = replies.next().await {
            match reply {
                Ok(reply) if reply.counts.len() == buckets.len() => {
                    let pairs = buckets.iter_mut().zip(&reply.counts);
                    pairs.for_each(|(bucket, counts)| bucket.counts.add(counts));
                }
                Ok(_) | Err(_) => silent.push(host),
            }
        }
    }
    silent.sort();
    Ok(RequestsReply { buckets, silent })
}

/// What this server asked a bucket; zeros when it cannot be opened.
fn own<E: Environment>(importer: &Arc<Importer<E>>, bucket: &Bucket) -> RequestCounts {
    importer.bucket(bucket).map_or_else(
        |_| RequestCounts::default(),
        |open| {
            let counters = open.counters();
            let (received, sent) = (counters.bytes_received(), counters.bytes_sent());
            RequestCounts::new(counters.by_class(), counters.failures(), received, sent)
        },
    )
}
