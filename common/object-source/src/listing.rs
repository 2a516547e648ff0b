//! One page of a listing: the document that S3 and the XML API of GCS share, and how keys become
//! names.

use std::sync::OnceLock;

use millrace_types::{FileName, Timestamp};
use percent_encoding::percent_decode_str;
use serde::Deserialize;

use crate::{
    Continuation, Entry, EntryKind, Error, KEY_LEN_MAX, LEFT_OUT_MAX, LeftOut, LeftOutReason,
    ObjectVersion, Page, Tag,
    object::{Place, reason_against},
    trial::Listed,
};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListBucketResult {
    /// Needed, so that another document is never taken for an empty listing.
    pub(crate) is_truncated: bool,
    #[serde(default)]
    pub(crate) contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    pub(crate) next_continuation_token: Option<String>,
    #[serde(default)]
    encoding_type: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Contents {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) last_modified: String,
    #[serde(rename = "ETag")]
    pub(crate) tag: Option<String>,
    /// GCS only.
    #[serde(default)]
    pub(crate) generation: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

/// Reads the document.
pub(crate) fn parse(answer: &[u8]) -> Result<ListBucketResult, Error> {
    let malformed = |error: &dyn std::fmt::Display| {
        Error::unavailable(format!("the bucket's listing is malformed: {error}"))
    };
    let text = std::str::from_utf8(answer).map_err(|error| malformed(&error))?;
    quick_xml::de::from_str(text).map_err(|error| malformed(&error))
}

/// Turns keys into names. Keys that are no names are counted, never an error: one odd key must not
/// hide a million others.
pub(crate) fn page(
    result: &ListBucketResult,
    prefix: &str,
    tag_of: fn(&Contents) -> Result<Tag, Error>,
) -> Result<Page, Error> {
    let token = result.next_continuation_token.as_ref().filter(|token| !token.is_empty());
    let next = match (result.is_truncated, token) {
        (false, _) => None,
        (true, Some(token)) => Some(Continuation(Place::Cursor(token.clone()))),
        // Never take it for the end: the names behind it would be missing here.
        (true, None) => {
            return Err(Error::unavailable("the bucket's listing goes on, and does not say where"));
        }
    };
    let mut found = Vec::with_capacity(result.contents.len() + result.common_prefixes.len());
    for contents in &result.contents {
        let key = result.decoded(&contents.key);
        if key == prefix && contents.size == 0 {
            continue;
        }
        found.push((key, EntryKind::Object(contents.version(tag_of)?)));
    }
    for common in &result.common_prefixes {
        found.push((result.decoded(&common.prefix), EntryKind::Directory));
    }
    Ok(names(found, prefix, next))
}

/// The objects of files among the keys of a page.
pub(crate) fn objects(
    result: &ListBucketResult,
    tag_of: fn(&Contents) -> Result<Tag, Error>,
) -> Result<Vec<Listed>, Error> {
    let keys = result.contents.iter().map(|contents| (result.decoded(&contents.key), contents));
    keys.filter(|(key, _)| Listed::is_object(key))
        .map(|(key, contents)| Ok(Listed { key, version: contents.version(tag_of)? }))
        .collect()
}

impl Contents {
    /// The version that is listed.
    pub(crate) fn version(
        &self,
        tag_of: fn(&Self) -> Result<Tag, Error>,
    ) -> Result<ObjectVersion, Error> {
        let modified = parse_time(&self.last_modified);
        Ok(ObjectVersion { tag: tag_of(self)?, size: self.size, modified })
    }
}

impl ListBucketResult {
    /// A key of this page as it is.
    pub(crate) fn decoded(&self, key: &str) -> String {
        decode(key, self.encoding_type.as_deref() == Some("url"))
    }

    /// What the first page of the keys that begin with `key` has of that very key.
    ///
    /// # Errors
    /// It is no such page, or says nothing and not that there is nothing.
    pub(crate) fn shown(&self, key: &str) -> Result<Option<&Contents>, Error> {
        let mut shown = None;
        for contents in &self.contents {
            let listed = self.decoded(&contents.key);
            if !listed.starts_with(key) {
                return Err(Error::unavailable("the bucket lists keys that were not asked for"));
            }
            if listed == key {
                shown = Some(contents);
            }
        }
        if self.contents.is_empty() && self.is_truncated {
            return Err(Error::unavailable("the bucket's listing begins with an empty page"));
        }
        Ok(shown)
    }

    /// Whether it has that very key.
    ///
    /// # Errors
    /// As [`Self::shown`].
    pub(crate) fn shows(&self, key: &str) -> Result<bool, Error> {
        Ok(self.shown(key)?.is_some())
    }
}

/// A page of what was found below a prefix, in order. An object that is the prefix itself marks the
/// directory: one that has bytes is found, too, and left out, since nobody could read them.
pub(crate) fn names(
    mut found: Vec<(String, EntryKind)>,
    prefix: &str,
    next: Option<Continuation>,
) -> Page {
    let mut page = Page { next, ..Page::default() };
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    for (key, kind) in found {
        let name = match &kind {
            EntryKind::Object(_) if key == prefix => Err(LeftOutReason::MarkWithBytes),
            _ => name_below(&key, prefix),
        };
        match name {
            Ok(name) => page.entries.push(Entry { name, kind }),
            Err(reason) => {
                page.skipped += 1;
                if page.left_out.len() < LEFT_OUT_MAX {
                    page.left_out.push(LeftOut { key, reason });
                }
            }
        }
    }
    page
}

/// The name that a key or common prefix has in the directory, if it can be one.
fn name_below(key: &str, prefix: &str) -> Result<FileName, LeftOutReason> {
    let name = key.strip_prefix(prefix).unwrap_or_default();
    let name = name.strip_suffix('/').unwrap_or(name);
    if let Some(reason) = reason_against(name) {
        return Err(reason);
    }
    // What is longer could not be asked for.
    if key.len() > KEY_LEN_MAX {
        return Err(LeftOutReason::TooLong);
    }
    // A slash in its middle: no answer to what was asked.
    FileName::parse(name.as_bytes()).map_err(|_| LeftOutReason::EmptyPart)
}

/// A key as it stands in a list that was asked for with `encoding-type=url`.
pub(crate) fn decode(key: &str, encoded: bool) -> String {
    if !encoded || !key.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return key.to_owned();
    }
    // Servers write a space as '+' or %20, and a plus always as %2B.
    percent_decode_str(&key.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// The time in a header, such as `Tue, 24 Nov 2026 11:45:59 GMT`.
pub(crate) fn header_time(text: &str) -> Timestamp {
    let parsed = jiff::fmt::rfc2822::parse(text).ok().map(|time| time.timestamp());
    time_or_1970(parsed, text)
}

/// A time as listings have it.
pub(crate) fn parse_time(text: &str) -> Timestamp {
    time_or_1970(text.parse().ok(), text)
}

fn time_or_1970(parsed: Option<jiff::Timestamp>, text: &str) -> Timestamp {
    let nanoseconds = parsed.and_then(|time| i64::try_from(time.as_nanosecond()).ok());
    Timestamp(nanoseconds.unwrap_or_else(|| {
        static TOLD: OnceLock<()> = OnceLock::new();
        TOLD.get_or_init(|| {
            tracing::warn!(time = text, "a bucket's time cannot be read: 1970 it is")
        });
        0
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>data</Name>
<Prefix>d/</Prefix><KeyCount>7</KeyCount><IsTruncated>true</IsTruncated>
<EncodingType>url</EncodingType><NextContinuationToken>t1</NextContinuationToken>
<Contents><Key>d/</Key><LastModified>2026-11-21T04:10:06.000Z</LastModified>
<ETag>&quot;0&quot;</ETag><Size>0</Size></Contents>
<CommonPrefixes><Prefix>d//</Prefix></CommonPrefixes>
<CommonPrefixes><Prefix>d/sub+dir/</Prefix></CommonPrefixes>
<Contents><Key>d/a%26b%2B%C3%BC</Key><LastModified>2026-11-21T04:10:06.5Z</LastModified>
<ETag>&#34;abc-2&#34;</ETag><Size>9</Size><StorageClass>STANDARD</StorageClass></Contents>
<Contents><Key>d/..</Key><LastModified>x</LastModified><ETag>"1"</ETag><Size>1</Size></Contents>
<Contents><Key>d/bell%07</Key><LastModified>x</LastModified>
<ETag>"1"</ETag><Size>1</Size></Contents>
</ListBucketResult>"#;

    fn tag_of(contents: &Contents) -> Result<Tag, Error> {
        Tag::new(contents.tag.clone().unwrap_or_default())
    }

    #[test]
    fn a_page_is_names_in_order_and_a_count_of_what_is_none() {
        let page = page(&parse(ANSWER.as_bytes()).unwrap(), "d/", tag_of).unwrap();
        let names: Vec<_> = page.entries.iter().map(|entry| entry.name.to_string()).collect();
        assert_eq!(names, ["a&b+\u{fc}", "sub dir"]);
        let EntryKind::Object(version) = &page.entries[0].kind else { panic!("an object") };
        assert_eq!((version.size, version.tag.as_str()), (9, "\"abc-2\""));
        assert_eq!(version.modified.subsec_nanoseconds(), 500_000_000);
        assert_eq!(page.entries[1].kind, EntryKind::Directory);
        let left_out: Vec<_> =
            page.left_out.iter().map(|out| (out.key.as_str(), out.reason)).collect();
        assert_eq!(page.skipped, 3);
        assert_eq!(
            left_out,
            [
                ("d/..", LeftOutReason::DotPart),
                ("d//", LeftOutReason::EmptyPart),
                ("d/bell\u{7}", LeftOutReason::ControlCharacter),
            ]
        );
        assert_eq!(page.next, Some(Continuation(Place::Cursor("t1".to_owned()))));
    }

    #[test]
    fn the_mark_of_a_directory_is_no_entry_and_one_with_bytes_is_left_out() {
        let marked = |size| {
            let answer = ANSWER.replacen("<Size>0</Size>", &format!("<Size>{size}</Size>"), 1);
            page(&parse(answer.as_bytes()).unwrap(), "d/", tag_of).unwrap()
        };
        let (empty, full) = (marked(0), marked(5));
        assert_eq!((full.skipped, &full.entries), (empty.skipped + 1, &empty.entries));
        let mark = LeftOut { key: "d/".to_owned(), reason: LeftOutReason::MarkWithBytes };
        assert_eq!(full.left_out, [&[mark], &empty.left_out[..]].concat());
    }

    #[test]
    fn a_page_that_is_not_the_last_and_names_no_next_one_is_an_error() {
        for token in ["", "<NextContinuationToken></NextContinuationToken>"] {
            let cut = ANSWER.replace("<NextContinuationToken>t1</NextContinuationToken>", token);
            assert!(page(&parse(cut.as_bytes()).unwrap(), "d/", tag_of).is_err(), "{token}");
        }
    }

    #[test]
    fn a_key_is_shown_or_surely_not() {
        let page = |keys: &[&str], more: bool| {
            let contents = keys.iter().map(|key| {
                format!(
                    "<Contents><Key>{key}</Key><Size>1</Size>\
                     <LastModified>2026-11-21T04:10:06Z</LastModified></Contents>"
                )
            });
            let contents: String = contents.collect();
            let text = format!(
                "<ListBucketResult><EncodingType>url</EncodingType>\
                 <IsTruncated>{more}</IsTruncated>{contents}</ListBucketResult>"
            );
            parse(text.as_bytes()).unwrap().shows("d/a+b")
        };
        assert_eq!(page(&["d/a%2Bb"], true), Ok(true));
        assert_eq!(page(&["d/a%2Bb-2"], true), Ok(false));
        assert_eq!(page(&["d/a%2Bb/x"], false), Ok(false));
        assert_eq!(page(&[], false), Ok(false));
        assert!(page(&[], true).is_err() && page(&["d/a"], false).is_err());
    }

    #[test]
    fn what_is_no_listing_is_an_error_and_no_empty_directory() {
        for bad in ["", "<html>login</html>", "{}", "<ListBucketResult><Contents><Size>x"] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
