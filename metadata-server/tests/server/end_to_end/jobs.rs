//! Jobs as clients of different subtrees see them.

use millrace_protocol::{
    admin::{AwaitJob, CancelJob, Job, JobKind, ListJobs, ShowJob, StartJob},
    metadata::NewNode,
    session::{Caller, Role},
};
use millrace_transport::Grant;
use millrace_types::{ErrorKind, InodeId};

use super::cluster::{Cluster, Node, grant};

async fn start(node: &Node, path: &str) -> Job {
    let path = path.as_bytes().to_vec();
    let request = StartJob { caller: Caller::ROOT, kind: JobKind::Import, path };
    node.ask(&request).await.unwrap().job
}

async fn listed(node: &Node) -> Vec<(u64, String)> {
    let jobs = node.ask(&ListJobs {}).await.unwrap().jobs;
    let shown = jobs.into_iter().map(|job| (job.id.0, String::from_utf8(job.path).unwrap()));
    shown.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_with_a_subtree_sees_and_cancels_the_jobs_in_it_alone() {
    let cluster = Cluster::start().await;
    let mut free = cluster.client(&grant(Role::Client, 1)).await;
    let team = free.make(InodeId::ROOT, "team", NewNode::Directory, 0o755).await;
    free.make(team, "data", NewNode::Directory, 0o755).await;
    free.make(InodeId::ROOT, "teammate", NewNode::Directory, 0o755).await;
    let grant = Grant { subtree: Some(b"/team".to_vec()), ..grant(Role::Client, 2) };
    let bound = cluster.client(&grant).await;
    let other = start(&free, "/teammate").await;
    let data = start(&free, "/team/data").await;
    let own = start(&bound, "/").await;
    assert_eq!(own.path, b"/", "the client's own root");
    let (other, data, own) = (other.id.0, data.id.0, own.id.0);
    let all = [(own, "/team"), (data, "/team/data"), (other, "/teammate")];
    assert_eq!(listed(&free).await, all.map(|(id, path)| (id, path.to_owned())));
    let part = [(own, "/"), (data, "/data")];
    assert_eq!(listed(&bound).await, part.map(|(id, path)| (id, path.to_owned())));
    let id = millrace_types::JobId(other);
    assert_eq!(bound.refusal(&ShowJob { id }).await, ErrorKind::NotFound);
    assert_eq!(bound.refusal(&AwaitJob { id, patience_ms: 0 }).await, ErrorKind::NotFound);
    let wait = AwaitJob { id: millrace_types::JobId(data), patience_ms: u32::MAX };
    let mut ended = bound.ask(&wait).await.unwrap().job;
    while !ended.state.is_final() {
        ended = bound.ask(&wait).await.unwrap().job;
    }
    assert_eq!(ended.path, b"/data");
    let cancel = CancelJob { caller: Caller::ROOT, id };
    assert_eq!(bound.refusal(&cancel).await, ErrorKind::NotFound);
    free.ask(&cancel).await.unwrap();
    let cancel = CancelJob { caller: Caller::ROOT, id: millrace_types::JobId(data) };
    assert_eq!(bound.ask(&cancel).await.unwrap().job.path, b"/data");
    cluster.stop().await;
}
