//! Who asks: an account's key, a shared access signature, what the environment has, or nobody.

use std::sync::Arc;

use object_store::{
    ClientOptions,
    azure::{
        AzureAccessKey, AzureConfigKey, AzureCredential, AzureCredentialProvider,
        MicrosoftAzureBuilder, split_sas,
    },
};

use crate::{
    ANONYMOUS, Error, LinkSpec, Settings,
    credentials::{Section, Values},
    metered::Connector,
    transport,
    web::retry_config,
};

/// The credentials, and the account if it is known.
#[derive(Debug)]
pub(super) struct Keys {
    account: Option<String>,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Requests carry none.
    Anonymous,
    /// The daemon's environment: a key, a signature, a principal or a managed identity.
    Environment(AzureCredentialProvider),
    /// A section of the credentials file.
    Section(Section<Account>),
}

/// What a section says.
#[derive(Debug)]
struct Account {
    name: String,
    credential: Arc<AzureCredential>,
}

const ACCOUNT: &str = "azure_storage_account_name";
const KEY: &str = "azure_storage_account_key";
const SIGNATURE: &str = "azure_storage_sas_token";

impl Keys {
    pub(super) fn open(
        spec: &LinkSpec,
        container: &str,
        settings: &Settings,
        options: &ClientOptions,
        connector: Connector,
    ) -> Result<Self, Error> {
        let environment = MicrosoftAzureBuilder::from_env();
        let variable = |key| environment.get_config_value(&key).filter(|text| !text.is_empty());
        let account = variable(AzureConfigKey::AccountName);
        match spec.credentials() {
            Some(ANONYMOUS) => Ok(Self { account, source: Source::Anonymous }),
            Some(section) => {
                let section = Section::open(settings, section, from_values)?;
                // Under another account there is another bucket: this one keeps to the first.
                let account = Some(section.current()?.name.clone());
                Ok(Self { account, source: Source::Section(section) })
            }
            None if variable(AzureConfigKey::SkipSignature).as_deref() == Some("true") => {
                Ok(Self { account, source: Source::Anonymous })
            }
            None => {
                let store = environment
                    // The address is found out here, and is none of the provider's business.
                    .with_account(account.as_deref().unwrap_or("unknown"))
                    .with_container_name(container)
                    .with_client_options(options.clone())
                    .with_retry(retry_config(settings))
                    .with_http_connector(connector)
                    .build()
                    // What a parser says may quote a key.
                    .map_err(|_| Error::Denied {
                        message: "the Azure credentials of this daemon's environment (AZURE_*) \
                                  cannot be used"
                            .to_owned(),
                    })?;
                let provider = Arc::clone(store.credentials());
                Ok(Self { account, source: Source::Environment(provider) })
            }
        }
    }

    /// The storage account, if anything names it.
    pub(super) fn account(&self) -> Option<&str> {
        self.account.as_deref()
    }

    /// What to sign a request with.
    pub(super) async fn credential(&self) -> Result<Option<Arc<AzureCredential>>, Error> {
        let provider = match &self.source {
            Source::Anonymous => return Ok(None),
            Source::Section(section) => {
                return Ok(Some(Arc::clone(&section.current()?.credential)));
            }
            Source::Environment(provider) => provider,
        };
        let got = provider.get_credential().await;
        got.map(Some).map_err(|error| transport::no_credentials(&error))
    }
}

fn from_values(values: &Values<'_>) -> Result<Account, Error> {
    let name = values.needed(ACCOUNT)?;
    let credential = match (values.value(KEY)?, values.value(SIGNATURE)?) {
        (Some(key), None) => AzureAccessKey::try_new(&key)
            .map(AzureCredential::AccessKey)
            .map_err(|_| values.wrong(&format!("has a {KEY} that is no base64")))?,
        (None, Some(signature)) => split_sas(&signature)
            .map(AzureCredential::SASToken)
            .map_err(|_| values.wrong(&format!("has a {SIGNATURE} that is none")))?,
        _ => return Err(values.wrong(&format!("needs either {KEY} or {SIGNATURE}"))),
    };
    Ok(Account { name, credential: Arc::new(credential) })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::TcpListener,
        thread,
    };

    use object_store::RetryConfig;
    use tokio::net::TcpSocket;

    use super::*;

    /// A server of tokens that says this to the first who asks.
    fn saying(status: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            let body = "{\"error\": \"invalid_grant\"}";
            let len = body.len();
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n{body}").unwrap();
            // Until the client has gone.
            drop(stream.read_to_end(&mut Vec::new()));
        });
        endpoint
    }

    /// What comes of asking such a server for a principal's token.
    async fn asked(endpoint: &str) -> Error {
        let store = MicrosoftAzureBuilder::new()
            .with_account("account")
            .with_container_name("data")
            .with_client_secret_authorization("id", "hunter2", "tenant")
            .with_authority_host(endpoint)
            .with_client_options(ClientOptions::new().with_allow_http(true))
            .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
            .build();
        let provider = Arc::clone(store.unwrap().credentials());
        let keys = Keys { account: None, source: Source::Environment(provider) };
        keys.credential().await.unwrap_err()
    }

    #[tokio::test]
    async fn a_server_of_tokens_that_is_away_or_busy_refuses_nothing() {
        // As long as it is bound, nobody else answers there.
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
        let closed = format!("http://{}", socket.local_addr().unwrap());
        let busy = ["503 Service Unavailable", "429 Too Many Requests", "500 Error"].map(saying);
        for endpoint in [&[closed][..], &busy].concat() {
            let error = asked(&endpoint).await;
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            assert!(error.to_string().contains("no credentials"), "{error}");
        }
        for status in ["400 Bad Request", "401 Unauthorized", "404 Not Found"] {
            let error = asked(&saying(status)).await;
            assert!(matches!(error, Error::Denied { .. }), "{status}: {error:?}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
    }
}
