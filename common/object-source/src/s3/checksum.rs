//! Whether the bytes of an object are those that the bucket has.
//!
//! What is sent goes with its CRC32C, which the bucket compares with what arrives, and keeps. Not
//! every bucket takes that: one that refuses the headers is sent none any more. One that refuses
//! something else, such as a condition, is not sent the same bytes twice each time for that.
//!
//! What is fetched has checksums for whole objects only, never for ranges of them. Those that S3
//! tells are believed always, as its own clients believe them: most put objects with a CRC-32, and
//! S3 itself gives those that come without one a CRC-64. An entity tag is the MD5 of the bytes only
//! if the object was put whole and is not encrypted with a key of somebody's own, and some servers
//! have yet other tags that look the same: a mismatch with it is a reason to ask once more, and
//! proves nothing once it repeats.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use aws_lc_rs::digest::{SHA256, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use crc_fast::{CrcAlgorithm, checksum};
use http::{HeaderMap, HeaderValue};
use md5::{Digest as _, Md5};
use millrace_types::Crc32c;

use crate::{
    Error, Tag,
    digest::{crc32c, md5_of},
};

/// What an answer says of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They match a checksum of the bucket.
    Right,
    /// They have the MD5 that the entity tag is.
    Tagged,
    /// It has none that is known here.
    Unknown,
    /// They do not match its checksum.
    Wrong,
    /// They have this MD5, and the entity tag looks like another one.
    Unlike([u8; 16]),
}

/// A checksum that a bucket may tell of an object.
struct Sum {
    header: &'static str,
    /// In bytes.
    len: usize,
    /// Whether it costs more than a CRC, of which some 10 GB are done in a second.
    is_digest: bool,
    of: fn(&[u8]) -> Vec<u8>,
}

/// The first of these that is told is looked at. SHA-1 is left out: nobody puts objects with it
/// unless he is told to.
const SUMS: [Sum; 4] = [
    Sum {
        header: CRC32C,
        len: 4,
        is_digest: false,
        of: |bytes| Crc32c::of(bytes).0.to_be_bytes().to_vec(),
    },
    Sum {
        header: "x-amz-checksum-crc64nvme",
        len: 8,
        is_digest: false,
        of: |bytes| checksum(CrcAlgorithm::Crc64Nvme, bytes).to_be_bytes().to_vec(),
    },
    Sum {
        header: "x-amz-checksum-crc32",
        len: 4,
        is_digest: false,
        // The upper half is empty.
        of: |bytes| checksum(CrcAlgorithm::Crc32IsoHdlc, bytes).to_be_bytes()[4..].to_vec(),
    },
    Sum {
        header: "x-amz-checksum-sha256",
        len: 32,
        is_digest: true,
        of: |bytes| digest(&SHA256, bytes).as_ref().to_vec(),
    },
];

const CRC32C: &str = "x-amz-checksum-crc32c";
const KIND: &str = "x-amz-checksum-type";
const ALGORITHM: &str = "x-amz-checksum-algorithm";
const MODE: &str = "x-amz-checksum-mode";
/// One of the whole object, also of one that is put by parts.
const WHOLE: &str = "FULL_OBJECT";
/// What the names of all these headers begin with.
const PREFIX: &str = "x-amz-checksum";
/// S3 says this of a part with a checksum in an upload that was begun without.
const NOT_OF_THIS_UPLOAD: &str = "Checksum Type mismatch";
const ENCRYPTION: &str = "x-amz-server-side-encryption";
const CUSTOMER_KEY: &str = "x-amz-server-side-encryption-customer-algorithm";

/// Checks the bytes of a whole object; against a digest only if `digests` says so, since an MD5
/// costs as much CPU as the rest of the way of these bytes together, and a SHA-256 a third of that.
pub(super) fn verify(headers: &HeaderMap, tag: &Tag, digests: bool, bytes: &[u8]) -> Verdict {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    // That of an object put by parts may be one of the parts' checksums.
    let whole = text(KIND).is_none_or(|kind| kind == WHOLE);
    let told = |sum: &Sum| told_in(text(sum.header)?, sum.len);
    let mut used = SUMS.iter().filter(|sum| whole && (digests || !sum.is_digest));
    if let Some((sum, told)) = used.find_map(|sum| Some((sum, told(sum)?))) {
        return if told == (sum.of)(bytes) { Verdict::Right } else { Verdict::Wrong };
    }
    let plain =
        text(ENCRYPTION).is_none_or(|kind| kind == "AES256") && text(CUSTOMER_KEY).is_none();
    match md5_of(tag).filter(|_| plain && digests) {
        None => Verdict::Unknown,
        Some(told) => {
            let found: [u8; 16] = Md5::digest(bytes).into();
            if told == found { Verdict::Tagged } else { Verdict::Unlike(found) }
        }
    }
}

