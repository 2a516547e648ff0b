//! Listing a directory: one page of the XML API's list with a delimiter.

use http::Method;

use super::{Google, answer};
use crate::{
    Continuation, Error, ObjectVersion, Page, Tag,
    listing::{self, Contents, ListBucketResult, parse},
    object::Place,
    temporary::is_temporary,
    web::Ask,
};

/// Keys of one look whether there are any: some may be what uploads left behind.
const LOOK_KEYS: &str = "16";

impl Google {
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
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let mut result = parse(&answer)?;
        without_temporary(&mut result);
        listing::page(&result, prefix, tag_of)
    }

    pub(crate) async fn has_below(&self, prefix: &str) -> Result<bool, Error> {
        let mut token = String::new();
        loop {
            let mut query = look(prefix);
            if !token.is_empty() {
                query.push(("continuation-token", &token));
            }
            let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
            let mut result = parse(&answer)?;
            without_temporary(&mut result);
            if !result.contents.is_empty() {
                return Ok(true);
            }
            match result.next_continuation_token.filter(|_| result.is_truncated) {
                Some(next) if !next.is_empty() && next != token => token = next,
                _ => return Ok(false),
            }
        }
    }

    /// Whether a listing shows this very key. It would be the first of those that begin with it.
    pub(crate) async fn lists(&self, key: &str) -> Result<bool, Error> {
        let (_, answer) = self.web.send(&self.list_ask(&look(key))).await?;
        let mut result = parse(&answer)?;
        without_temporary(&mut result);
        result.shows(key)
    }

    /// What a listing shows of this very key.
    pub(crate) async fn listed(&self, key: &str) -> Result<Option<ObjectVersion>, Error> {
        let (_, answer) = self.web.send(&self.list_ask(&look(key))).await?;
        let mut result = parse(&answer)?;
        without_temporary(&mut result);
        result.shown(key)?.map(|contents| contents.version(tag_of)).transpose()
    }

    /// All keys below a prefix that few have.
    pub(super) async fn few_below(&self, prefix: &str) -> Result<Vec<String>, Error> {
        let query = [("encoding-type", "url"), ("list-type", "2"), ("prefix", prefix)];
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let result = parse(&answer)?;
        Ok(result.contents.iter().map(|contents| result.decoded(&contents.key)).collect())
    }

    pub(super) fn list_ask(&self, query: &[(&str, &str)]) -> Ask {
        Ask::new(Method::GET, self.address.url(None, query), "")
    }
}

fn look(prefix: &str) -> Vec<(&'static str, &str)> {
    vec![("encoding-type", "url"), ("list-type", "2"), ("max-keys", LOOK_KEYS), ("prefix", prefix)]
}

fn without_temporary(result: &mut ListBucketResult) {
    let contents = std::mem::take(&mut result.contents);
    let kept =
        contents.into_iter().filter(|contents| !is_temporary(&result.decoded(&contents.key)));
    result.contents = kept.collect();
}

pub(super) fn tag_of(contents: &Contents) -> Result<Tag, Error> {
    answer::tag(contents.generation.as_deref())
}
