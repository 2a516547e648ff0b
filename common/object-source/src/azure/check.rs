//! Whether this host can use the container: each step once.

use async_trait::async_trait;
use http::{Method, header};

use super::Azure;
use crate::{
    Error, Metadata, Settings,
    trial::{Attempts, Listed},
};

/// A version that no blob has.
const NO_VERSION: &str = "\"millrace-check\"";

#[async_trait]
impl Attempts for Azure {
    const HINT: &'static str = "set AZURE_STORAGE_ACCOUNT_KEY for this daemon, name a section of \
                                its credentials file, or use the credentials 'anonymous' for a \
                                public container";

    fn endpoint(&self) -> &str {
        self.address.base()
    }

    fn settings(&self) -> &Settings {
        self.web.settings()
    }

    async fn try_credentials(&self) -> Result<(), Error> {
        self.keys.credential().await.map(drop)
    }

    async fn try_list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        self.list_once(prefix).await
    }

    async fn try_read(&self, object: &Listed) -> Result<(), Error> {
        let ask = self.ask(Method::GET, &object.key, &[]);
        let ask = ask.with(header::IF_MATCH.as_str(), object.version.tag.as_str())?;
        let ask = match object.first_bytes() {
            Some(range) => ask.with(header::RANGE.as_str(), &range)?,
            None => ask,
        };
        self.web.send_once(&ask).await.map(drop)
    }

    async fn try_upload(&self, key: &str) -> Result<(), Error> {
        let upload = self.create_upload(key, &Metadata::default()).await?;
        self.abort_upload(key, &upload).await
    }

    /// Of what is not there nothing is left, with versions neither.
    async fn try_delete(&self, key: &str) -> Result<bool, Error> {
        let ask = self.ask(Method::DELETE, key, &[]);
        match self.web.send_once(&ask.with(header::IF_MATCH.as_str(), NO_VERSION)?).await {
            Ok(_) | Err(Error::NotFound { .. } | Error::Changed { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
