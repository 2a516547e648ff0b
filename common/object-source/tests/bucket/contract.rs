//! What every bucket must do.

use bytes::Bytes;
use futures::{TryStreamExt, stream};
use millrace_object_source::{
    BegunUpload, Bucket, Condition, Continuation, EntryKind, Error, Md5Sum, Metadata, Page,
    PartDigest, PartPlace, PosixAttributes, RequestClass, Tag, UploadId, UploadedPart,
    WHOLE_LEN_MAX,
};
use millrace_types::{Crc32c, MIB, Timestamp};

/// Runs every case. `bucket` and `other` are the same bucket, opened twice, as by two processes.
pub(crate) async fn holds(bucket: &Bucket, other: &Bucket, prefix: &str) {
    holds_but_for_uploads_that_are_over(bucket, other, prefix).await;
    uploads_that_are_over(bucket, prefix).await;
    streamed_parts_of_no_upload(bucket, prefix).await;
}

/// The same for a server that fails at parts of uploads that are over.
pub(crate) async fn holds_but_for_uploads_that_are_over(
    bucket: &Bucket,
    other: &Bucket,
    prefix: &str,
) {
    whole_objects(bucket, prefix).await;
    ranges(bucket, prefix).await;
    conditions(bucket, prefix).await;
    uploads(bucket, other, prefix).await;
    conditions_of_completion(bucket, prefix).await;
    listings(bucket, prefix).await;
    bad_keys(bucket).await;
    directories(bucket, prefix).await;
    deletions(bucket, prefix).await;
    streamed_parts(bucket, prefix).await;
    unfinished_uploads(bucket, prefix).await;
}

pub(crate) async fn read(bucket: &Bucket, key: &str, from: u64, to: u64, tag: &Tag) -> Vec<u8> {
    let body = bucket.get_range(key, from..to, tag).await.unwrap();
    let pieces: Vec<Bytes> = body.try_collect().await.unwrap();
    pieces.concat()
}

pub(crate) fn pattern(len: usize, seed: u8) -> Bytes {
    (0..251).cycle().take(len).map(|byte: u8| seed.wrapping_add(byte)).collect()
}

fn none() -> Metadata {
    Metadata::default()
}

async fn put(bucket: &Bucket, key: &str, body: &Bytes, condition: Condition) -> Result<Tag, Error> {
    let stored = bucket.put_small(key, vec![body.clone()], &none(), &condition).await;
    stored.map(|stored| stored.tag)
}

async fn whole_objects(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}whole/with space+\u{fc}&.bin");
    assert!(matches!(bucket.head(&key).await, Err(Error::NotFound { .. })));
    let attributes = PosixAttributes {
        mode: Some(0o100_640),
        uid: Some(1000),
        gid: Some(100),
        mtime: Some(Timestamp(1_595_002_920_123_456_789)),
    };
    let metadata = attributes.to_metadata(Some("export-1")).unwrap();
    let body = vec![pattern(1000, 1), pattern(500, 7)];
    let stored = bucket.put_small(&key, body.clone(), &metadata, &Condition::None).await;
    let tag = stored.unwrap().tag;
    let head = bucket.head(&key).await.unwrap();
    assert_eq!((head.version.size, &head.version.tag), (1500, &tag));
    assert_eq!(PosixAttributes::from_metadata(&head.metadata), attributes);
    assert_eq!(head.metadata.value("millrace-export-id"), Some("export-1"));
    assert_eq!(read(bucket, &key, 0, 1500, &tag).await, body.concat());
    assert_eq!(bucket.get_whole(&key, 1500, &tag).await.unwrap(), body.concat());
    let other = Tag::new("\"0123456789abcdef0123456789abcdef\"").unwrap();
    let changed = bucket.get_whole(&key, 1500, &other).await;
    assert!(matches!(changed, Err(Error::Changed { .. })), "{changed:?}");
    let absent = bucket.get_whole(&format!("{prefix}whole/absent"), 10, &tag).await;
    assert!(matches!(absent, Err(Error::NotFound { .. } | Error::Changed { .. })), "{absent:?}");
    assert!(bucket.get_whole(&key, WHOLE_LEN_MAX + 1, &tag).await.is_err());
    // An object may look like an answer of the server's own.
    let odd = format!("{prefix}whole/odd");
    let words = Bytes::from("<Error><Code>InternalError</Code></Error>");
    let tag = put(bucket, &odd, &words, Condition::None).await.unwrap();
    assert_eq!(bucket.get_whole(&odd, words.len() as u64, &tag).await.unwrap(), words);
    let empty = format!("{prefix}whole/empty");
    let tag = put(bucket, &empty, &Bytes::new(), Condition::None).await.unwrap();
    assert_eq!(bucket.head(&empty).await.unwrap().version.size, 0);
    assert!(read(bucket, &empty, 0, 0, &tag).await.is_empty());
}

