//! Where a link leads: its URL and what else a host needs to reach the bucket.

use std::path::{Component, Path, PathBuf};

use url::Url;

use crate::Error;

/// A checked description of how to reach a bucket. Holds no secret: `credentials` names a section
/// of a file on each host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LinkSpec {
    location: Location,
    endpoint: Option<String>,
    region: Option<String>,
    credentials: Option<String>,
}

/// What a link's URL names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    /// `s3://bucket/prefix`
    S3 {
        /// The bucket's name.
        bucket: String,
        /// What every key of the link starts with: empty, or ending in `/`.
        prefix: String,
    },
    /// `gs://bucket/prefix`
    Google {
        /// The bucket's name.
        bucket: String,
        /// What every key of the link starts with: empty, or ending in `/`.
        prefix: String,
    },
    /// `az://container/prefix`
    Azure {
        /// The container's name. The account comes with the credentials.
        container: String,
        /// What every key of the link starts with: empty, or ending in `/`.
        prefix: String,
    },
    /// `file:///directory`
    Directory {
        /// The absolute directory that plays the bucket.
        root: PathBuf,
    },
}

/// The name of a credentials section that means: do not sign requests (public buckets).
pub const ANONYMOUS: &str = "anonymous";

/// The longest URL of a link in bytes; leaves room for names within S3's 1,024 bytes of a key.
const URL_LEN_MAX: usize = 768;

impl LinkSpec {
    /// Checks the parts of a link.
    ///
    /// `s3://`, `gs://` and `az://` take the bucket's name and a prefix as they are, without
    /// percent-decoding, as other tools do; `endpoint` is an `http://` or `https://` address
    /// without a path, and the bucket is then addressed by path. Only S3 has regions.
    ///
    /// # Errors
    /// [`Error::Invalid`] or [`Error::Unsupported`] with a sentence about what is wrong.
    pub fn new(
        url: &str,
        endpoint: Option<&str>,
        region: Option<&str>,
        credentials: Option<&str>,
    ) -> Result<Self, Error> {
        let location = parse_location(url)?;
        if let Location::Directory { .. } = location
            && (endpoint.is_some() || region.is_some() || credentials.is_some())
        {
            return Err(Error::invalid("a file:// link takes no endpoint, region or credentials"));
        }
        if region.is_some() && !matches!(location, Location::S3 { .. }) {
            return Err(Error::invalid("only an s3:// link takes a region"));
        }
        Ok(Self {
            location,
            endpoint: endpoint.map(parse_endpoint).transpose()?,
            region: region.map(|region| parse_word("region", region)).transpose()?,
            credentials: credentials.map(|name| parse_word("credentials", name)).transpose()?,
        })
    }

    /// What the URL names.
    #[must_use]
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// The endpoint, without a slash at its end; `None` is the cloud's own.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref()
    }

    /// The region; `None` takes the environment's.
    #[must_use]
    pub fn region(&self) -> Option<&str> {
        self.region.as_deref()
    }

    /// The section of the credentials file; `None` uses the host's environment, and [`ANONYMOUS`]
    /// signs nothing.
    #[must_use]
    pub fn credentials(&self) -> Option<&str> {
        self.credentials.as_deref()
    }

    /// What every key of the link starts with: empty, or ending in `/`.
    #[must_use]
    pub fn prefix(&self) -> &str {
        match &self.location {
            Location::S3 { prefix, .. }
            | Location::Google { prefix, .. }
            | Location::Azure { prefix, .. } => prefix,
            Location::Directory { .. } => "",
        }
    }

    /// The URL of one key, for people.
    #[must_use]
    pub fn url_of(&self, key: &str) -> String {
        match &self.location {
            Location::S3 { bucket, .. } => format!("s3://{bucket}/{key}"),
            Location::Google { bucket, .. } => format!("gs://{bucket}/{key}"),
            Location::Azure { container, .. } => format!("az://{container}/{key}"),
            Location::Directory { root } => format!("file://{}/{key}", root.display()),
        }
    }

    /// The same bucket under another prefix of it shares limits and connections with this one.
    #[must_use]
    pub fn without_prefix(&self) -> Self {
        let mut spec = self.clone();
        match &mut spec.location {
            Location::S3 { prefix, .. }
            | Location::Google { prefix, .. }
            | Location::Azure { prefix, .. } => prefix.clear(),
            Location::Directory { .. } => {}
        }
        spec
    }
}

