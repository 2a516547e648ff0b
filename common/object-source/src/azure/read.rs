//! HEAD and ranges, each of one version.

use std::ops::Range;

use bytes::Bytes;
use futures::stream::BoxStream;
use http::{Method, header};

use super::{
    Azure,
    answer::{tag, tag_in},
    metadata::metadata_of,
};
use crate::{
    Error, Head, Metadata, ObjectVersion, Tag, listing::header_time, temporary::is_temporary,
};

impl Azure {
    pub(crate) async fn head(&self, key: &str) -> Result<Head, Error> {
        if is_temporary(key) {
            return Err(Error::NotFound { key: key.to_owned() });
        }
        let (headers, _) = self.web.send(&self.ask(Method::HEAD, key, &[])).await?;
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let size = text(header::CONTENT_LENGTH).and_then(|size| size.parse().ok());
        let version = ObjectVersion {
            tag: tag_in(&headers)?,
            size: size.ok_or_else(|| Error::unavailable("the container tells no size"))?,
            modified: header_time(text(header::LAST_MODIFIED).unwrap_or_default()),
        };
        Ok(Head { version, metadata: metadata_of(&headers) })
    }

    /// User metadata of any blob: of the one that marks a directory, or an upload.
    pub(crate) async fn head_directory(&self, prefix: &str) -> Result<Metadata, Error> {
        let (headers, _) = self.web.send(&self.ask(Method::HEAD, prefix, &[])).await?;
        Ok(metadata_of(&headers))
    }

    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: &Tag,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let ask = self.ask(Method::GET, key, &[]);
        let ask = ask.with(header::IF_MATCH.as_str(), if_match.as_str())?;
        let expected = if_match.clone();
        let is_version = move |headers: &http::HeaderMap| {
            let told = headers.get(header::ETAG).and_then(|value| value.to_str().ok());
            tag(told).is_ok_and(|told| told == expected)
        };
        match self.web.get_range(ask, range, is_version).await {
            // Azure says that the condition failed where there is no blob at all, too.
            Err(Error::Changed { .. }) => match self.head(key).await {
                Err(gone @ Error::NotFound { .. }) => Err(gone),
                _ => Err(Error::Changed { key: key.to_owned() }),
            },
            other => other,
        }
    }
}