async fn ranges(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}ranges");
    let len = 5 * MIB + 17;
    let body = pattern(usize::try_from(len).unwrap(), 3);
    let tag = put(bucket, &key, &body, Condition::None).await.unwrap();
    let received = bucket.counters().bytes_received();
    for (from, to) in [(0, 1), (1, 4097), (MIB - 1, 3 * MIB + 1), (len - 1, len), (0, len)] {
        let bytes = read(bucket, &key, from, to, &tag).await;
        let expected = &body[usize::try_from(from).unwrap()..usize::try_from(to).unwrap()];
        assert!(bytes == expected, "bytes {from} to {to}");
    }
    assert!(bucket.counters().bytes_received() - received > len);
    assert!(bucket.counters().requests(RequestClass::Get) >= 5);
    let missing = format!("{prefix}nothing");
    let result = bucket.get_range(&missing, 0..1, &tag).await;
    assert!(matches!(result, Err(Error::NotFound { .. })), "{result:?}");
    put(bucket, &key, &pattern(100, 9), Condition::None).await.unwrap();
    let result = bucket.get_range(&key, 0..10, &tag).await;
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
}

async fn conditions(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}conditions");
    let [one, two] = [pattern(10, 1), pattern(20, 2)];
    let stranger = Tag::new("\"00000000000000000000000000000000\"").unwrap();
    let result = put(bucket, &key, &one, Condition::Matches(stranger.clone())).await;
    assert!(matches!(result, Err(Error::Changed { .. } | Error::NotFound { .. })), "{result:?}");
    let tag = put(bucket, &key, &one, Condition::Absent).await.unwrap();
    let result = put(bucket, &key, &two, Condition::Absent).await;
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
    let result = put(bucket, &key, &two, Condition::Matches(stranger)).await;
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
    assert_eq!(read(bucket, &key, 0, 10, &tag).await, one);
    let tag = put(bucket, &key, &two, Condition::Matches(tag)).await.unwrap();
    assert_eq!(read(bucket, &key, 0, 20, &tag).await, two);
}

/// Two parts of 5 MiB and one of 10 bytes, sent out of order by two processes.
async fn upload(
    bucket: &Bucket,
    other: &Bucket,
    key: &str,
) -> (UploadId, Vec<UploadedPart>, Bytes) {
    let attributes = PosixAttributes { mode: Some(0o100_600), ..PosixAttributes::default() };
    let metadata = attributes.to_metadata(Some("export-2")).unwrap();
    let id = bucket.create_upload(key, &metadata).await.unwrap();
    let passed_on = UploadId::new(id.as_str()).unwrap();
    let len = usize::try_from(10 * MIB).unwrap() + 10;
    let body = pattern(len, 5);
    let cut = |from: u64, to: usize| body.slice(usize::try_from(from).unwrap()..to);
    let half = usize::try_from(5 * MIB).unwrap();
    let third = other.put_part(key, &passed_on, 3, 10 * MIB, vec![cut(10 * MIB, len)]);
    let third = third.await.unwrap();
    let second = bucket.put_part(key, &id, 2, 5 * MIB, vec![cut(5 * MIB, 2 * half)]);
    let second = second.await.unwrap();
    // A repeated part replaces the one before.
    bucket.put_part(key, &id, 1, 0, vec![pattern(half, 99)]).await.unwrap();
    let first = other.put_part(key, &passed_on, 1, 0, vec![cut(0, 100), cut(100, half)]);
    (id, vec![first.await.unwrap(), second, third], body)
}