fn parse_location(url: &str) -> Result<Location, Error> {
    if url.len() > URL_LEN_MAX {
        return Err(Error::invalid(format!("a link's URL has at most {URL_LEN_MAX} bytes")));
    }
    if url.chars().any(char::is_control) {
        return Err(Error::invalid("a link's URL holds no control characters"));
    }
    match url.split_once("://") {
        Some(("s3", rest)) => {
            let (bucket, prefix) = parse_bucket(rest, &PLAIN)?;
            Ok(Location::S3 { bucket, prefix })
        }
        Some(("gs", rest)) => {
            let (bucket, prefix) = parse_bucket(rest, &GOOGLE)?;
            Ok(Location::Google { bucket, prefix })
        }
        Some(("az", rest)) => {
            let (container, prefix) = parse_bucket(rest, &AZURE)?;
            Ok(Location::Azure { container, prefix })
        }
        Some(("file", rest)) => parse_directory(rest),
        Some(("abfs" | "abfss" | "wasb" | "wasbs" | "adl" | "azure", _)) => {
            Err(Error::Unsupported {
                message: format!("{url}: write az://CONTAINER/PREFIX for Azure's Blob Storage"),
            })
        }
        _ => Err(Error::invalid(format!(
            "{url:?} is no link: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
             az://CONTAINER/PREFIX or file:///DIRECTORY"
        ))),
    }
}

/// Which names of buckets a kind has.
struct Naming {
    len_max: usize,
    is_plain: fn(u8) -> bool,
    words: &'static str,
}

/// S3's rule is 3 to 63 bytes; some compatible servers allow more, none allows other characters.
const PLAIN: Naming = Naming {
    len_max: 255,
    is_plain: |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'),
    words: "letters, digits, '-', '.' and '_' only",
};
/// 3 to 63 bytes, and to 222 with dots.
const GOOGLE: Naming = Naming {
    len_max: 222,
    is_plain: |byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'_')
    },
    words: "lower-case letters, digits, '-', '.' and '_' only, at most 222",
};
/// `$root`, `$web` and `$logs` are Azure's own.
const AZURE: Naming = Naming {
    len_max: 63,
    is_plain: |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-',
    words: "lower-case letters, digits and '-' only, at most 63",
};

/// A bucket's name and a prefix, which is empty or ends in a slash.
fn parse_bucket(rest: &str, naming: &Naming) -> Result<(String, String), Error> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let sound = (1..=naming.len_max).contains(&bucket.len()) && bucket.bytes().all(naming.is_plain);
    if !sound || bucket == "." || bucket == ".." {
        return Err(Error::invalid(format!("{bucket:?} is no bucket name: {}", naming.words)));
    }
    let prefix = prefix.trim_end_matches('/');
    if prefix.split('/').any(|part| matches!(part, "." | "..")) || has_empty_part(prefix) {
        return Err(Error::invalid(format!(
            "the prefix {prefix:?} has an empty part, '.' or '..', which no path can have"
        )));
    }
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok((bucket.to_owned(), prefix))
}

fn has_empty_part(prefix: &str) -> bool {
    !prefix.is_empty() && prefix.split('/').any(str::is_empty)
}

fn parse_directory(rest: &str) -> Result<Location, Error> {
    if !rest.starts_with('/') {
        return Err(Error::invalid(
            "a file:// link names an absolute directory with three slashes: file:///DIRECTORY",
        ));
    }
    let root = Path::new(rest);
    if root.components().any(|part| part == Component::ParentDir) {
        return Err(Error::invalid("the directory of a file:// link holds no '..'"));
    }
    Ok(Location::Directory { root: root.components().collect() })
}

fn parse_endpoint(endpoint: &str) -> Result<String, Error> {
    let fail = |why: &str| {
        Error::invalid(format!(
            "the endpoint {endpoint:?} {why}: write something like http://127.0.0.1:8333 or \
             https://storage.example.com"
        ))
    };
    let url = Url::parse(endpoint).map_err(|_| fail("is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(fail("is neither http:// nor https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid(
            "the endpoint holds a user name or password: put secrets into the credentials file",
        ));
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(fail("has a path, query or fragment"));
    }
    Ok(url.as_str().trim_end_matches('/').to_owned())
}

