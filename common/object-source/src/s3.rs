//! S3 and what speaks its protocol.
//!
//! Ranges are read through object_store. Signed here, with its authorizer, is what it cannot send:
//! listing with keys that are no paths (it fails the whole page), bytes with their CRC32C,
//! completion under a condition, and the list of an upload's parts. See
//! `docs/decisions/0010-s3-requests-signed-here.md`.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderValue};
use object_store::{
    Attribute, GetOptions, GetRange, ObjectStore,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider},
    client::HttpConnector,
    path::Path,
};

use self::{
    address::Address,
    checksum::Checksums,
    giver::{Given, Giver},
    signed::Signer,
    stream::Streamer,
    whole::Tags,
};
use crate::{
    ANONYMOUS, Counters, Error, Head, LinkSpec, Metadata, ObjectVersion, Settings, Tag,
    credentials::Section,
    limits::Requests,
    metered::{Connector, Wire, classify},
    web::{client_options, retry_config},
};

mod address;
mod answer;
mod check;
mod checksum;
mod delete;
mod directory;
mod giver;
pub(crate) mod keys;
mod list;
mod purpose;
mod put;
mod signed;
mod stream;
mod upload;
mod whole;

/// One bucket behind one endpoint.
#[derive(Debug)]
pub(crate) struct S3 {
    store: AmazonS3,
    signer: Signer,
    streamer: Streamer,
    address: Address,
    /// Who gives the keys, if not the environment or a file.
    giver: Option<String>,
    settings: Settings,
    tags: Tags,
    /// Of what is stored, and of what is fetched.
    checksums: Checksums,
    told_checksums: Checksums,
    /// Headers of what is stored.
    encryption: HeaderMap,
}

impl S3 {
    pub(crate) fn open(
        spec: &LinkSpec,
        bucket: &str,
        settings: &Settings,
        counters: Arc<Counters>,
        requests: Arc<Requests>,
    ) -> Result<Self, Error> {
        let environment = AmazonS3Builder::from_env();
        let encryption = encryption_of(&environment)?;
        let address = Address::new(spec, bucket, &environment)?;
        let options = client_options(settings, address.is_plain_http());
        let (authority, patience) = (address.authority().to_owned(), settings.read_timeout);
        let wire = Wire::new(authority, counters, requests, classify, patience);
        let streamer = Streamer::new(settings, wire.clone(), address.is_plain_http());
        let connector = Connector::new(wire);
        let client = connector.connect(&options).map_err(|error| answer::translate(error, ""))?;
        let anonymous = is_anonymous(spec, &environment);
        let mut builder = environment
            .with_config(AmazonS3ConfigKey::S3Endpoint, address.endpoint())
            .with_region(address.region())
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(false)
            .with_s3_express(false)
            .with_skip_signature(anonymous)
            // TLS already guards the payload; over plain HTTP its digest is signed instead.
            .with_unsigned_payload(!address.is_plain_http())
            .with_client_options(options)
            .with_retry(retry_config(settings))
            .with_http_connector(connector);
        let mut giver = None;
        if let Some(section) = spec.credentials().filter(|_| !anonymous) {
            builder = builder.with_credentials(named(settings, section)?);
        } else if !anonymous && let Some(asked) = Giver::of(&builder, address.region())? {
            let given = builder.clone().build().map_err(|error| answer::translate(error, ""))?;
            let provider = Arc::clone(given.credentials());
            let given = Given { giver: asked.clone(), provider };
            builder = builder.with_credentials(Arc::new(given));
            giver = Some(asked.to_string());
        }
        let store = builder.build().map_err(|error| answer::translate(error, ""))?;
        let credentials = (!anonymous).then(|| Arc::clone(store.credentials()));
        let signer = Signer::new(client, credentials, address.clone(), settings);
        let told_checksums = Checksums::default();
        let (settings, tags, checksums) = (settings.clone(), Tags::default(), Checksums::default());
        Ok(Self {
            store,
            signer,
            streamer,
            address,
            giver,
            settings,
            tags,
            checksums,
            told_checksums,
            encryption,
        })
    }

    pub(crate) async fn head(&self, key: &str) -> Result<Head, Error> {
        let options = GetOptions { head: true, ..GetOptions::default() };
        let result = self.get(key, options).await?;
        let version = version_of(&result.meta)?;
        let pairs = result.attributes.iter().filter_map(|(name, value)| match name {
            Attribute::Metadata(name) => Some((name.to_string(), value.as_ref().to_owned())),
            _ => None,
        });
        Ok(Head { version, metadata: Metadata::received(pairs) })
    }

