//! Uploads to a bucket that takes what it is sent and says nothing.

use std::sync::Arc;

use millrace_protocol::{
    capability::{Capability, Purpose, Rights},
    cluster::Bucket,
    codec,
    target::{StoreObject, UploadCondition, UploadObject, UploadSource},
};
use millrace_types::{LinkId, SessionId};
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
    let memory = Arc::clone(&world.daemon.exporter.memory);
    let free = memory.available_permits();
    let mut upload = Box::pin(world.daemon.store_object(object(endpoint)));
    let (mut connection, _) = tokio::select! {
        stored = &mut upload => panic!("the bucket says nothing: {stored:?}"),
        accepted = bucket.accept() => accepted.unwrap(),
    };
    drop(upload);
    tokio::task::yield_now().await;
    assert_eq!(memory.available_permits(), free - MIB as usize, "its bytes are here");
    take(&mut connection).await;
    connection.write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n").await.unwrap();
    drop(memory.acquire_many(u32::try_from(free).unwrap()).await.unwrap());
}

/// Reads a request with a body of 1 MiB.
async fn take(connection: &mut TcpStream) {
    let mut request = Vec::new();
    loop {
        let head = request.windows(4).position(|bytes| bytes == b"\r\n\r\n");
        if head.is_some_and(|head| request.len() >= head + 4 + MIB as usize) {
            return;
        }
        assert!(connection.read_buf(&mut request).await.unwrap() > 0, "it ends early");
    }
}
