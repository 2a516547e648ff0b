//! Whether this host can use the bucket, in words.

use tokio::time::{Instant, timeout_at};

use super::S3;
use crate::{Error, transport::probe_key};

impl S3 {
    pub(crate) async fn check(&self, prefix: &str, write: bool) -> Result<(), Error> {
        let deadline = Instant::now() + self.settings.check_timeout;
        let seconds = self.settings.check_timeout.as_secs();
        let no_credentials = || Error::Denied {
            message: format!(
                "no credentials within {seconds} s: set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY for this daemon, name a section of its credentials file, \
                 or use the credentials 'anonymous' for a public bucket"
            ),
        };
        // Without anything in the environment this asks the cloud's metadata service, which outside
        // of the cloud nobody answers.
        match timeout_at(deadline, self.signer.check_credentials()).await {
            Err(_) => return Err(no_credentials()),
            Ok(Err(Error::Denied { message })) => {
                let hint = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this daemon, or \
                            name a section of its credentials file";
                return Err(Error::Denied { message: format!("{message}: {hint}") });
            }
            Ok(other) => other?,
        }
        let work = async {
            self.try_list(prefix).await?;
            if write {
                self.try_upload(&probe_key(prefix)).await?;
            }
            Ok(())
        };
        timeout_at(deadline, work).await.map_err(|_| {
            Error::unavailable(format!(
                "cannot reach {}: no answer within {seconds} s: check the address, routes and \
                 firewalls",
                self.address.endpoint()
            ))
        })?
    }
}
