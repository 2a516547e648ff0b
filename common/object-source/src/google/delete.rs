//! Deleting under a condition, and the uploads below a prefix that were begun and not ended.

use http::Method;

use super::{
    Google,
    read::{IF_GENERATION, known},
    upload::upload_id,
};
use crate::{
    BegunUpload, Continuation, Error, Tag, UploadsPage,
    listing::{parse, parse_time},
    object::cursor_of,
    parts::uploads_page,
    temporary,
};

/// What a continuation begins with once uploads are told and temporary objects come.
const OBJECTS: &str = "\nobjects\n";

impl Google {
    /// Deletes the object of this generation.
    pub(crate) async fn delete(&self, key: &str, tag: &Tag) -> Result<(), Error> {
        let ask = self.ask(Method::DELETE, key, &[]).with(IF_GENERATION, known(key, tag)?)?;
        match self.web.send(&ask).await {
            Ok(_) => Ok(()),
            // What is not there has no generation: HEAD says that it is not there.
            Err(Error::Changed { .. }) => {
                self.head_any(key).await?;
                Err(Error::Changed { key: key.to_owned() })
            }
            Err(error) => Err(error),
        }
    }

    /// First the uploads to temporary objects, then, from the listing of all keys, those objects
    /// that were to be published or deleted.
    pub(crate) async fn list_uploads_below(
        &self,
        prefix: &str,
        after: Option<&Continuation>,
    ) -> Result<UploadsPage, Error> {
        let cursor = cursor_of(after)?;
        if let Some(token) = cursor.and_then(|cursor| cursor.strip_prefix(OBJECTS)) {
            return self.temporary_below(prefix, token).await;
        }
        let (key, id) = cursor.and_then(|cursor| cursor.split_once('\n')).unwrap_or_default();
        let mut query = vec![("encoding-type", "url"), ("prefix", prefix), ("uploads", "")];
        if !key.is_empty() {
            query.extend([("key-marker", key), ("upload-id-marker", id)]);
        }
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let UploadsPage { uploads, next } = uploads_page(&answer, after)?;
        let uploads = uploads.into_iter().filter_map(|BegunUpload { key, upload, begun }| {
            let (key, id) = temporary::destination_of(&key)?;
            Some(BegunUpload { upload: upload_id(id, upload.as_str()).ok()?, key, begun })
        });
        let next = next.unwrap_or_else(|| Continuation::cursor(OBJECTS));
        Ok(UploadsPage { uploads: uploads.collect(), next: Some(next) })
    }

    async fn temporary_below(&self, prefix: &str, token: &str) -> Result<UploadsPage, Error> {
        let mut query = vec![("encoding-type", "url"), ("list-type", "2"), ("prefix", prefix)];
        if !token.is_empty() {
            query.push(("continuation-token", token));
        }
        let (_, answer) = self.web.send(&self.list_ask(&query)).await?;
        let result = parse(&answer)?;
        let mut uploads = Vec::new();
        for contents in &result.contents {
            let temporary = result.decoded(&contents.key);
            if let Some((key, id)) = temporary::destination_of(&temporary) {
                let begun = parse_time(&contents.last_modified);
                uploads.push(BegunUpload { upload: upload_id(id, "")?, key, begun });
            }
        }
        let next =
            result.next_continuation_token.filter(|next| result.is_truncated && next != token);
        Ok(UploadsPage {
            uploads,
            next: next.map(|next| Continuation::cursor(&format!("{OBJECTS}{next}"))),
        })
    }
}
