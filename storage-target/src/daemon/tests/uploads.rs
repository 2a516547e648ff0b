//! Uploads to a bucket that takes what it is sent and says nothing, or that it cannot.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use millrace_protocol::{
    capability::{Capability, Purpose, Rights},
    cluster::Bucket,
    codec,
    target::{StoreObject, UploadCondition, UploadObject, UploadSource},
};
use millrace_types::{ErrorKind, LinkId, SessionId};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use super::{MIB, World, content, sign};

fn object(endpoint: String) -> StoreObject {
    let capability = Capability { rights: Rights::Read, session: SessionId(0), content: content() };
    let source = UploadSource {
        content: content(),
        capability: sign(Purpose::Capability, &codec::encode(&capability)),
        offset: 0,
        len: u64::from(MIB),
        link: LinkId(1),
        key: "object".to_owned(),
    };
    let condition = UploadCondition::Absent;
    let bucket = Bucket {
        url: "s3://bucket/".to_owned(),
        endpoint: Some(endpoint),
        region: None,
        credentials: Some("anonymous".to_owned()),
    };
    let object = UploadObject { source, metadata: Vec::new(), condition };
    StoreObject { bucket: Some(bucket), object }
}

#[tokio::test]
async fn an_upload_that_is_given_up_counts_while_its_bytes_are_being_sent() {
    let world = World::new().await;
    world.write(1, 1).await;
    let bucket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", bucket.local_addr().unwrap());
    let memory = &world.daemon.exporter.memory;
    let free = memory.free_bytes();
    let mut upload = Box::pin(world.daemon.store_object(object(endpoint)));
    let (mut connection, _) = tokio::select! {
        stored = &mut upload => panic!("the bucket says nothing: {stored:?}"),
        accepted = bucket.accept() => accepted.unwrap(),
    };
    drop(upload);
    tokio::task::yield_now().await;
    assert_eq!(memory.free_bytes(), free - MIB as usize, "its bytes are here");
    assert!(take(&mut connection).await, "it ends early");
    connection.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    while memory.free_bytes() < free {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_a_bucket_does_not_know_is_told_apart_from_requests_that_are_not_known() {
    let world = World::new().await;
    world.write(1, 1).await;
    let bucket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", bucket.local_addr().unwrap());
    let sent = Arc::<AtomicU32>::default();
    drop(tokio::spawn(refuse(bucket, Arc::clone(&sent))));
    for (expected, why) in [(2, "it may be the checksums"), (1, "it is known by now")] {
        let failure = world.daemon.store_object(object(endpoint.clone())).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::InvalidArgument, "{failure}");
        assert!(failure.message.contains("it knows no conditions"), "{failure}");
        assert_eq!(sent.swap(0, Ordering::Relaxed), expected, "{why}");
    }
}

/// A bucket that knows no conditions, and counts what it is sent.
async fn refuse(bucket: TcpListener, sent: Arc<AtomicU32>) {
    let body =
        "<Error><Code>NotImplemented</Code><Message>it knows no conditions</Message></Error>";
    let answer =
        format!("HTTP/1.1 501 Not Implemented\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    while let Ok((mut connection, _)) = bucket.accept().await {
        let (sent, answer) = (Arc::clone(&sent), answer.clone());
        drop(tokio::spawn(async move {
            while take(&mut connection).await {
                sent.fetch_add(1, Ordering::Relaxed);
                connection.write_all(answer.as_bytes()).await.unwrap();
            }
        }));
    }
}

/// Reads a request with a body of 1 MiB. Whether one came.
async fn take(connection: &mut TcpStream) -> bool {
    let mut request = Vec::new();
    loop {
        let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if head.is_some_and(|head| request.len() >= head + 4 + MIB as usize) {
            return true;
        }
        if !matches!(connection.read_buf(&mut request).await, Ok(1..)) {
            return false;
        }
    }
}