/// Requests that a bucket knows or not, whatever they are about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Sort {
    /// An object fetched whole.
    Get,
    /// An upload begun.
    Begin,
    /// A part of one.
    Part,
    /// An object stored whole.
    Put,
    /// The same, unless there is one.
    PutIfAbsent,
    /// The same, in the place of one version.
    PutIfMatches,
}

/// Whether a bucket takes checksums, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Checksums {
    are_refused: AtomicBool,
    /// What was last refused in the same words with checksums and without.
    refused_anyway: Mutex<HashMap<Sort, RefusedAnyway>>,
}

#[derive(Debug)]
struct RefusedAnyway {
    message: String,
    since: Instant,
}

/// For how long a bucket that refuses something anyway is not asked for it twice. It may be another
/// version of its server then.
const REFUSED_ANYWAY: Duration = Duration::from_secs(600);

impl Checksums {
    /// What comes of `with`, a request with checksums; of `without`, the same without, where the
    /// bucket takes none.
    pub(super) async fn either<T>(
        &self,
        sort: Sort,
        with: impl Future<Output = Result<T, Error>>,
        without: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        if self.are_refused.load(Ordering::Relaxed) {
            return without.await;
        }
        match with.await {
            Err(Error::Unsupported { message })
                if !self.is_refused_anyway(sort, &message, Instant::now()) =>
            {
                let answer = without.await;
                if answer.as_ref().is_err_and(|error| is_refusal(error, &message)) {
                    self.note_refused_anyway(sort, &message, Instant::now());
                }
                self.handle_refusal(&message, answer.is_ok());
                answer
            }
            answer => answer,
        }
    }

    /// Whether requests of this sort were refused in these words without checksums too.
    fn is_refused_anyway(&self, sort: Sort, message: &str, now: Instant) -> bool {
        let known = self.refused_anyway();
        known.get(&sort).is_some_and(|known| {
            known.message == message && now.duration_since(known.since) < REFUSED_ANYWAY
        })
    }

    fn note_refused_anyway(&self, sort: Sort, message: &str, now: Instant) {
        let refused = RefusedAnyway { message: message.to_owned(), since: now };
        self.refused_anyway().insert(sort, refused);
    }

    fn refused_anyway(&self) -> MutexGuard<'_, HashMap<Sort, RefusedAnyway>> {
        self.refused_anyway.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request with checksums was refused with this message. Not all servers say what it is that
    /// they do not know; those that then take the request without checksums have said it too.
    fn handle_refusal(&self, message: &str, is_taken_without: bool) {
        let is_of_checksums = message.contains(PREFIX) || is_taken_without;
        if is_of_checksums
            && !message.contains(NOT_OF_THIS_UPLOAD)
            && !self.are_refused.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%message, "the bucket takes no checksums: it is sent none from now on");
        }
    }
}

/// Whether an error says in these words that the bucket does not know something.
fn is_refusal(error: &Error, words: &str) -> bool {
    matches!(error, Error::Unsupported { message } if message == words)
}

/// Whether what a bucket says is that it takes no checksum, here or at all.
pub(super) fn is_refused_in(message: &str) -> bool {
    message.contains(PREFIX) || message.contains(NOT_OF_THIS_UPLOAD)
}

/// Headers that ask for the checksum of an object with its bytes.
pub(super) fn ask_for(headers: &mut HeaderMap) {
    headers.insert(MODE, HeaderValue::from_static("ENABLED"));
}

/// Headers that begin an upload whose parts come with checksums.
pub(super) fn begin(headers: &mut HeaderMap) {
    headers.insert(ALGORITHM, HeaderValue::from_static("CRC32C"));
    headers.insert(KIND, HeaderValue::from_static(WHOLE));
}

/// Headers that say what the bytes of a request have.
pub(super) fn tell(headers: &mut HeaderMap, checksum: Crc32c) {
    let value = HeaderValue::from_str(&text_of(checksum)).expect("Base64 is ASCII");
    headers.insert(CRC32C, value);
}

/// Checks what a bucket says to have stored.
pub(super) fn check_stored(headers: &HeaderMap, sent: Crc32c, key: &str) -> Result<(), Error> {
    match stored_in(headers) {
        Some(told) if told != sent => Err(Error::Damaged { key: key.to_owned() }),
        _ => Ok(()),
    }
}

/// The CRC32C that a bucket says to have stored.
pub(super) fn stored_in(headers: &HeaderMap) -> Option<Crc32c> {
    headers.get(CRC32C).and_then(|value| value.to_str().ok()).and_then(crc32c)
}

fn text_of(checksum: Crc32c) -> String {
    STANDARD.encode(checksum.0.to_be_bytes())
}