fn parse_word(what: &str, word: &str) -> Result<String, Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if (1..=64).contains(&word.len()) && word.bytes().all(plain) {
        Ok(word.to_owned())
    } else {
        Err(Error::invalid(format!(
            "the {what} {word:?} is no name: 1 to 64 letters, digits, '-', '.' or '_'"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(url: &str) -> Result<LinkSpec, Error> {
        LinkSpec::new(url, None, None, None)
    }

    #[test]
    fn a_prefix_ends_in_one_slash_or_is_empty() {
        for (url, prefix) in [
            ("s3://data", ""),
            ("s3://data/", ""),
            ("s3://data/train", "train/"),
            ("s3://data/train/v 2/", "train/v 2/"),
        ] {
            assert_eq!(s3(url).unwrap().prefix(), prefix, "{url}");
        }
    }

    #[test]
    fn what_is_no_link_is_refused_in_words() {
        for url in [
            "",
            "data",
            "s3:/data",
            "http://data/x",
            "s3://",
            "s3:///x",
            "s3://a b/",
            "s3://data//x",
            "s3://data/../x",
            "s3://data/./x",
            "s3://../x",
            "file://x/y",
            "file://",
            "file:///a/../b",
            "s3://data/a\nb",
        ] {
            let error = s3(url).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
        }
        for url in ["gs://", "gs://Data", "gs://data//x", "az://", "az://a_b", "az://$root/x"] {
            assert!(matches!(s3(url), Err(Error::Invalid { .. })), "{url}");
        }
        for url in ["abfs://data", "abfss://c@a.dfs.core.windows.net/x"] {
            let error = s3(url).unwrap_err();
            assert!(matches!(error, Error::Unsupported { .. }), "{url}: {error}");
            assert!(error.to_string().contains("az://CONTAINER"), "{error}");
        }
    }

    #[test]
    fn an_endpoint_is_an_address_and_nothing_else() {
        let with = |endpoint| LinkSpec::new("s3://data", Some(endpoint), None, None);
        for good in ["http://127.0.0.1:8333", "https://s3.example.com/"] {
            assert!(with(good).is_ok(), "{good}");
        }
        assert_eq!(with("http://h:1/").unwrap().endpoint(), Some("http://h:1"));
        for bad in ["127.0.0.1:8333", "ftp://x", "http://u:p@x", "http://x/y", "http://x/?q", ""] {
            assert!(with(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_clouds_differ_in_name_only() {
        for (url, prefix, of_key) in [
            ("gs://data", "", "gs://data/k"),
            ("gs://data.example.com/train/", "train/", "gs://data.example.com/k"),
            ("az://data", "", "az://data/k"),
            ("az://data/a b", "a b/", "az://data/k"),
        ] {
            let spec = s3(url).unwrap();
            assert_eq!((spec.prefix(), spec.url_of("k").as_str()), (prefix, of_key), "{url}");
            assert_eq!(spec.without_prefix().prefix(), "");
            let with =
                |endpoint, region, credentials| LinkSpec::new(url, endpoint, region, credentials);
            assert!(with(Some("http://127.0.0.1:1"), None, Some("section")).is_ok());
            assert!(with(None, Some("us-east-1"), None).is_err(), "{url} has no region");
        }
    }

    #[test]
    fn a_directory_takes_no_endpoint() {
        assert!(LinkSpec::new("file:///data", None, None, None).is_ok());
        assert!(LinkSpec::new("file:///data", Some("http://x"), None, None).is_err());
    }

    #[test]
    fn names_that_could_break_a_file_or_header_are_refused() {
        for bad in ["", "a b", "a\nb", "[x]", &"x".repeat(65)] {
            assert!(LinkSpec::new("s3://data", None, None, Some(bad)).is_err(), "{bad:?}");
            assert!(LinkSpec::new("s3://data", None, Some(bad), None).is_err(), "{bad:?}");
        }
    }
}
