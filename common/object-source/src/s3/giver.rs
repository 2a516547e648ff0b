//! Who gives the keys where no section of a file has them, and what is said when they do not come.

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use object_store::{
    CredentialProvider,
    aws::{AmazonS3Builder, AmazonS3ConfigKey as Key, AwsCredential, AwsCredentialProvider},
    client::{HttpError, HttpErrorKind},
};

use crate::{Error, transport};

/// A service that gives keys for some hours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Giver {
    /// What it is, and what names it in the environment.
    name: &'static str,
    endpoint: String,
}

/// Where AWS has it.
const INSTANCE_METADATA: &str = "http://169.254.169.254";

/// Where AWS has that of a task's container.
const TASK_CREDENTIALS: &str = "http://169.254.170.2";

impl Giver {
    /// Whom object_store asks, in its order; nobody where the environment itself has keys.
    ///
    /// # Errors
    /// [`Error::Denied`] where it has half of them.
    pub(super) fn of(environment: &AmazonS3Builder, region: &str) -> Result<Option<Self>, Error> {
        let variable = |key| environment.get_config_value(&key);
        let half = |has: &str, has_not: &str| Error::Denied {
            message: format!("the environment has {has} and no {has_not}: set both or neither"),
        };
        match (variable(Key::AccessKeyId), variable(Key::SecretAccessKey)) {
            (Some(_), Some(_)) => return Ok(None),
            (Some(_), None) => return Err(half("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
            (None, Some(_)) => return Err(half("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID")),
            (None, None) => {}
        }
        let (file, role) = (variable(Key::WebIdentityTokenFile), variable(Key::RoleArn));
        let (uri, token) = (
            variable(Key::ContainerCredentialsFullUri),
            variable(Key::ContainerAuthorizationTokenFile),
        );
        let (name, endpoint) = if let (Some(_), Some(_)) = (file, role) {
            let endpoint = variable(Key::StsEndpoint);
            let endpoint =
                endpoint.unwrap_or_else(|| format!("https://sts.{region}.amazonaws.com"));
            ("the STS of the web identity (AWS_WEB_IDENTITY_TOKEN_FILE)", endpoint)
        } else if let Some(path) = variable(Key::ContainerCredentialsRelativeUri) {
            let endpoint = format!("{TASK_CREDENTIALS}{path}");
            ("the container's credentials (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI)", endpoint)
        } else if let (Some(uri), Some(_)) = (uri, token) {
            ("the container's credentials (AWS_CONTAINER_CREDENTIALS_FULL_URI)", uri)
        } else {
            let endpoint = variable(Key::MetadataEndpoint);
            let endpoint = endpoint.unwrap_or_else(|| INSTANCE_METADATA.to_owned());
            ("the instance metadata service", endpoint)
        };
        Ok(Some(Self { name, endpoint }))
    }

    /// Why there are no keys. Nothing is quoted of what came instead: it may be half of a key.
    fn failed(&self, error: &object_store::Error) -> Error {
        let words = |why: &str| format!("no credentials from {self}: {why}");
        if let Some(error) = transport::cause::<HttpError>(error) {
            if error.kind() == HttpErrorKind::Decode {
                return Error::Denied { message: words(NO_KEYS) };
            }
            let why = transport::why(error, &self.endpoint);
            return Error::unavailable(words(&why));
        }
        let refused = transport::causes(error).find_map(transport::told_status);
        if let Some((status, body)) = refused {
            let code = code_in(&body).map_or_else(String::new, |code| format!(" ({code})"));
            let why = words(&format!("it answers {status}{code}"));
            return match transport::is_passing(status) {
                true => Error::unavailable(why),
                false => Error::Denied { message: why },
            };
        }
        let why = transport::innermost(error);
        let is_malformed = why.starts_with("Invalid AssumeRoleWithWebIdentity response");
        Error::Denied { message: words(if is_malformed { NO_KEYS } else { &why }) }
    }
}

const NO_KEYS: &str = "what it answers is none";

impl fmt::Display for Giver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.name, self.endpoint)
    }
}

