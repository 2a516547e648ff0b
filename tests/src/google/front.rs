//! Google's XML API before a real server. SeaweedFS keeps bytes, names and metadata, lists, cuts
//! ranges and puts parts together. What it has not is added here: tokens, generations, conditions
//! on them, and checksums.

use std::{collections::HashMap, fmt::Display, io, net::TcpListener, path::Path, sync::Arc};

use anyhow::{Context, Result};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{
    HeaderMap, Method, Response, StatusCode,
    body::Incoming,
    client,
    header::{self, HeaderName, HeaderValue},
    http::response::Parts,
};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, runtime::Runtime, sync::Mutex};

use super::{
    BUCKET,
    account::{self, Account, may},
    answer::{Body, answer, checksum_of, document, refusal, whole},
    asked::{Asked, decoded},
    serve,
    store::Refusal,
};
use crate::bucket::Bucket;

/// The server's bucket: requests that nobody signed may do everything with it.
const PUBLIC: &str = "public";

/// A running front and the server behind it. Dropping it ends both.
///
/// A key has another generation after each change that came through here, and when it is found to
/// have another entity tag: by that what others put into the server itself shows.
#[derive(Debug)]
pub struct GoogleFront {
    endpoint: String,
    shared: Arc<Shared>,
    bucket: Bucket,
    // Taken when it is dropped: a runtime must not be waited for by whoever is in one.
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct Shared {
    accounts: Vec<Account>,
    /// Host and port of the server.
    server: String,
    /// Held over each request, so that a condition and what it is for are one.
    versions: Mutex<Versions>,
}

impl GoogleFront {
    /// Starts SeaweedFS, and the front on a free port of loopback.
    ///
    /// # Errors
    /// When one of them cannot be started.
    pub fn start() -> Result<Self> {
        let bucket = Bucket::start()?;
        bucket.script("make_bucket(client, sys.argv[2])", &[PUBLIC])?;
        let server = bucket.endpoint();
        let server = server.strip_prefix("http://").context("not an http address")?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let shared =
            Arc::new(Shared { accounts: Account::both()?, server, versions: Mutex::default() });
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let served = Arc::clone(&shared);
        let respond = move |request| respond(Arc::clone(&served), request);
        runtime.spawn(serve::accept(listener, respond));
        Ok(Self { endpoint, shared, bucket, runtime: Some(runtime) })
    }

    /// Its address, for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// The address of SeaweedFS itself, and the bucket there that the front stands before.
    #[must_use]
    pub fn behind(&self) -> (String, &'static str) {
        (self.bucket.endpoint(), PUBLIC)
    }

    /// Writes the key file of an account, as Google's console would. A stranger's has a key that
    /// nobody knows here.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write_key(&self, account: &str, path: &Path) -> Result<()> {
        account::write_key(&self.shared.accounts, account, path)
    }

    /// What in a key file is a secret: a piece of it that stands nowhere else.
    #[must_use]
    pub fn secret_of(&self, account: &str) -> Option<String> {
        account::secret_of(&self.shared.accounts, account)
    }

    /// Runs Python with a boto3 `client` of the server, past the front; `arguments` are
    /// `sys.argv[2:]`.
    ///
    /// # Errors
    /// When Python fails; what it said is in the error.
    pub fn script(&self, python_text: &str, arguments: &[&str]) -> Result<String> {
        self.bucket.script(python_text, arguments)
    }
}

impl Drop for GoogleFront {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Also from within another runtime, where nothing may be waited for.
            runtime.shutdown_background();
        }
    }
}

/// What the server does not know of its objects.
#[derive(Debug, Default)]
struct Versions {
    known: HashMap<String, Version>,
    last: u64,
}

#[derive(Debug, Clone)]
struct Version {
    generation: u64,
    tag: String,
    /// As the header tells it, of what was put whole.
    checksum: Option<String>,
}

impl Versions {
    /// What a key holds that the server has under this entity tag.
    fn seen(&mut self, key: &str, tag: &str) -> Version {
        match self.known.get(key).filter(|known| known.tag == tag) {
            Some(known) => known.clone(),
            None => self.made(key, tag, None),
        }
    }

    /// A version that no key had before.
    fn made(&mut self, key: &str, tag: &str, checksum: Option<String>) -> Version {
        self.last += 1;
        // Google's are microseconds since 1970.
        let generation = 1_763_970_000_000_000 + self.last;
        let version = Version { generation, tag: tag.to_owned(), checksum };
        self.known.insert(key.to_owned(), version.clone());
        version
    }
}

/// Why there is no other answer.
enum Failed {
    Refused(Refusal),
    /// The server was not reached, or says what nobody expects.
    Broken(io::Error),
}

