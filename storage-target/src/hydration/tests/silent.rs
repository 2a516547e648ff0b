//! Reads of what a bucket that says nothing has, and what they hold up meanwhile.

use futures::{FutureExt as _, future::join, poll};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::watch,
    time::timeout,
};

use super::{whole::at, *};
use crate::parts::BLOCK;

/// How long a read may take that nothing holds up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A bucket of S3 over plain HTTP that is asked for parts of one object, and says nothing before
/// it is told to.
struct Silent {
    /// How many requests have come.
    asked: watch::Receiver<usize>,
    /// Whether it has this version of the object, once it speaks.
    has_object: watch::Sender<Option<bool>>,
}

impl Silent {
    async fn start(bytes: Vec<u8>) -> (World, Self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (asking, asked) = watch::channel(0);
        let has_object = watch::Sender::new(None);
        let (told, object) = (has_object.subscribe(), Arc::new(bytes.clone()));
        drop(tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (asking, told) = (asking.clone(), told.clone());
                drop(tokio::spawn(serve(connection, asking, told, Arc::clone(&object))));
            }
        }));
        (at(endpoint, bytes, Settings::default()).await, Self { asked, has_object })
    }

    /// Waits until a request has come.
    async fn asked(&mut self) {
        self.asked.wait_for(|asked| *asked > 0).await.unwrap();
    }

    fn speak(&self, has_object: bool) {
        self.has_object.send_replace(Some(has_object));
    }
}

async fn serve(
    mut connection: TcpStream,
    asking: watch::Sender<usize>,
    mut told: watch::Receiver<Option<bool>>,
    bytes: Arc<Vec<u8>>,
) {
    let mut head = Vec::new();
    while let Ok(1..) = connection.read_buf(&mut head).await {
        if !head.ends_with(b"\r\n\r\n") {
            continue;
        }
        asking.send_modify(|asked| *asked += 1);
        let text = String::from_utf8(std::mem::take(&mut head)).unwrap().to_ascii_lowercase();
        let range = text.lines().find_map(|line| line.strip_prefix("range: bytes=")).unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let (first, last) = (first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap());
        let has_object = told.wait_for(Option::is_some).await.unwrap().unwrap();
        let (status, body) = match has_object {
            true => ("206 Partial Content", &bytes[first..=last]),
            false => ("412 Precondition Failed", &[][..]),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"tag\"\r\n\
             Content-Range: bytes {first}-{last}/{}\r\n\
             Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
            body.len(),
            bytes.len(),
        );
        connection.write_all(answer.as_bytes()).await.unwrap();
        connection.write_all(body).await.unwrap();
    }
}

/// What two reads of the same megabyte get, of which the second has no turn, when the bucket that
/// the first waits for speaks at last.
async fn read_twice(has_object: bool) -> [Result<u32, Failure>; 2] {
    let (world, mut bucket) = Silent::start(object(OBJECT_LEN)).await;
    let turns = &world.store.hydrator().inner.turns;
    let other = |link| std::iter::from_fn(move || turns.take(LinkId(link)).now_or_never());
    let _others: Vec<_> = (2..4).flat_map(other).collect();
    let mut first = Box::pin(world.read(0, 4096, Reader::Random));
    tokio::select! {
        read = &mut first => panic!("nobody answers, and {read:?}"),
        () = bucket.asked() => {}
    }
    let mut second = Box::pin(world.read(10_000, 4096, Reader::Random));
    for _ in 0..10_000 {
        assert!(poll!(&mut second).is_pending(), "nobody answers");
        tokio::task::yield_now().await;
    }
    bucket.speak(has_object);
    let both = timeout(PATIENCE, join(first, second)).await;
    let (first, second) = both.expect("it needs no turn any more");
    [first, second]
}

#[tokio::test]
async fn a_read_without_a_turn_gets_what_has_come_for_another() {
    for read in read_twice(true).await {
        read.unwrap();
    }
}

#[tokio::test]
async fn a_read_without_a_turn_asks_itself_when_the_other_has_failed() {
    for read in read_twice(false).await {
        assert_eq!(read.unwrap_err().kind, ErrorKind::ObjectChanged);
    }
}

/// What is here of the first megabyte, of which the last block is missing.
const HERE: usize = 15 * BLOCK as usize;

/// What a write gives up is free as soon as the next record says that it is durable.
async fn assert_nothing_is_held_back(world: &World, number: u64) {
    let volume = world.store.volume();
    let mut request = world.write(0, world.bytes[..HERE].to_vec());
    request.number = WriteNumber(number);
    volume.write(request.clone()).await.unwrap();
    volume.sync().await.unwrap();
    request.key.inode = InodeId(100 + number);
    volume.write(WriteRequest { backed: 0, ..request }).await.unwrap();
    volume.sync().await.unwrap();
    assert_eq!(volume.statistics().space.quarantined, 0);
}

#[tokio::test]
async fn a_read_that_waits_for_a_bucket_or_with_others_for_memory_holds_back_no_pages() {
    let (world, mut bucket) = Silent::start(object(OBJECT_LEN)).await;
    for number in 1..3 {
        assert_nothing_is_held_back(&world, number).await;
    }
    let pool = world.store.volume().pool();
    let shares: Vec<_> = std::iter::from_fn(|| pool.share(HERE).now_or_never()).collect();
    let mut read = Box::pin(world.read(0, 1 << 20, Reader::Random));
    for _ in 0..10_000 {
        assert!(poll!(&mut read).is_pending(), "who has the shares waits");
        tokio::task::yield_now().await;
    }
    assert_nothing_is_held_back(&world, 3).await;
    drop(shares);
    tokio::select! {
        read = &mut read => panic!("nobody answers, and {read:?}"),
        () = bucket.asked() => {}
    }
    assert_nothing_is_held_back(&world, 4).await;
    bucket.speak(true);
    assert_eq!(timeout(PATIENCE, read).await.expect("the bucket answers").unwrap(), BLOCK);
}