async fn uploads(bucket: &Bucket, other: &Bucket, prefix: &str) {
    let key = format!("{prefix}deep/er/upload");
    let (id, parts, body) = upload(bucket, other, &key).await;
    match other.list_parts(&key, &id).await {
        Ok(listed) => {
            // What is told of the bytes is that of these bytes.
            let sent = [&body[10 << 20..], &body[5 << 20..10 << 20]];
            for (held, body) in listed.iter().rev().zip(sent) {
                let mut md5 = Md5Sum::default();
                md5.update(body);
                match held.digest {
                    Some(PartDigest::Md5(told)) => assert_eq!(told, md5.finish()),
                    Some(PartDigest::Crc32c(told)) => assert_eq!(told, Crc32c::of(body)),
                    None => {}
                }
            }
            let listed: Vec<_> = listed.into_iter().map(|held| held.part).collect();
            // The first was sent twice: a server may not know which counts.
            assert_eq!(listed[listed.len() - 2..], parts[1..]);
            assert!(listed.len() == 2 || listed == parts, "{listed:?}");
        }
        Err(error) => assert!(matches!(error, Error::Unsupported { .. }), "{error}"),
    }
    assert!(matches!(bucket.head(&key).await, Err(Error::NotFound { .. })), "not whole: not there");
    let tag = other.complete_upload(&key, &id, &parts, &Condition::Absent).await.unwrap();
    let head = bucket.head(&key).await.unwrap();
    assert_eq!((&head.version.tag, head.version.size), (&tag, body.len() as u64));
    assert_eq!(head.metadata.value("millrace-export-id"), Some("export-2"));
    assert_eq!(PosixAttributes::from_metadata(&head.metadata).mode, Some(0o100_600));
    assert!(read(bucket, &key, 0, body.len() as u64, &tag).await == body);
}

async fn conditions_of_completion(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}published");
    let before = put(bucket, &key, &pattern(10, 1), Condition::None).await.unwrap();
    let (id, parts, body) = upload(bucket, bucket, &key).await;
    let stranger = Tag::new("\"00000000000000000000000000000000\"").unwrap();
    for condition in [Condition::Absent, Condition::Matches(stranger)] {
        let result = bucket.complete_upload(&key, &id, &parts, &condition).await;
        assert!(matches!(result, Err(Error::Changed { .. })), "{condition:?}: {result:?}");
        assert_eq!(bucket.head(&key).await.unwrap().version.tag, before);
    }
    let condition = Condition::Matches(before);
    let tag = bucket.complete_upload(&key, &id, &parts, &condition).await.unwrap();
    assert!(read(bucket, &key, 0, body.len() as u64, &tag).await == body);
}

