//! Whether this host can use the bucket: each step once.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};

use super::{
    S3,
    list::{list_ask, tag_of},
    signed::Ask,
};
use crate::{
    Error, Metadata, Settings,
    listing::{objects, parse},
    parts::uploads_page,
    trial::{Attempts, GIVER, LISTED_KEYS, Listed},
};

/// A version that no object has.
const NO_VERSION: HeaderValue = HeaderValue::from_static("\"millrace-check\"");

#[async_trait]
impl Attempts for S3 {
    const HINT: &'static str = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this daemon, \
                                name a section of its credentials file, or use the credentials \
                                'anonymous' for a public bucket";

    fn endpoint(&self) -> &str {
        self.address.endpoint()
    }

    fn giver(&self) -> &str {
        self.giver.as_deref().unwrap_or(GIVER)
    }

    fn settings(&self) -> &Settings {
        &self.settings
    }

    async fn try_credentials(&self) -> Result<(), Error> {
        self.signer.check_credentials().await
    }

    async fn try_list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        let query = vec![
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("max-keys", LISTED_KEYS),
            ("prefix", prefix),
        ];
        let answer = self.signer.send_once(&list_ask(query)).await?;
        objects(&parse(&answer)?, tag_of)
    }

    async fn try_read(&self, object: &Listed) -> Result<(), Error> {
        let sendable = |text: &str| {
            HeaderValue::from_str(text).map_err(|_| Error::invalid("a header that cannot be sent"))
        };
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_MATCH, sendable(object.version.tag.as_str())?);
        if let Some(range) = object.first_bytes() {
            headers.insert(header::RANGE, sendable(&range)?);
        }
        let (key, query, body) = (Some(object.key.as_str()), Vec::new(), Bytes::new());
        let ask = Ask { method: Method::GET, key, query, headers, body };
        self.signer.send_once(&ask).await.map(drop)
    }

    async fn try_upload(&self, key: &str) -> Result<(), Error> {
        let upload = self.create_upload(key, &Metadata::default()).await?;
        self.abort_upload(key, &upload).await
    }

    async fn try_list_uploads(&self, prefix: &str) -> Result<(), Error> {
        let query = vec![("encoding-type", "url"), ("prefix", prefix), ("uploads", "")];
        let answer = self.signer.send_once(&list_ask(query)).await?;
        uploads_page(&answer, None).map(drop)
    }

    /// On condition of a version, as objects are deleted. So where versions are kept no mark of the
    /// deletion is left of what was never there, but by servers that pass over the condition:
    /// theirs is taken away again, if that is allowed.
    async fn try_delete(&self, key: &str) -> Result<bool, Error> {
        let headers = HeaderMap::from_iter([(header::IF_MATCH, NO_VERSION)]);
        let (method, query, body) = (Method::DELETE, Vec::new(), Bytes::new());
        let ask = Ask { method, key: Some(key), query, headers, body };
        let headers = match self.signer.send_once_for_headers(&ask).await {
            Ok(headers) => headers,
            Err(Error::NotFound { .. } | Error::Changed { .. }) => return Ok(true),
            Err(Error::Unsupported { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
        if let (Some("true"), Some(version)) =
            (text("x-amz-delete-marker"), text("x-amz-version-id"))
        {
            let (query, headers) = (vec![("versionId", version)], HeaderMap::new());
            let ask = Ask { query, headers, ..ask };
            if let Err(error) = self.signer.send_once(&ask).await {
                tracing::debug!(key, %error, "the mark of a deletion stays behind");
            }
        }
        Ok(true)
    }
}