/// `None` for what is no checksum of a whole with `len` bytes, such as `4BytesInBase64==-3`.
fn told_in(text: &str, len: usize) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok().filter(|told| told.len() == len)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    const MD5_OF_HELLO: &str = "\"5d41402abc4b2a76b9719d911017c592\"";
    const CRC32C_OF_HELLO: &str = "mnG7TA==";

    fn of(tag: &str, headers: &[(&'static str, &'static str)], bytes: &[u8]) -> Verdict {
        let pair =
            |&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let headers: HeaderMap = headers.iter().map(pair).collect();
        verify(&headers, &Tag::new(tag).unwrap(), true, bytes)
    }

    #[test]
    fn what_is_refused_anyway_is_known_by_its_sort_and_words_and_not_for_ever() {
        let (checksums, begun) = (Checksums::default(), Instant::now());
        checksums.note_refused_anyway(Sort::PutIfAbsent, "no conditions", begun);
        let last = begun + REFUSED_ANYWAY - Duration::from_millis(1);
        let is_known = |sort, words, now| checksums.is_refused_anyway(sort, words, now);
        assert!(is_known(Sort::PutIfAbsent, "no conditions", last));
        assert!(!is_known(Sort::Put, "no conditions", last));
        assert!(!is_known(Sort::PutIfAbsent, "no checksums", last));
        assert!(!is_known(Sort::PutIfAbsent, "no conditions", begun + REFUSED_ANYWAY));
    }

    #[test]
    fn a_checksum_of_the_whole_decides() {
        let told = [(CRC32C, CRC32C_OF_HELLO)];
        assert_eq!(of("\"x\"", &told, b"hello"), Verdict::Right);
        assert_eq!(of(MD5_OF_HELLO, &told, b"hellp"), Verdict::Wrong);
        let whole = [(CRC32C, CRC32C_OF_HELLO), (KIND, "FULL_OBJECT")];
        assert_eq!(of("\"x\"", &whole, b"hellp"), Verdict::Wrong);
        let parts = [(CRC32C, CRC32C_OF_HELLO), (KIND, "COMPOSITE")];
        assert_eq!(of("\"x-2\"", &parts, b"hellp"), Verdict::Unknown);
        assert_eq!(of("\"x-2\"", &[(CRC32C, "mnG7TA==-2")], b"hellp"), Verdict::Unknown);
    }

    /// The check values of the catalogues, and of FIPS 180's example.
    #[test]
    fn every_kind_of_checksum_that_clients_put_is_looked_at() {
        let sha = ("x-amz-checksum-sha256", "ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0=");
        for (told, bytes) in [
            ((CRC32C, "4waSgw=="), b"123456789".as_slice()),
            (("x-amz-checksum-crc64nvme", "rosUhgp5mIg="), b"123456789"),
            (("x-amz-checksum-crc32", "y/Q5Jg=="), b"123456789"),
            (sha, b"abc"),
        ] {
            assert_eq!(of("\"x\"", &[told], bytes), Verdict::Right, "{told:?}");
            assert_eq!(of(MD5_OF_HELLO, &[told], b"hello"), Verdict::Wrong, "{told:?}");
            // One of a part, and another one's length.
            for text in [format!("{}-3", told.1), "rosU".to_owned()] {
                let text: &'static str = text.leak();
                assert_eq!(of("\"x\"", &[(told.0, text)], b"hello"), Verdict::Unknown, "{text}");
            }
        }
        // A digest is dear, and not looked at where nothing is damaged on the way.
        let headers = HeaderMap::from_iter([(
            HeaderName::from_static(sha.0),
            HeaderValue::from_static(sha.1),
        )]);
        let tag = Tag::new("\"x\"").unwrap();
        assert_eq!(verify(&headers, &tag, false, b"abd"), Verdict::Unknown);
    }

    #[test]
    fn a_tag_is_a_digest_only_where_it_can_be_one() {
        assert_eq!(of(MD5_OF_HELLO, &[], b"hello"), Verdict::Tagged);
        assert!(matches!(of(MD5_OF_HELLO, &[], b"hellp"), Verdict::Unlike(_)));
        assert_eq!(of(MD5_OF_HELLO, &[(ENCRYPTION, "aws:kms")], b"hellp"), Verdict::Unknown);
        assert_eq!(of(MD5_OF_HELLO, &[(CUSTOMER_KEY, "AES256")], b"hellp"), Verdict::Unknown);
        assert!(matches!(of(MD5_OF_HELLO, &[(ENCRYPTION, "AES256")], b"x"), Verdict::Unlike(_)));
        for tag in ["\"5d41402abc4b2a76b9719d911017c592-2\"", "\"abc\"", "5d41402a"] {
            assert_eq!(of(tag, &[], b"hellp"), Verdict::Unknown, "{tag}");
        }
        let tag = Tag::new(MD5_OF_HELLO).unwrap();
        assert_eq!(verify(&HeaderMap::new(), &tag, false, b"hellp"), Verdict::Unknown);
    }
}