async fn uploads_that_are_over(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}given-up");
    assert!(bucket.list_uploads(&key).await.unwrap().is_empty());
    let id = bucket.create_upload(&key, &none()).await.unwrap();
    let longer = format!("{key}-too");
    let neighbour = bucket.create_upload(&longer, &none()).await.unwrap();
    assert_eq!(bucket.list_uploads(&key).await.unwrap(), std::slice::from_ref(&id));
    assert_eq!(bucket.list_uploads(&longer).await.unwrap(), std::slice::from_ref(&neighbour));
    bucket.abort_upload(&longer, &neighbour).await.unwrap();
    let part = bucket.put_part(&key, &id, 1, 0, vec![pattern(10, 1)]).await.unwrap();
    bucket.abort_upload(&key, &id).await.unwrap();
    assert!(bucket.list_uploads(&key).await.unwrap().is_empty());
    bucket.abort_upload(&key, &id).await.unwrap();
    let result = bucket.put_part(&key, &id, 2, 10, vec![pattern(10, 1)]).await;
    assert!(matches!(result, Err(Error::NoUpload { .. })), "{result:?}");
    let result = bucket.complete_upload(&key, &id, &[part], &Condition::None).await;
    assert!(matches!(result, Err(Error::NoUpload { .. })), "{result:?}");
    assert!(matches!(bucket.head(&key).await, Err(Error::NotFound { .. })));
}

async fn listings(bucket: &Bucket, prefix: &str) {
    let prefix = format!("{prefix}list/");
    let empty = bucket.list_directory(&prefix, None).await.unwrap();
    assert!(empty.entries.is_empty() && empty.next.is_none());
    assert!(!bucket.has_below(&prefix).await.unwrap());
    let names = ["a", "a-b", "z \u{fc}+&%41", "dir/x", "dir/y", "dir/sub/z", "b.txt"];
    for name in names {
        put(bucket, &format!("{prefix}{name}"), &pattern(7, 1), Condition::None).await.unwrap();
    }
    assert!(bucket.has_below(&prefix).await.unwrap());
    assert!(bucket.has_below(&format!("{prefix}dir/")).await.unwrap());
    let page = bucket.list_directory(&prefix, None).await.unwrap();
    let seen: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(seen, ["a", "a-b", "b.txt", "dir", "z \u{fc}+&%41"]);
    assert_eq!((page.skipped, &page.next), (0, &None));
    for entry in &page.entries {
        let name = entry.name.to_string();
        match &entry.kind {
            EntryKind::Directory => assert_eq!(name, "dir"),
            EntryKind::Object(version) => {
                let key = format!("{prefix}{name}");
                let head = bucket.head(&key).await.unwrap();
                assert_eq!((&head.version.tag, version.size), (&version.tag, 7), "{name}");
                assert_eq!(bucket.listed(&key).await.unwrap().as_ref(), Some(version), "{name}");
            }
        }
    }
    for name in ["b", "none"] {
        let listed = bucket.listed(&format!("{prefix}{name}")).await;
        assert_eq!(listed, Ok(None), "{name} is the beginning of a key, or nothing");
    }
    let page = bucket.list_directory(&format!("{prefix}dir/"), None).await.unwrap();
    let seen: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(seen, ["sub", "x", "y"]);
}