/// Keys that a giver gives: its name stands in the error where they do not come.
#[derive(Debug)]
pub(super) struct Given {
    pub(super) giver: Giver,
    pub(super) provider: AwsCredentialProvider,
}

#[async_trait]
impl CredentialProvider for Given {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let got = self.provider.get_credential().await;
        got.map_err(|error| object_store::Error::Unauthenticated {
            path: self.giver.name.to_owned(),
            source: Box::new(self.giver.failed(&error)),
        })
    }
}

/// The code of an error document, as far as it is a word: STS says of a token with one what is
/// wrong with it, and its sentences may quote the token.
fn code_in(body: &str) -> Option<&str> {
    let (_, rest) = body.split_once("<Code>")?;
    let (code, _) = rest.split_once("</Code>")?;
    let is_word = code.len() <= CODE_LEN_MAX && code.bytes().all(|byte| byte.is_ascii_alphabetic());
    is_word.then_some(code)
}

/// The longest code of STS has half of it.
const CODE_LEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn giver(settings: &[(&str, &str)]) -> Result<Option<String>, Error> {
        let mut environment = AmazonS3Builder::new();
        for (name, value) in settings {
            environment = environment.with_config(name.parse().unwrap(), *value);
        }
        Ok(Giver::of(&environment, "eu-west-3")?.map(|giver| giver.to_string()))
    }

    #[test]
    fn who_is_asked_is_who_is_told() {
        let instance = "the instance metadata service at ";
        let web = [("aws_web_identity_token_file", "/t"), ("aws_role_arn", "arn:r")];
        let pod = [
            ("aws_container_credentials_full_uri", "http://169.254.170.23/v1/credentials"),
            ("aws_container_authorization_token_file", "/t"),
        ];
        for (settings, expected) in [
            (&[][..], format!("{instance}http://169.254.169.254")),
            (&[("aws_metadata_endpoint", "http://h:1")], format!("{instance}http://h:1")),
            // Half of a web identity is none.
            (&web[..1], format!("{instance}http://169.254.169.254")),
            (
                &web,
                "the STS of the web identity (AWS_WEB_IDENTITY_TOKEN_FILE) at \
                 https://sts.eu-west-3.amazonaws.com"
                    .to_owned(),
            ),
            (
                &[web[0], web[1], ("aws_endpoint_url_sts", "https://h:1")],
                "the STS of the web identity (AWS_WEB_IDENTITY_TOKEN_FILE) at https://h:1"
                    .to_owned(),
            ),
            (
                &[("aws_container_credentials_relative_uri", "/v2/credentials/x")],
                "the container's credentials (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI) at \
                 http://169.254.170.2/v2/credentials/x"
                    .to_owned(),
            ),
            (
                &pod,
                "the container's credentials (AWS_CONTAINER_CREDENTIALS_FULL_URI) at \
                 http://169.254.170.23/v1/credentials"
                    .to_owned(),
            ),
        ] {
            assert_eq!(giver(settings), Ok(Some(expected)), "{settings:?}");
        }
        let own =
            [("aws_access_key_id", "AK"), ("aws_secret_access_key", "hunter2"), web[0], web[1]];
        assert_eq!(giver(&own), Ok(None));
        for half in &own[..2] {
            let said = giver(&[*half]).unwrap_err().to_string();
            assert!(said.contains("AWS_ACCESS_KEY_ID") && said.contains("both"), "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
    }

    #[test]
    fn the_code_of_a_refusal_is_told_and_its_sentence_is_not() {
        let body = "400 Bad Request: <ErrorResponse><Error><Code>InvalidIdentityToken</Code>\
                    <Message>Value 'hunter2' at 'webIdentityToken'</Message></Error>";
        assert_eq!(code_in(body), Some("InvalidIdentityToken"));
        assert_eq!(code_in("<Code>hunter2/</Code>"), None);
        assert_eq!(code_in("<Code>cut"), None);
    }
}
