//! Deleting under a condition.

use http::{Method, header};

use super::Azure;
use crate::{Error, Tag};

impl Azure {
    /// Deletes the blob of this version.
    pub(crate) async fn delete(&self, key: &str, tag: &Tag) -> Result<(), Error> {
        let ask = self.ask(Method::DELETE, key, &[]);
        match self.web.send(&ask.with(header::IF_MATCH.as_str(), tag.as_str())?).await {
            Ok(_) => Ok(()),
            // What is not there has no tag: HEAD says that it is not there.
            Err(Error::Changed { .. }) => {
                self.head(key).await?;
                Err(Error::Changed { key: key.to_owned() })
            }
            Err(error) => Err(error),
        }
    }
}
