//! Connections, and what the server of our own does for each request.

use std::{io, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use hyper::{
    HeaderMap, Method, Response,
    body::Incoming,
    header::{self, HeaderValue},
    server,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::{
    BUCKET, Shared, State, Trouble,
    account::may,
    answer::{
        Body, answer, checksum_of, cut, document, headers_of, listing, parts, refusal, uploads,
        whole,
    },
    asked::{Asked, decoded},
    store::{Object, Refusal, tag_of},
};

type Answer = Result<Response<Body>, Refusal>;

/// Takes connections, and has each request on them answered.
pub(super) async fn accept<F, R>(listener: std::net::TcpListener, respond: F)
where
    F: Fn(hyper::Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = io::Result<Response<Body>>> + Send + 'static,
{
    let listener = TcpListener::from_std(listener).expect("made for this");
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            drop(tokio::spawn(serve(stream, respond.clone())));
        }
    }
}

async fn serve<F, R>(stream: TcpStream, respond: F) -> io::Result<()>
where
    F: Fn(hyper::Request<Incoming>) -> R,
    R: Future<Output = io::Result<Response<Body>>>,
{
    stream.set_nodelay(true)?;
    let connection = server::conn::http1::Builder::new();
    // An error is a trouble that was asked for, or a client that has gone.
    drop(connection.serve_connection(TokioIo::new(stream), service_fn(respond)).await);
    Ok(())
}

pub(super) async fn respond(
    shared: Arc<Shared>,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let asked = Asked::new(&head, body);
    let mut state = shared.state();
    state.requests.push(format!("{} {}", head.method, head.uri));
    if state.take(|trouble| *trouble == Trouble::SlowDown).is_some() {
        return Ok(refusal((503, "SlowDown")));
    }
    let done = may(&shared.accounts, &asked).and_then(|()| asked.run(&mut state));
    let is_copy = asked.header("x-goog-copy-source").is_some();
    if is_copy && state.take(|trouble| *trouble == Trouble::LostCopyAnswer).is_some() {
        return Err(io::ErrorKind::ConnectionReset.into());
    }
    Ok(done.unwrap_or_else(refusal))
}

impl Asked {
    fn run(&self, state: &mut State) -> Answer {
        if self.bucket != BUCKET {
            return Err((404, "NoSuchBucket"));
        }
        let upload = self.parameter("uploadId");
        match (&self.method, upload) {
            (&Method::GET, None) if self.key.is_empty() => self.list(state),
            (&Method::GET, Some(id)) => Ok(document(parts(state.store.upload(&self.key, id)?))),
            (&Method::GET | &Method::HEAD, None) => self.read(state),
            (&Method::PUT, Some(id)) => self.put_part(state, id),
            (&Method::PUT, None) => self.put(state),
            (&Method::POST, Some(id)) => self.complete(state, id),
            (&Method::POST, None) if self.parameter("uploads").is_some() => {
                let id = state.store.begin(&self.key, self.metadata());
                Ok(document(format!(
                    "<InitiateMultipartUploadResult><Bucket>{BUCKET}</Bucket>\
                     <UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                )))
            }
            (&Method::DELETE, Some(id)) => {
                state.store.upload(&self.key, id)?;
                state.store.in_progress.remove(id);
                Ok(answer(204, HeaderMap::new(), whole("")))
            }
            (&Method::DELETE, None) => self.delete(state),
            _ => Err((400, "InvalidArgument")),
        }
    }

    fn list(&self, state: &State) -> Answer {
        let prefix = self.parameter("prefix").unwrap_or_default();
        if self.parameter("uploads").is_some() {
            let found = state.store.in_progress.iter();
            return Ok(document(uploads(found.filter(|(_, of)| of.key.starts_with(prefix)))));
        }
        let token = self.parameter("continuation-token").unwrap_or_default();
        let token = STANDARD.decode(token).map_err(|_| (400, "InvalidArgument"))?;
        let token = String::from_utf8(token).map_err(|_| (400, "InvalidArgument"))?;
        let start = self.parameter("start-after").unwrap_or_default();
        let after = if token.is_empty() { start } else { &token };
        let max = self.parameter("max-keys").and_then(|max| max.parse().ok()).unwrap_or(1_000);
        let page = state.store.list(prefix, self.parameter("delimiter"), after, max);
        Ok(document(listing(&page)))
    }

    /// Refuses another generation than the condition names.
    fn check_condition(&self, state: &State) -> Result<(), Refusal> {
        let Some(told) = self.header("x-goog-if-generation-match") else { return Ok(()) };
        let generation = told.parse().map_err(|_| (400, "InvalidArgument"))?;
        if state.store.matches(&self.key, generation) {
            Ok(())
        } else {
            Err((412, "PreconditionFailed"))
        }
    }

    fn read(&self, state: &mut State) -> Answer {
        let object = state.store.object(&self.key).ok_or((404, "NoSuchKey"))?.clone();
        self.check_condition(state)?;
        let mut headers = headers_of(&object);
        if self.method == Method::HEAD {
            headers.insert(header::CONTENT_LENGTH, object.body.len().into());
            return Ok(answer(200, headers, whole("")));
        }
        let (status, body) = match self.range(&object)? {
            None => (200, object.body.clone()),
            Some((from, to)) => {
                let told = format!("bytes {from}-{}/{}", to - 1, object.body.len());
                let told = HeaderValue::from_str(&told).map_err(|_| (500, "InternalError"))?;
                headers.insert(header::CONTENT_RANGE, told);
                (206, object.body.slice(from..to))
            }
        };
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        let is_about_bodies =
            |trouble: &Trouble| matches!(trouble, Trouble::CutBody(_) | Trouble::DamagedBody);
        let body = match state.take(is_about_bodies) {
            Some(Trouble::CutBody(len)) => cut(body.slice(..len.min(body.len()))),
            Some(Trouble::DamagedBody) => {
                let mut bytes = body.to_vec();
                if let Some(byte) = bytes.first_mut() {
                    *byte ^= 1;
                }
                whole(bytes)
            }
            _ => whole(body),
        };
        Ok(answer(status, headers, body))
    }

    fn range(&self, object: &Object) -> Result<Option<(usize, usize)>, Refusal> {
        let Some(told) = self.header("range") else { return Ok(None) };
        let told = told.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
        let (from, to) = told.ok_or((400, "InvalidArgument"))?;
        let from: usize = from.parse().map_err(|_| (400, "InvalidArgument"))?;
        let last = to.parse().unwrap_or(usize::MAX).min(object.body.len().saturating_sub(1));
        if from >= object.body.len() || last < from {
            return Err((416, "InvalidRange"));
        }
        Ok(Some((from, last + 1)))
    }

    fn put(&self, state: &mut State) -> Answer {
        let source = self.source(state)?;
        self.check_condition(state)?;
        let (body, metadata) = match source {
            Some(object) => (object.body, object.metadata),
            None => (self.body.clone(), self.metadata()),
        };
        if self.header("x-goog-hash").is_some_and(|told| told != checksum_of(&self.body)) {
            return Err((400, "BadDigest"));
        }
        let told =
            HeaderValue::from_str(&checksum_of(&body)).map_err(|_| (500, "InternalError"))?;
        let generation = state.store.put(&self.key, body, metadata);
        let mut answer = document(String::from("<CopyObjectResult></CopyObjectResult>"));
        answer.headers_mut().insert("x-goog-hash", told);
        answer.headers_mut().insert("x-goog-generation", generation.into());
        Ok(answer)
    }

    /// What a copy is of.
    fn source(&self, state: &State) -> Result<Option<Object>, Refusal> {
        let Some(path) = self.header("x-goog-copy-source") else { return Ok(None) };
        let path = decoded(path);
        let key = path.strip_prefix(&format!("/{BUCKET}/")).ok_or((404, "NoSuchBucket"))?;
        let object = state.store.object(key).ok_or((404, "NoSuchKey"))?;
        let generation = self.header("x-goog-copy-source-generation");
        if generation.is_some_and(|told| told != object.generation.to_string()) {
            return Err((404, "NoSuchKey"));
        }
        Ok(Some(object.clone()))
    }

    fn put_part(&self, state: &mut State, id: &str) -> Answer {
        let number = self.parameter("partNumber").and_then(|number| number.parse().ok());
        let number = number.ok_or((400, "InvalidArgument"))?;
        state.store.upload(&self.key, id)?.parts.insert(number, self.body.clone());
        let tag = HeaderValue::from_str(&tag_of(&self.body)).map_err(|_| (500, "InternalError"))?;
        Ok(answer(200, HeaderMap::from_iter([(header::ETAG, tag)]), whole("")))
    }

    fn complete(&self, state: &mut State, id: &str) -> Answer {
        let text = String::from_utf8_lossy(&self.body);
        let mut named = Vec::new();
        for part in text.split("<Part>").skip(1) {
            let between = |name: &str| {
                let from = part.find(&format!("<{name}>"))? + name.len() + 2;
                Some(part[from..from + part[from..].find('<')?].replace("&quot;", "\""))
            };
            let number = between("PartNumber").and_then(|number| number.parse().ok());
            let part = number.zip(between("ETag")).ok_or((400, "MalformedXML"))?;
            named.push(part);
        }
        let generation = state.store.complete(&self.key, id, &named)?;
        let mut answer = document(String::from(
            "<CompleteMultipartUploadResult><ETag>&quot;x&quot;</ETag>\
             </CompleteMultipartUploadResult>",
        ));
        answer.headers_mut().insert("x-goog-generation", generation.into());
        Ok(answer)
    }

    fn delete(&self, state: &mut State) -> Answer {
        if state.take(|trouble| *trouble == Trouble::RefusedDelete).is_some() {
            return Err((403, "AccessDenied"));
        }
        self.check_condition(state)?;
        state.store.delete(&self.key).ok_or((404, "NoSuchKey"))?;
        Ok(answer(204, HeaderMap::new(), whole("")))
    }
}