impl From<Refusal> for Failed {
    fn from(refused: Refusal) -> Self {
        Self::Refused(refused)
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

type Answer = Result<Response<Body>, Failed>;

async fn respond(
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let asked = Asked::new(&head, body);
    let mut versions = shared.versions.lock().await;
    let done = match may(&shared.accounts, &asked) {
        Ok(()) => shared.run(&asked, &mut versions).await,
        Err(refused) => Err(refused.into()),
    };
    match done {
        Ok(answer) => Ok(answer),
        Err(Failed::Refused(refused)) => Ok(refusal(refused)),
        Err(Failed::Broken(error)) => Err(error),
    }
}

impl Shared {
    async fn run(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        if asked.bucket != BUCKET {
            return Err((404, "NoSuchBucket").into());
        }
        let is_of_upload =
            ["uploads", "uploadId"].iter().any(|name| asked.query.contains_key(*name));
        match asked.method {
            Method::GET if asked.key.is_empty() => self.list(asked, versions).await,
            Method::POST if asked.parameter("uploadId").is_some() => {
                self.complete(asked, versions).await
            }
            _ if is_of_upload => {
                let (head, body) = self.pass(asked).await?;
                Ok(answered(&head, whole(body)))
            }
            Method::GET | Method::HEAD => self.read(asked, versions).await,
            Method::PUT => self.put(asked, versions).await,
            Method::DELETE => self.delete(asked, versions).await,
            _ => Err((400, "InvalidArgument").into()),
        }
    }

    /// The server's listing, with the generations that each entry of Google's has.
    async fn list(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        let (head, body) = self.pass(asked).await?;
        let text = String::from_utf8(body.to_vec()).map_err(io::Error::other)?;
        let mut pieces = text.split("<Contents>");
        let mut told = pieces.next().unwrap_or_default().to_owned();
        for piece in pieces {
            let between = |name: &str| {
                let (_, rest) = piece.split_once(&format!("<{name}>"))?;
                Some(rest.split_once('<')?.0)
            };
            let entry = between("Key").zip(between("ETag"));
            let (key, tag) = entry.ok_or_else(|| odd("an entry without key or tag"))?;
            let tag = tag.replace("&#34;", "\"").replace("&quot;", "\"");
            let generation = versions.seen(&decoded(&key.replace('+', " ")), &tag).generation;
            told += &format!("<Contents><Generation>{generation}</Generation>{piece}");
        }
        let mut answer = document(told);
        *answer.status_mut() = head.status;
        Ok(answer)
    }

    async fn read(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        let there = self.look(&asked.target, &asked.key, versions).await?;
        let (found, version) = there.ok_or((404, "NoSuchKey"))?;
        check_condition(asked, Some(&version))?;
        let (head, body) = match asked.method {
            Method::HEAD => (found.clone(), Bytes::new()),
            _ => self.pass(asked).await?,
        };
        let mut answer = answered(&head, whole(body));
        let stored = found.headers.get(header::CONTENT_LENGTH).cloned();
        let stored = stored.ok_or_else(|| odd("HEAD tells no length"))?;
        answer.headers_mut().insert("x-goog-stored-content-length", stored);
        tell(&mut answer, &version)?;
        Ok(answer)
    }

    /// A put or a copy.
    async fn put(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        let mut checksum = Some(checksum_of(&asked.body));
        if let Some(source) = asked.header("x-goog-copy-source") {
            let key = source.strip_prefix(&format!("/{BUCKET}/")).ok_or((404, "NoSuchBucket"))?;
            let there = self.look(source, &decoded(key), versions).await?;
            let (_, version) = there.ok_or((404, "NoSuchKey"))?;
            let wanted = asked.header("x-goog-copy-source-generation");
            if wanted.is_some_and(|wanted| wanted != version.generation.to_string()) {
                return Err((404, "NoSuchKey").into());
            }
            checksum = version.checksum;
        } else if asked.header("x-goog-hash").is_some_and(|told| Some(told) != checksum.as_deref())
        {
            return Err((400, "BadDigest").into());
        }
        let there = self.look(&asked.target, &asked.key, versions).await?;
        check_condition(asked, there.as_ref().map(|(_, version)| version))?;
        let (head, body) = self.pass(asked).await?;
        self.done(asked, (head, body), checksum, versions).await
    }

    async fn complete(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        let done = self.pass(asked).await?;
        self.done(asked, done, None, versions).await
    }

    /// The server's answer to what has made a version, with its generation.
    async fn done(
        &self,
        asked: &Asked,
        (head, body): (Parts, Bytes),
        checksum: Option<String>,
        versions: &mut Versions,
    ) -> Answer {
        let is_error = body.windows(7).any(|piece| piece == b"<Error>");
        let mut answer = answered(&head, whole(body));
        if head.status.is_success() && !is_error {
            let path = asked.target.split('?').next().unwrap_or_default();
            let there = self.look(path, &asked.key, versions).await?;
            let (_, version) = there.ok_or_else(|| odd("what was put is not there"))?;
            tell(&mut answer, &versions.made(&asked.key, &version.tag, checksum))?;
        }
        Ok(answer)
    }

    async fn delete(&self, asked: &Asked, versions: &mut Versions) -> Answer {
        let there = self.look(&asked.target, &asked.key, versions).await?;
        check_condition(asked, there.as_ref().map(|(_, version)| version))?;
        there.ok_or((404, "NoSuchKey"))?;
        let (head, body) = self.pass(asked).await?;
        versions.known.remove(&asked.key);
        Ok(answered(&head, whole(body)))
    }

    /// What is at a key.
    async fn look(
        &self,
        target: &str,
        key: &str,
        versions: &mut Versions,
    ) -> Result<Option<(Parts, Version)>, Failed> {
        let sent = self.send(Method::HEAD, target, HeaderMap::new(), Bytes::new()).await?;
        match sent.0.status {
            StatusCode::NOT_FOUND => return Ok(None),
            status if !status.is_success() => return Err(odd(status).into()),
            _ => {}
        }
        let tag = sent.0.headers.get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let version = versions.seen(key, tag.ok_or_else(|| odd("HEAD tells no entity tag"))?);
        Ok(Some((sent.0, version)))
    }

    /// Hands a request on, as the server knows it.
    async fn pass(&self, asked: &Asked) -> io::Result<(Parts, Bytes)> {
        let mut headers = HeaderMap::new();
        for (name, value) in &asked.headers {
            let name = name.as_str();
            if let Some(meta) = name.strip_prefix("x-goog-meta-") {
                headers.insert(named(&format!("x-amz-meta-{meta}"))?, value.clone());
            } else if ["range", "content-type"].contains(&name) {
                headers.insert(named(name)?, value.clone());
            }
        }
        if let Some(source) = asked.header("x-goog-copy-source") {
            let source = HeaderValue::from_str(&at_server(source)).map_err(io::Error::other)?;
            headers.insert("x-amz-copy-source", source);
        }
        self.send(asked.method.clone(), &asked.target, headers, asked.body.clone()).await
    }

    async fn send(
        &self,
        method: Method,
        target: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> io::Result<(Parts, Bytes)> {
        let mut request = hyper::Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = at_server(target).parse().map_err(io::Error::other)?;
        *request.headers_mut() = headers;
        let host = HeaderValue::from_str(&self.server).map_err(io::Error::other)?;
        request.headers_mut().insert(header::HOST, host);
        let stream = TcpStream::connect(&self.server).await?;
        stream.set_nodelay(true)?;
        let handshake = client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(io::Error::other)?;
        drop(tokio::spawn(connection));
        let answer = sender.send_request(request).await.map_err(io::Error::other)?;
        let (head, body) = answer.into_parts();
        Ok((head, body.collect().await.map_err(io::Error::other)?.to_bytes()))
    }
}

/// A path that begins with Google's name of the bucket, with the server's.
fn at_server(target: &str) -> String {
    target.replacen(BUCKET, PUBLIC, 1)
}

/// Refuses another generation than the condition names; 0 is none.
fn check_condition(asked: &Asked, there: Option<&Version>) -> Result<(), Refusal> {
    let Some(told) = asked.header("x-goog-if-generation-match") else { return Ok(()) };
    let told: u64 = told.parse().map_err(|_| (400, "InvalidArgument"))?;
    if told == there.map_or(0, |version| version.generation) {
        Ok(())
    } else {
        Err((412, "PreconditionFailed"))
    }
}

/// An answer of the server's, as Google would give it.
fn answered(head: &Parts, body: Body) -> Response<Body> {
    let mut headers = HeaderMap::new();
    let kept = [
        header::CONTENT_LENGTH,
        header::CONTENT_RANGE,
        header::CONTENT_TYPE,
        header::ETAG,
        header::LAST_MODIFIED,
    ];
    for (name, value) in &head.headers {
        if let Some(meta) = name.as_str().strip_prefix("x-amz-meta-") {
            headers.insert(
                named(&format!("x-goog-meta-{meta}")).expect("it was a name"),
                value.clone(),
            );
        } else if kept.contains(name) {
            headers.insert(name.clone(), value.clone());
        }
    }
    answer(head.status.as_u16(), headers, body)
}

/// Adds which version an answer is about.
fn tell(answer: &mut Response<Body>, version: &Version) -> io::Result<()> {
    answer.headers_mut().insert("x-goog-generation", version.generation.into());
    if let Some(checksum) = &version.checksum {
        let checksum = HeaderValue::from_str(checksum).map_err(io::Error::other)?;
        answer.headers_mut().insert("x-goog-hash", checksum);
    }
    Ok(())
}

fn named(name: &str) -> io::Result<HeaderName> {
    HeaderName::from_bytes(name.as_bytes()).map_err(io::Error::other)
}

fn odd(what: impl Display) -> io::Error {
    io::Error::other(format!("the server behind: {what}"))
}
