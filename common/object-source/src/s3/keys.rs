//! S3's keys in a section of the credentials file.

use object_store::aws::AwsCredential;

use crate::{Error, credentials::Values};

/// `aws_access_key_id`, `aws_secret_access_key` and, for temporary ones, `aws_session_token`; the
/// `aws_` may be left out.
pub(crate) fn from_values(values: &Values<'_>) -> Result<AwsCredential, Error> {
    let value = |name: &str| match values.value(name)? {
        Some(short) => Ok(Some(short)),
        None => values.value(&format!("aws_{name}")),
    };
    let needed =
        |name: &str| value(name)?.ok_or_else(|| values.wrong(&format!("has no aws_{name}")));
    Ok(AwsCredential {
        key_id: needed("access_key_id")?,
        secret_key: needed("secret_access_key")?,
        token: value("session_token")?,
    })
}
