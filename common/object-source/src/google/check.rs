//! Whether this host can use the bucket, in words.

use tokio::time::{Instant, timeout_at};

use super::Google;
use crate::{
    Error,
    transport::{probe_key, with_hint},
};

impl Google {
    pub(crate) async fn check(&self, prefix: &str, write: bool) -> Result<(), Error> {
        let timeout = self.web.settings().check_timeout;
        let (deadline, seconds) = (Instant::now() + timeout, timeout.as_secs());
        let hint = "set GOOGLE_APPLICATION_CREDENTIALS for this daemon, name a section of its \
                    credentials file, or use the credentials 'anonymous' for a public bucket";
        // Without anything in the environment this asks the cloud's metadata server, which outside
        // of the cloud nobody answers.
        match timeout_at(deadline, self.keys.token()).await {
            Err(_) => {
                let message = format!("no credentials within {seconds} s: {hint}");
                return Err(Error::Denied { message });
            }
            Ok(Err(error)) => return Err(with_hint(error, hint)),
            Ok(Ok(_)) => {}
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
