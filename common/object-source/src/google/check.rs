//! Whether this host can use the bucket: each step once.

use async_trait::async_trait;
use http::{Method, header};

use super::{
    Google,
    list::tag_of,
    read::{IF_GENERATION, known},
};
use crate::{
    Error, Metadata, Settings,
    listing::{objects, parse},
    parts::uploads_page,
    trial::{Attempts, LISTED_KEYS, Listed},
};

/// A generation that no object has.
const NO_GENERATION: &str = "1";

#[async_trait]
impl Attempts for Google {
    const HINT: &'static str = "set GOOGLE_APPLICATION_CREDENTIALS for this daemon, name a \
                                section of its credentials file, or use the credentials \
                                'anonymous' for a public bucket";

    fn endpoint(&self) -> &str {
        self.address.endpoint()
    }

    fn settings(&self) -> &Settings {
        self.web.settings()
    }

    async fn try_credentials(&self) -> Result<(), Error> {
        self.keys.token().await.map(drop)
    }

    async fn try_list(&self, prefix: &str) -> Result<Vec<Listed>, Error> {
        let query = [
            ("encoding-type", "url"),
            ("list-type", "2"),
            ("max-keys", LISTED_KEYS),
            ("prefix", prefix),
        ];
        let (_, answer) = self.web.send_once(&self.list_ask(&query)).await?;
        objects(&parse(&answer)?, tag_of)
    }

    async fn try_read(&self, object: &Listed) -> Result<(), Error> {
        let Listed { key, version } = object;
        let ask = self.ask(Method::GET, key, &[]).with(IF_GENERATION, known(key, &version.tag)?)?;
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

    async fn try_list_uploads(&self, prefix: &str) -> Result<(), Error> {
        let query = [("encoding-type", "url"), ("prefix", prefix), ("uploads", "")];
        let (_, answer) = self.web.send_once(&self.list_ask(&query)).await?;
        uploads_page(&answer, None).map(drop)
    }

    /// Of what is not there nothing is left, with versions neither.
    async fn try_delete(&self, key: &str) -> Result<bool, Error> {
        let ask = self.ask(Method::DELETE, key, &[]).with(IF_GENERATION, NO_GENERATION)?;
        match self.web.send_once(&ask).await {
            Ok(_) | Err(Error::NotFound { .. } | Error::Changed { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