    pub(crate) async fn get_range(
        &self,
        key: &str,
        range: Range<u64>,
        if_match: &Tag,
    ) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
        let options = GetOptions {
            if_match: Some(if_match.as_str().to_owned()),
            range: Some(GetRange::Bounded(range.clone())),
            ..GetOptions::default()
        };
        let result = self.get(key, options).await?;
        // A server that knows no conditions sends whatever it has: never take it for this version.
        let same = result.meta.e_tag.as_deref().is_none_or(|tag| tag == if_match.as_str());
        if !same || result.range != range {
            return Err(Error::Changed { key: key.to_owned() });
        }
        let key = key.to_owned();
        let stream = result.into_stream();
        Ok(stream.map_err(move |error| answer::translate(error, &key)).boxed())
    }

    async fn get(&self, key: &str, options: GetOptions) -> Result<object_store::GetResult, Error> {
        let translate: fn(object_store::Error, &str) -> Error =
            if options.head { answer::translate_head } else { answer::translate };
        let got = self.store.get_opts(&path_of(key)?, options).await;
        got.map_err(|error| translate(error, key))
    }
}

/// Whether requests are not signed. The environment decides that for who names no credentials.
fn is_anonymous(spec: &LinkSpec, environment: &AmazonS3Builder) -> bool {
    match spec.credentials() {
        Some(named) => named == ANONYMOUS,
        None => {
            let skips = environment.get_config_value(&AmazonS3ConfigKey::SkipSignature);
            skips.as_deref() == Some("true")
        }
    }
}

fn named(settings: &Settings, section: &str) -> Result<AwsCredentialProvider, Error> {
    Ok(Arc::new(Section::open(settings, section, keys::from_values)?))
}

fn path_of(key: &str) -> Result<Path, Error> {
    Path::parse(key).map_err(|error| Error::invalid(error.to_string()))
}

/// How the environment wants objects to be encrypted: by a kind, without which the rest says
/// nothing. Keys of one's own are not supported.
fn encryption_of(environment: &AmazonS3Builder) -> Result<HeaderMap, Error> {
    let setting = |name: &str| -> Result<Option<String>, Error> {
        let key = name.parse().map_err(|error| answer::translate(error, ""))?;
        Ok(environment.get_config_value(&key).filter(|value| !value.is_empty()))
    };
    let mut headers = HeaderMap::new();
    let Some(kind) = setting("aws_server_side_encryption")? else { return Ok(headers) };
    if kind.eq_ignore_ascii_case("sse-c") {
        let message = "AWS_SERVER_SIDE_ENCRYPTION=sse-c is not supported".to_owned();
        return Err(Error::Unsupported { message });
    }
    let bucket_key = setting("aws_sse_bucket_key_enabled")?.map(|value| {
        let is_set = ["1", "on", "true", "y", "yes"].contains(&&*value.to_ascii_lowercase());
        is_set.to_string()
    });
    let values = [
        ("x-amz-server-side-encryption", Some(kind)),
        ("x-amz-server-side-encryption-aws-kms-key-id", setting("aws_sse_kms_key_id")?),
        ("x-amz-server-side-encryption-bucket-key-enabled", bucket_key),
    ];
    for (name, value) in values {
        let Some(value) = value else { continue };
        let value = HeaderValue::from_str(&value);
        let value = value.map_err(|_| Error::invalid(format!("{name} cannot be sent")))?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn version_of(meta: &object_store::ObjectMeta) -> Result<ObjectVersion, Error> {
    let nanoseconds = meta.last_modified.timestamp_nanos_opt().unwrap_or(0);
    Ok(ObjectVersion {
        tag: answer::tag(meta.e_tag.as_deref())?,
        size: meta.size,
        modified: millrace_types::Timestamp(nanoseconds),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_credentials_signs_whatever_the_environment_says() {
        let skips = AmazonS3Builder::new().with_skip_signature(true);
        let signs = AmazonS3Builder::new();
        for (credentials, when_skipped, otherwise) in
            [(None, true, false), (Some("section"), false, false), (Some(ANONYMOUS), true, true)]
        {
            let spec = LinkSpec::new("s3://data", None, None, credentials).unwrap();
            assert_eq!(is_anonymous(&spec, &skips), when_skipped, "{credentials:?}");
            assert_eq!(is_anonymous(&spec, &signs), otherwise, "{credentials:?}");
        }
    }

    #[test]
    fn objects_are_encrypted_as_the_environment_says() {
        let environment = AmazonS3Builder::new();
        assert!(encryption_of(&environment).unwrap().is_empty());
        let environment = environment.with_sse_kms_encryption("the-key").with_bucket_key(true);
        let headers = encryption_of(&environment).unwrap();
        let text = |name: &str| headers[name].to_str().unwrap();
        assert_eq!(text("x-amz-server-side-encryption"), "aws:kms");
        assert_eq!(text("x-amz-server-side-encryption-aws-kms-key-id"), "the-key");
        assert_eq!(text("x-amz-server-side-encryption-bucket-key-enabled"), "true");
    }

    #[test]
    fn a_key_without_a_kind_of_encryption_says_nothing_and_keys_of_ones_own_are_refused() {
        let set = |name: &str, value: &str| {
            AmazonS3Builder::new().with_config(name.parse().unwrap(), value)
        };
        assert!(encryption_of(&set("aws_sse_kms_key_id", "the-key")).unwrap().is_empty());
        let own = encryption_of(&set("aws_server_side_encryption", "sse-c"));
        assert!(matches!(own, Err(Error::Unsupported { .. })), "{own:?}");
    }
}