/// A listing of several pages names everything once and in order.
pub(crate) async fn pages(bucket: &Bucket, prefix: &str, count: usize) {
    let mut seen = Vec::new();
    let mut after = None;
    let mut pages = 0;
    loop {
        let page = bucket.list_directory(prefix, after.as_ref()).await.unwrap();
        seen.extend(page.entries.iter().map(|entry| entry.name.to_string()));
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert!(pages > 1, "one page holds all {count}");
    let expected: Vec<_> = (0..count).map(|at| format!("{at:06}")).collect();
    assert_eq!(seen, expected);
}

/// A listing begins behind any name, whether or not there is one: of names and directories in the
/// order of their keys.
pub(crate) async fn begins_behind_names(bucket: &Bucket, prefix: &str, count: usize) {
    assert!(bucket.lists_ranges());
    for (behind, first) in [("000500", 501), ("0005", 500), ("000500x", 501), ("1", count)] {
        let mut after = Some(Continuation::behind(behind));
        let mut seen = Vec::new();
        while let Some(place) = after {
            let page = bucket.list_directory(prefix, Some(&place)).await.unwrap();
            seen.extend(page.entries.iter().map(|entry| entry.name.to_string()));
            after = page.next;
        }
        let expected: Vec<_> = (first..count).map(|at| format!("{at:06}")).collect();
        assert_eq!(seen, expected, "behind {behind}");
    }
    let below = format!("{prefix}ranges/");
    for name in ["a", "b-c", "b/x", "b/y", "b0", "c/z"] {
        put(bucket, &format!("{below}{name}"), &pattern(1, 1), Condition::None).await.unwrap();
    }
    for (behind, expected) in [
        ("a", &["b-c", "b", "b0", "c"][..]),
        ("b", &["b-c", "b0", "c"]),
        ("b.", &["b0", "c"]),
        ("b00", &["c"]),
        ("d", &[]),
    ] {
        let page = bucket.list_directory(&below, Some(&Continuation::behind(behind))).await;
        let names = page.unwrap().entries;
        let mut names: Vec<_> = names.iter().map(|entry| entry.name.to_string()).collect();
        // As a key it lies behind these, as a name before them: servers differ.
        if behind.starts_with("b") {
            names.retain(|name| name != "b");
        }
        assert_eq!(names, expected, "behind {behind}");
    }
}

async fn directories(bucket: &Bucket, prefix: &str) {
    let marked = format!("{prefix}marked/");
    assert!(matches!(bucket.head_directory(&marked).await, Err(Error::NotFound { .. })));
    let pair = |value: &str| [("file-permissions".to_owned(), value.to_owned())];
    let first = Metadata::new(pair("040700")).unwrap();
    bucket.mark_directory(&marked, &first).await.unwrap();
    bucket.mark_directory(&marked, &Metadata::new(pair("040755")).unwrap()).await.unwrap();
    assert!(bucket.has_below(&marked).await.unwrap());
    assert_eq!(bucket.list_directory(&marked, None).await.unwrap(), Page::default());
    // Some servers keep the object and drop its metadata; none takes the second mark's.
    let kept = bucket.head_directory(&marked).await.unwrap();
    assert!(kept.value("file-permissions").is_none_or(|mode| mode == "040700"), "{kept:?}");
    let page = bucket.list_directory(prefix, None).await.unwrap();
    let entry = page.entries.iter().find(|entry| entry.name.as_bytes() == b"marked");
    assert_eq!(entry.unwrap().kind, EntryKind::Directory);
}

async fn bad_keys(bucket: &Bucket) {
    let long = "x".repeat(1025);
    for key in ["", "/a", "a/", "a//b", "a/../b", "./a", "a\nb", long.as_str()] {
        let result = bucket.head(key).await;
        assert!(matches!(result, Err(Error::Invalid { .. })), "{key:?}: {result:?}");
    }
    for prefix in ["a", "/", "a//", "../"] {
        let result = bucket.list_directory(prefix, None).await;
        assert!(matches!(result, Err(Error::Invalid { .. })), "{prefix:?}: {result:?}");
    }
}

async fn deletions(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}deleted/one");
    let first = put(bucket, &key, &pattern(100, 1), Condition::None).await.unwrap();
    let second = put(bucket, &key, &pattern(100, 2), Condition::None).await.unwrap();
    let refused = bucket.delete(&key, &first).await;
    assert!(matches!(refused, Err(Error::Changed { .. })), "{refused:?}");
    assert_eq!(bucket.head(&key).await.unwrap().version.tag, second, "it stands");
    bucket.delete(&key, &second).await.unwrap();
    assert!(matches!(bucket.head(&key).await, Err(Error::NotFound { .. })));
    bucket.delete(&key, &second).await.unwrap();
    // A mark goes, and only the mark.
    let directory = format!("{prefix}unmarked/");
    bucket.mark_directory(&directory, &none()).await.unwrap();
    assert!(bucket.head_directory(&directory).await.is_ok());
    assert!(bucket.unmark_directory(&directory).await.unwrap());
    assert!(matches!(bucket.head_directory(&directory).await, Err(Error::NotFound { .. })));
    assert!(bucket.unmark_directory(&directory).await.unwrap(), "gone already");
    let below = format!("{directory}object");
    put(bucket, &below, &pattern(10, 1), Condition::None).await.unwrap();
    bucket.unmark_directory(&directory).await.unwrap();
    assert!(bucket.head(&below).await.is_ok());
}

