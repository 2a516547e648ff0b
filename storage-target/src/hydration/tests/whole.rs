//! Objects of at most a segment: they come whole and are held against the bucket's checksum,
//! wherever they are first read, so that no damaged byte is handed on or stored.

use std::{
    collections::VecDeque,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    thread,
};

use futures::FutureExt as _;
use millrace_object_source::{Tag, WHOLE_LEN_MAX};
use millrace_types::{KIB, Timestamp};

use super::*;

const LEN: usize = 300_000;
/// What is read first: in the middle, and no part of it is in the first block or the last one.
const MIDDLE: usize = 200_000;

/// A bucket of S3 over plain HTTP with one object; some answers have a bit that is not right.
#[derive(Clone)]
struct Damaging {
    endpoint: String,
    bytes: Arc<Vec<u8>>,
    flips: Arc<Mutex<VecDeque<usize>>>,
    /// Of each request whether it was for all of the object.
    asked: Arc<Mutex<Vec<bool>>>,
}

impl Damaging {
    fn start(bytes: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (flips, asked) = (Arc::default(), Arc::default());
        let bucket = Self { endpoint, bytes: Arc::new(bytes), flips, asked };
        let served = bucket.clone();
        // Ends with the process of the test.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let bucket = served.clone();
                thread::spawn(move || bucket.serve(stream.unwrap()));
            }
        });
        bucket
    }

    /// The next answers have another bit each at these bytes of the object.
    fn flip(&self, bytes: impl IntoIterator<Item = usize>) {
        self.flips.lock().unwrap().extend(bytes);
    }

    /// How often all of it was asked for; never a part.
    fn asked(&self) -> usize {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        assert!(asked.iter().all(|is_whole| *is_whole), "{asked:?}");
        asked.len()
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        loop {
            let head = lines.by_ref().map_while(Result::ok).take_while(|line| !line.is_empty());
            let head: Vec<_> = head.map(|line| line.to_ascii_lowercase()).collect();
            if head.is_empty() {
                return;
            }
            let told = head.iter().find_map(|line| line.strip_prefix("range: bytes="));
            let range = told.map(|range| {
                let (first, last) = range.split_once('-').unwrap();
                first.parse().unwrap()..last.parse::<usize>().unwrap() + 1
            });
            let (status, range) = match range {
                None => ("200 OK".to_owned(), 0..self.bytes.len()),
                Some(range) => {
                    let (first, last, all) = (range.start, range.end - 1, self.bytes.len());
                    let told = format!("Content-Range: bytes {first}-{last}/{all}");
                    (format!("206 Partial Content\r\n{told}"), range)
                }
            };
            let mut body = self.bytes.to_vec();
            if let Some(at) = self.flips.lock().unwrap().pop_front() {
                body[at] ^= 1;
            }
            let checksum = base64(Crc32c::of(&self.bytes).0);
            let answer = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"tag\"\r\n\
                 x-amz-checksum-crc32c: {checksum}\r\n\
                 Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n",
                range.len(),
            );
            self.asked.lock().unwrap().push(told.is_none());
            let sent = stream.write_all(answer.as_bytes());
            if sent.and_then(|()| stream.write_all(&body[range])).is_err() {
                return;
            }
        }
    }
}

/// Four bytes as S3 tells them: 32 bits are six digits of six, the last of four.
fn base64(word: u32) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(word) << 4;
    let digit = |at: u32| char::from(DIGITS[usize::try_from(bits >> (6 * at) & 63).unwrap()]);
    (0..6).rev().map(digit).chain(['=', '=']).collect()
}

async fn damaging(settings: Settings) -> (World, Damaging) {
    let bytes = object(LEN);
    let bucket = Damaging::start(bytes.clone());
    (at(bucket.endpoint.clone(), bytes, settings).await, bucket)
}

/// A file whose object is in a bucket of S3 at this address.
pub(super) async fn at(endpoint: String, bytes: Vec<u8>, settings: Settings) -> World {
    let link = cluster::Bucket {
        url: "s3://data".to_owned(),
        endpoint: Some(endpoint),
        region: None,
        credentials: Some("anonymous".to_owned()),
    };
    let tag = Tag::new("\"tag\"").unwrap();
    let version = ObjectVersion { tag, size: bytes.len() as u64, modified: Timestamp(0) };
    let nothing = tempfile::tempdir().unwrap();
    World::over(Links::new(settings), link, version, bytes, nothing).await
}

