//! Listing a directory: one page of ListObjectsV2 with a delimiter.

use bytes::Bytes;
use http::{HeaderMap, Method};

use super::{S3, answer, signed::Ask};
use crate::{
    Continuation, Error, ObjectVersion, Page, Tag,
    listing::{self, Contents, parse},
    object::Place,
};

impl S3 {
    pub(crate) async fn list_directory(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<Page, Error> {
        let mut query = vec![
            ("delimiter", "/"),
            // Keys may hold what XML cannot.
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("prefix", prefix),
        ];
        let behind;
        match after {
            None => {}
            Some(Continuation(Place::Cursor(token))) => query.push(("continuation-token", token)),
            Some(Continuation(Place::Behind(name))) => {
                behind = format!("{prefix}{name}");
                query.push(("start-after", &behind));
            }
        }
        let answer = self.signer.send(&list_ask(query)).await?;
        listing::page(&parse(&answer)?, prefix, tag_of)
    }

    pub(crate) async fn has_below(&self, prefix: &str) -> Result<bool, Error> {
        let answer = self.signer.send(&list_ask(one_below(prefix))).await?;
        Ok(!parse(&answer)?.contents.is_empty())
    }

    /// Whether a listing shows this very key. It would be the first of those that begin with it.
    pub(crate) async fn lists(&self, key: &str) -> Result<bool, Error> {
        let answer = self.signer.send(&list_ask(one_below(key))).await?;
        parse(&answer)?.shows(key)
    }

    /// What a listing shows of this very key.
    pub(crate) async fn listed(&self, key: &str) -> Result<Option<ObjectVersion>, Error> {
        let answer = self.signer.send(&list_ask(one_below(key))).await?;
        parse(&answer)?.shown(key)?.map(|contents| contents.version(tag_of)).transpose()
    }
}

fn one_below(prefix: &str) -> Vec<(&'static str, &str)> {
    vec![("encoding-type", "url"), ("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)]
}

pub(super) fn list_ask<'a>(query: Vec<(&'a str, &'a str)>) -> Ask<'a> {
    Ask { method: Method::GET, key: None, query, headers: HeaderMap::new(), body: Bytes::new() }
}

pub(super) fn tag_of(contents: &Contents) -> Result<Tag, Error> {
    answer::tag(contents.tag.as_deref())
}
