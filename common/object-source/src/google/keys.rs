//! Who asks: a service account's key file, the environment's credentials, or nobody.

use std::sync::Arc;

use object_store::{
    ClientOptions,
    gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder, GoogleConfigKey},
};

use crate::{
    ANONYMOUS, Error, LinkSpec, Settings,
    credentials::{Section, Values},
    metered::Connector,
    transport,
    web::retry_config,
};

/// Where tokens come from.
#[derive(Debug)]
pub(super) enum Keys {
    /// Nowhere: requests carry none.
    Anonymous,
    /// The daemon's environment: a key file that it names, the file of `gcloud auth`, or the
    /// cloud's metadata server.
    Environment(GcpCredentialProvider),
    /// A key file that a section of the credentials file names.
    Section(Section<GcpCredentialProvider>),
}

/// The key of a section that names a service account's (or user's) JSON file.
const KEY_FILE: &str = "google_service_account";

impl Keys {
    pub(super) fn open(
        spec: &LinkSpec,
        bucket: &str,
        settings: &Settings,
        options: &ClientOptions,
        connector: Connector,
    ) -> Result<Self, Error> {
        let environment = GoogleCloudStorageBuilder::from_env();
        let skip = environment.get_config_value(&GoogleConfigKey::SkipSignature);
        let of_environment = spec.credentials().is_none();
        if spec.credentials() == Some(ANONYMOUS) || (of_environment && is_true(skip.as_deref())) {
            return Ok(Self::Anonymous);
        }
        let (options, retry) = (options.clone(), retry_config(settings));
        let bucket = bucket.to_owned();
        let provider = move |builder: GoogleCloudStorageBuilder| {
            let store = builder
                .with_bucket_name(&bucket)
                .with_client_options(options.clone())
                .with_retry(retry.clone())
                .with_http_connector(connector.clone())
                .build();
            store.map(|store| Arc::clone(store.credentials()))
        };
        let Some(section) = spec.credentials() else {
            // What a parser says may quote the file, and so a key: only where to look is told.
            let provider = provider(environment).map_err(|_| Error::Denied {
                message: "the Google credentials of this daemon's environment cannot be used: \
                          GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT must name the \
                          key file of a service account or user"
                    .to_owned(),
            })?;
            return Ok(Self::Environment(provider));
        };
        let make = move |values: &Values<'_>| {
            let (path, _) = values.file(KEY_FILE)?;
            let text = path.to_str().unwrap_or_default();
            let builder = GoogleCloudStorageBuilder::new().with_application_credentials(text);
            provider(builder).map_err(|_| {
                let path = path.display();
                values.wrong(&format!("names {path}, which is no key file of a service account"))
            })
        };
        Ok(Self::Section(Section::open(settings, section, make)?))
    }

    /// A token that is valid for a while yet.
    pub(super) async fn token(&self) -> Result<Option<String>, Error> {
        let provider = match self {
            Self::Anonymous => return Ok(None),
            Self::Environment(provider) => Arc::clone(provider),
            Self::Section(section) => Arc::clone(&*section.current()?),
        };
        let got = provider.get_credential().await;
        let credential = got.map_err(|error| transport::no_credentials(&error))?;
        Ok(Some(credential.bearer.clone()))
    }
}

fn is_true(value: Option<&str>) -> bool {
    matches!(value, Some("true" | "1"))
}

#[cfg(test)]
mod tests {
    use std::io;

    use async_trait::async_trait;
    use object_store::{
        CredentialProvider,
        client::{HttpError, HttpErrorKind},
        gcp::GcpCredential,
    };

    use super::*;

    /// Has no tokens.
    #[derive(Debug)]
    struct Without(HttpErrorKind);

    #[async_trait]
    impl CredentialProvider for Without {
        type Credential = GcpCredential;

        async fn get_credential(&self) -> object_store::Result<Arc<GcpCredential>> {
            let source = HttpError::new(self.0, io::Error::other("as it says"));
            Err(object_store::Error::Generic { store: "GCS", source: Box::new(source) })
        }
    }

    #[tokio::test]
    async fn a_metadata_server_that_is_away_for_a_moment_refuses_nothing() {
        for (kind, is_away) in [
            (HttpErrorKind::Connect, true),
            (HttpErrorKind::Timeout, true),
            (HttpErrorKind::Decode, false),
        ] {
            let error = Keys::Environment(Arc::new(Without(kind))).token().await.unwrap_err();
            assert_eq!(error.is_transient(), is_away, "{error:?}");
            assert_eq!(matches!(error, Error::Denied { .. }), !is_away, "{error:?}");
            assert!(error.to_string().contains("no credentials"), "{error}");
        }
    }
}