async fn streamed_parts(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}streamed");
    let sizes = [5 * MIB + 3, 2 * MIB + 1];
    let bodies = sizes.map(|len| pattern(usize::try_from(len).unwrap(), 9));
    let upload = bucket.create_upload(&key, &none()).await.unwrap();
    let mut parts = Vec::new();
    let mut offset = 0;
    for (number, body) in (1..).zip(&bodies) {
        let len = body.len() as u64;
        let place = PartPlace { number, offset, len };
        let read = || {
            let pieces: Vec<_> = body.chunks(1 << 20).map(Bytes::copy_from_slice).collect();
            stream::iter(pieces.into_iter().map(Ok))
        };
        parts.push(bucket.put_part_streamed(&key, &upload, place, read).await.unwrap());
        offset += len;
    }
    let condition = Condition::Absent;
    let tag = bucket.complete_upload(&key, &upload, &parts, &condition).await.unwrap();
    assert_eq!(read(bucket, &key, 0, offset, &tag).await, bodies.concat());
    // A body that ends early or fails is no part.
    let upload = bucket.create_upload(&key, &none()).await.unwrap();
    let place = PartPlace { number: 1, offset: 0, len: 10 };
    let short = || stream::iter([Ok(Bytes::from_static(b"short"))]);
    assert!(bucket.put_part_streamed(&key, &upload, place, short).await.is_err());
    let failing = || {
        let message = "a target is away".to_owned();
        stream::iter([Ok(Bytes::from_static(b"01234")), Err(Error::Invalid { message })])
    };
    assert!(bucket.put_part_streamed(&key, &upload, place, failing).await.is_err());
    bucket.abort_upload(&key, &upload).await.unwrap();
}

async fn streamed_parts_of_no_upload(bucket: &Bucket, prefix: &str) {
    let key = format!("{prefix}streamed-late");
    let upload = bucket.create_upload(&key, &none()).await.unwrap();
    bucket.abort_upload(&key, &upload).await.unwrap();
    let place = PartPlace { number: 1, offset: 0, len: 10 };
    let whole = || stream::iter([Ok(Bytes::from_static(b"0123456789"))]);
    let over = bucket.put_part_streamed(&key, &upload, place, whole).await;
    assert!(matches!(over, Err(Error::NoUpload { .. })), "{over:?}");
}

async fn unfinished_uploads(bucket: &Bucket, prefix: &str) {
    let below = format!("{prefix}unfinished/");
    // SeaweedFS encodes blanks and leaves a `+` as it is, which then reads as a blank.
    let keys = ["a", "b/c d \u{fc}"].map(|name| format!("{below}{name}"));
    let mut begun = Vec::new();
    for key in &keys {
        begun.push((key.clone(), bucket.create_upload(key, &none()).await.unwrap()));
    }
    let listed = uploads_below(bucket, &below).await;
    let mut found: Vec<_> =
        listed.iter().map(|one| (one.key.clone(), one.upload.clone())).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(found, begun);
    assert!(listed.iter().all(|one| one.begun > Timestamp(0)), "{listed:?}");
    for (key, upload) in &begun {
        bucket.abort_upload(key, upload).await.unwrap();
    }
    assert!(uploads_below(bucket, &below).await.is_empty());
}

async fn uploads_below(bucket: &Bucket, prefix: &str) -> Vec<BegunUpload> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = bucket.list_uploads_below(prefix, after.as_ref()).await.unwrap();
        found.extend(page.uploads);
        match page.next {
            Some(next) => after = Some(next),
            None => return found,
        }
    }
}