#[tokio::test]
async fn a_client_that_waits_for_a_bucket_is_told_of_before_that_answers() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    let asked = tokio::task::spawn_blocking(move || silent.accept().map(drop));
    let world = at(endpoint, object(LEN), Settings::default()).await;
    tokio::select! {
        read = world.read(MIDDLE, 4096, Reader::Export) => panic!("nobody answers, and {read:?}"),
        asked = asked => asked.unwrap().unwrap(),
    }
    assert!(world.misses.noted().now_or_never().is_none(), "an export is no client");
    tokio::select! {
        read = world.read(0, 4096, Reader::Random) => panic!("nobody answers, and {read:?}"),
        () = world.misses.noted() => {}
    }
}

#[tokio::test]
async fn a_small_object_is_fetched_once_wherever_it_is_first_read() {
    for reader in [Reader::Random, Reader::Sequential] {
        let world = World::with(object(LEN)).await;
        let reads = [MIDDLE, 0, LEN - 4096, MIDDLE].map(|start| world.read(start, 4096, reader));
        futures::future::try_join_all(reads).await.unwrap();
        for block in 0..5 {
            world.wait_until_stored(0, block).await;
        }
        assert_eq!(world.read(0, LEN, reader).await.unwrap(), 0);
        assert_eq!(world.store.hydrator().fetches(), 1);
        assert_eq!(world.store.hydrator().fetched_bytes(), LEN as u64);
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_a_small_object_is_noticed_that_is_first_read_in_its_middle() {
    for at in [0, MIDDLE + 100, LEN - 1] {
        let (world, bucket) = damaging(Settings::default()).await;
        bucket.flip([at]);
        world.read(MIDDLE, 4096, Reader::Random).await.unwrap();
        assert_eq!(bucket.asked(), 2, "byte {at}");
        for block in 0..5 {
            world.wait_until_stored(0, block).await;
        }
        assert_eq!(world.read(0, LEN, Reader::Random).await.unwrap(), 0);
        assert_eq!(bucket.asked(), 0);
    }
}

#[tokio::test]
async fn of_an_object_that_always_comes_damaged_nothing_is_handed_on_or_stored() {
    let (world, bucket) = damaging(Settings { retries_max: 1, ..Settings::default() }).await;
    bucket.flip([LEN - 1, 0]);
    // Not even what is the same in both answers.
    let failure = world.read(MIDDLE, 4096, Reader::Random).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::BucketUnavailable);
    assert_eq!((bucket.asked(), world.store.hydrator().fetched_bytes()), (2, 0));
    let snapshot = world.store.volume().snapshot(world.view(0).key, 0..5).await.unwrap();
    assert!((0..5).all(|block| snapshot.state(block) == BlockState::Absent));
}

#[tokio::test]
async fn what_is_missing_of_a_small_object_is_checked_with_the_rest_of_it() {
    let (mut world, bucket) = damaging(Settings::default()).await;
    let block = 64 * usize::try_from(KIB).unwrap();
    let request = world.write(block, vec![9; block]);
    world.store.write(&world.view(0), request, false).await.unwrap();
    world.bytes[block..2 * block].fill(9);
    assert_eq!(bucket.asked(), 0, "a whole block is written");
    bucket.flip([LEN - 1]);
    world.read(MIDDLE, 4096, Reader::Random).await.unwrap();
    assert_eq!(bucket.asked(), 2);
    world.read(0, LEN, Reader::Random).await.unwrap();
    let snapshot = world.store.volume().snapshot(world.view(0).key, 1..2).await.unwrap();
    assert_eq!(snapshot.state(1), BlockState::Written);

    // Of a file that was cut the bucket backs less than its object has.
    let (mut world, bucket) = damaging(Settings::default()).await;
    world.content.origin_length = 250_000;
    world.bytes.truncate(250_000);
    bucket.flip([LEN - 1]);
    world.read(MIDDLE, 60_000, Reader::Random).await.unwrap();
    assert_eq!(bucket.asked(), 2);
}

#[tokio::test]
async fn whole_are_objects_of_a_mebibyte_that_lie_in_one_chunk() {
    let world = World::with(object(LEN)).await;
    let whole = |size: u64, chunk_size: u64, index: u32| {
        let mut content = world.content.clone();
        content.layout =
            Layout::new(ChunkSize::new(chunk_size).unwrap(), 1, PoolId(0), 1, 0).unwrap();
        content.origin_length = size;
        content.origin.as_mut().unwrap().size = size;
        ChunkView::new(&content, ChunkIndex(index)).whole_object()
    };
    assert_eq!(whole(WHOLE_LEN_MAX, MIB, 0), Some(WHOLE_LEN_MAX));
    assert_eq!(whole(WHOLE_LEN_MAX + 1, 8 * MIB, 0), None);
    assert_eq!(whole(LEN as u64, 64 * KIB, 0), None);
    assert_eq!(whole(LEN as u64, 64 * KIB, 1), None);
}
