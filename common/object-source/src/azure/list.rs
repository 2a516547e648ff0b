//! Listing a directory: one page of List Blobs with a delimiter.

use http::Method;
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use super::{Azure, answer};
use crate::{
    BegunUpload, Continuation, EntryKind, Error, ObjectVersion, Page, UploadId, UploadsPage,
    listing::{self, header_time},
    object::cursor_of,
    temporary::{destination_of, is_temporary},
    trial::{LISTED_KEYS, Listed},
    web::Ask,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct EnumerationResults {
    /// Needed, so that another document is never taken for an empty listing.
    blobs: Blobs,
    #[serde(default)]
    next_marker: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Blobs {
    blob: Vec<Blob>,
    blob_prefix: Vec<BlobPrefix>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Blob {
    name: Name,
    properties: Properties,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct BlobPrefix {
    name: Name,
}

/// Percent-encoded if it holds what XML cannot.
#[derive(Debug, Deserialize)]
struct Name {
    #[serde(default, rename = "@Encoded")]
    encoded: bool,
    #[serde(default, rename = "$text")]
    text: String,
}

#[derive(Debug, Deserialize)]
struct Properties {
    #[serde(rename = "Last-Modified")]
    last_modified: String,
    #[serde(rename = "Etag", alias = "ETag")]
    tag: Option<String>,
    #[serde(rename = "Content-Length")]
    size: u64,
}

/// Blobs of one look whether there are any: some may be what uploads left behind.
const LOOK_BLOBS: &str = "16";

impl Name {
    fn decoded(&self) -> String {
        if self.encoded {
            percent_decode_str(&self.text).decode_utf8_lossy().into_owned()
        } else {
            self.text.clone()
        }
    }
}

impl Azure {
    pub(crate) async fn list_directory(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<Page, Error> {
        let mut query = vec![("delimiter", "/"), ("prefix", prefix)];
        if let Some(marker) = cursor_of(after)? {
            query.push(("marker", marker));
        }
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        page(parse(&answer)?, prefix)
    }

    pub(crate) async fn has_below(&self, prefix: &str) -> Result<bool, Error> {
        let mut marker = String::new();
        loop {
            let mut query = vec![("maxresults", LOOK_BLOBS), ("prefix", prefix)];
            if !marker.is_empty() {
                query.push(("marker", &marker));
            }
            let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
            let result = parse(&answer)?;
            if result.blobs.blob.iter().any(|blob| !is_temporary(&blob.name.decoded())) {
                return Ok(true);
            }
            // A page may be empty and not the last.
            if result.next_marker.is_empty() || result.next_marker == marker {
                return Ok(false);
            }
            marker = result.next_marker;
        }
    }

    /// What a listing shows of this very key. It would be the first of those that begin with it.
    pub(crate) async fn listed(&self, key: &str) -> Result<Option<ObjectVersion>, Error> {
        let mut marker = String::new();
        loop {
            let mut query = vec![("maxresults", LOOK_BLOBS), ("prefix", key)];
            if !marker.is_empty() {
                query.push(("marker", &marker));
            }
            let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
            let result = parse(&answer)?;
            let blobs = result.blobs.blob;
            // A page may be empty and not the last.
            let is_last = result.next_marker.is_empty() || result.next_marker == marker;
            if !blobs.is_empty() || is_last {
                let listed = blobs.iter().find(|blob| blob.name.decoded() == key);
                return listed.filter(|_| !is_temporary(key)).map(version_of).transpose();
            }
            marker = result.next_marker;
        }
    }

    /// Lists some blobs, once, without repeating: to see whether it is allowed.
    pub(super) async fn list_once(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        let query = [("maxresults", LISTED_KEYS), ("prefix", prefix)];
        let (_, answer) = self.web.send_once(&self.list_ask(&query)).await?;
        let blobs = parse(&answer)?.blobs.blob;
        let named = blobs.iter().map(|blob| (blob.name.decoded(), blob));
        named
            .filter(|(key, _)| Listed::is_object(key))
            .map(|(key, blob)| Ok(Listed { key, version: version_of(blob)? }))
            .collect()
    }

    /// All keys below a prefix that few have.
    pub(super) async fn few_below(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let (_, answer) = self.web.send(&self.list_ask(&[("prefix", prefix)])).await?;
        Ok(parse(&answer)?.blobs.blob.iter().map(|blob| blob.name.decoded()).collect())
    }

    /// The blobs that stand for uploads, of one page of all keys below a prefix.
    pub(crate) async fn list_uploads_below(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<UploadsPage, Error> {
        let mut query = vec![("prefix", prefix)];
        if let Some(marker) = cursor_of(after)? {
            query.push(("marker", marker));
        }
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let result = parse(&answer)?;
        let mut uploads = Vec::new();
        for blob in &result.blobs.blob {
            if let Some((key, id)) = destination_of(&blob.name.decoded()) {
                let begun = header_time(&blob.properties.last_modified);
                uploads.push(BegunUpload { upload: UploadId::new(id)?, key, begun });
            }
        }
        let next = next_of(&result.next_marker).filter(|next| Some(next) != after);
        Ok(UploadsPage { uploads, next })
    }

    fn list_ask(&self, query: &[(&str, &str)]) -> Ask {
        let query = [&[("restype", "container"), ("comp", "list")], query].concat();
        Ask::new(Method::GET, self.address.url(None, &query), "")
    }
}

fn parse(answer: &[u8]) -> Result<EnumerationResults, Error> {
    let answer = answer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(answer);
    quick_xml::de::from_reader(answer).map_err(|error| {
        Error::unavailable(format!("the container's listing is malformed: {error}"))
    })
}

fn page(result: EnumerationResults, prefix: &str) -> Result<Page, Error> {
    let mut found = Vec::with_capacity(result.blobs.blob.len() + result.blobs.blob_prefix.len());
    for blob in &result.blobs.blob {
        let key = blob.name.decoded();
        let is_mark = key == prefix && blob.properties.size == 0;
        if is_mark || is_temporary(&key) {
            continue;
        }
        found.push((key, EntryKind::Object(version_of(blob)?)));
    }
    for below in &result.blobs.blob_prefix {
        found.push((below.name.decoded(), EntryKind::Directory));
    }
    Ok(listing::names(found, prefix, next_of(&result.next_marker)))
}

fn version_of(blob: &Blob) -> Result<ObjectVersion, Error> {
    Ok(ObjectVersion {
        tag: answer::tag(blob.properties.tag.as_deref())?,
        size: blob.properties.size,
        modified: header_time(&blob.properties.last_modified),
    })
}

/// A page may be empty and not the last.
fn next_of(marker: &str) -> Option<Continuation> {
    (!marker.is_empty()).then(|| Continuation::cursor(marker))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LeftOutReason;

    const ANSWER: &str = "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?>\
<EnumerationResults ServiceEndpoint=\"https://a.blob.core.windows.net/\" ContainerName=\"c\">\
<Prefix>d/</Prefix><Delimiter>/</Delimiter><Blobs>\
<Blob><Name>d/a&amp;b+c</Name><Properties><Creation-Time>x</Creation-Time>\
<Last-Modified>Tue, 24 Nov 2026 11:45:59 GMT</Last-Modified><Etag>0x8DB</Etag>\
<Content-Length>9</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>\
<BlobPrefix><Name>d/sub dir/</Name></BlobPrefix>\
<Blob><Name Encoded=\"true\">d/bell%07</Name><Properties>\
<Last-Modified>Tue, 24 Nov 2026 11:45:59 GMT</Last-Modified><Etag>0x1</Etag>\
<Content-Length>1</Content-Length></Properties></Blob>\
<Blob><Name>d/.a.millrace-0123456789abcdef</Name><Properties>\
<Last-Modified>Tue, 24 Nov 2026 11:45:59 GMT</Last-Modified><Etag>0x1</Etag>\
<Content-Length>0</Content-Length></Properties></Blob>\
</Blobs><NextMarker>2!8</NextMarker></EnumerationResults>";

    #[test]
    fn a_page_is_names_in_order_and_a_count_of_what_is_none() {
        let page = page(parse(ANSWER.as_bytes()).unwrap(), "d/").unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
        assert_eq!(names, ["a&b+c", "sub dir"]);
        let EntryKind::Object(version) = &page.entries[0].kind else { panic!("an object") };
        assert_eq!((version.size, version.tag.as_str()), (9, "\"0x8DB\""));
        assert_eq!(version.modified.seconds(), 1_795_520_759);
        assert_eq!((page.skipped, page.left_out[0].key.as_str()), (1, "d/bell\u{7}"));
        assert_eq!(page.next, Some(Continuation::cursor("2!8")));
    }

    #[test]
    fn the_mark_of_a_directory_is_no_entry_and_one_with_bytes_is_left_out() {
        for (size, expected) in [(0, &[][..]), (7, &[("d/", LeftOutReason::MarkWithBytes)])] {
            let answer = format!(
                "<EnumerationResults><Blobs><Blob><Name>d/</Name><Properties>\
                 <Last-Modified>Tue, 24 Nov 2026 11:45:59 GMT</Last-Modified><Etag>0x1</Etag>\
                 <Content-Length>{size}</Content-Length></Properties></Blob></Blobs>\
                 <NextMarker/></EnumerationResults>"
            );
            let page = page(parse(answer.as_bytes()).unwrap(), "d/").unwrap();
            let told = page.left_out.iter().map(|out| (out.key.as_str(), out.reason));
            assert_eq!(told.collect::<Vec<_>>(), expected);
            assert_eq!((page.skipped, page.entries.len()), (expected.len() as u64, 0));
        }
    }

    #[test]
    fn what_is_no_listing_is_an_error_and_no_empty_directory() {
        for bad in ["", "<html>login</html>", "{}", "<EnumerationResults></EnumerationResults>"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
