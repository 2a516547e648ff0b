//! Deleting under a condition.

use backon::Retryable;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, header};

use super::{S3, signed::Ask};
use crate::{Error, Tag};

impl S3 {
    /// Looks at the version, and deletes it on condition that it is still that one: of servers that
    /// pass over the condition, or know none, only the look is left.
    pub(crate) async fn delete(&self, key: &str, tag: &Tag) -> Result<(), Error> {
        let look = || async {
            let head = self.head(key).await?;
            match head.version.tag == *tag {
                true => Ok(tag.clone()),
                false => Err(Error::Changed { key: key.to_owned() }),
            }
        };
        self.delete_seen(key, look).await
    }

    /// Deletes the version that `look` sees. It looks again before each repetition: a deletion of
    /// which no answer came may be done, and another object be there since.
    ///
    /// # Errors
    /// Those of `look`, which repeats by itself what may pass.
    pub(super) async fn delete_seen<F>(
        &self,
        key: &str,
        look: impl Fn() -> F + Sync,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<Tag, Error>> + Send,
    {
        let once = || async {
            match look().await {
                Ok(tag) => self.delete_now(key, &tag).await.map(Ok),
                Err(error) => Ok(Err(error)),
            }
        };
        let again = self.signer.while_time_is(Error::is_transient);
        once.retry(self.signer.backoff()).when(again).await?
    }

    async fn delete_now(&self, key: &str, tag: &Tag) -> Result<(), Error> {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(tag.as_str());
        let value = value.map_err(|_| Error::invalid("an entity tag that cannot be sent"))?;
        headers.insert(header::IF_MATCH, value);
        match self.send_delete(key, headers).await {
            Err(Error::Unsupported { .. }) => self.send_delete(key, HeaderMap::new()).await,
            other => other,
        }
    }

    async fn send_delete(&self, key: &str, headers: HeaderMap) -> Result<(), Error> {
        let (query, body) = (Vec::new(), Bytes::new());
        let ask = Ask { method: Method::DELETE, key: Some(key), query, headers, body };
        self.signer.send_once(&ask).await.map(drop)
    }
}
