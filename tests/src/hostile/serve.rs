//! Connections: requests taken, faults done, answers given.

use std::{io, os::fd::AsFd, sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::{
    Response, body::Incoming, client, header, http::response::Parts, server, service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use super::{
    Shared,
    answer::{Body, Client, Refusal, damaged, passed, refusal, whole},
    fault::{Fault, ListFault},
    request::{Asked, Dialect, Request},
};

pub(super) async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).expect("made for this");
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            // A connection that cannot be served is closed, as a network would.
            drop(tokio::spawn(serve(stream, Arc::clone(&shared))));
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = Arc::new(stream.as_fd().try_clone_to_owned()?);
    let service = service_fn(|request| {
        let cleared = shared.cleared.subscribe();
        let client = Client { socket: Arc::clone(&socket), cleared };
        answer(Arc::clone(&shared), client, request)
    });
    let connection = server::conn::http1::Builder::new();
    // An error is a fault that was asked for, or a client that has gone.
    drop(connection.serve_connection(TokioIo::new(stream), service).await);
    Ok(())
}

async fn answer(
    shared: Arc<Shared>,
    mut client: Client,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<Body>> {
    let asked = Request::new(&request);
    if let Some(key) = signer(&request) {
        *shared.state().signed.entry((asked.asked, key)).or_default() += 1;
    }
    if let Some(token) = asked.token()
        && let Some(page) = shared.state().pages.page(token)
    {
        return Ok(document(page.to_owned()));
    }
    let Some(fault) = shared.fault(&asked) else {
        return pass(&shared, &asked, request).await;
    };
    match fault {
        Fault::Pass => pass(&shared, &asked, request).await,
        Fault::InternalError => refuse(request, asked.dialect, Refusal::Internal).await,
        Fault::SlowDown => refuse(request, asked.dialect, Refusal::SlowDown).await,
        Fault::Denied => refuse(request, asked.dialect, Refusal::Denied).await,
        Fault::Vanished => refuse(request, asked.dialect, Refusal::Vanished).await,
        Fault::Reset => Err(client.reset()),
        Fault::LostAnswer => {
            collect(&shared, request).await?;
            Err(client.reset())
        }
        Fault::FailedAnswer => {
            collect(&shared, request).await?;
            Ok(refusal(asked.dialect, Refusal::Internal))
        }
        Fault::Silence => hold(&shared, &mut client, Duration::MAX).await,
        Fault::SilenceFor(time) => hold(&shared, &mut client, time).await,
        Fault::Meanwhile(hook) => {
            let done = tokio::task::spawn_blocking(move || hook.call()).await;
            done.map_err(io::Error::other)?;
            pass(&shared, &asked, request).await
        }
        Fault::Gate(gate) => {
            gate.pass().await;
            pass(&shared, &asked, request).await
        }
        Fault::List(fault) => list(&shared, &asked, request, fault).await,
        damage => {
            let answer = collect(&shared, request).await?;
            Ok(damaged(answer, &damage, &client))
        }
    }
}

/// The key that an S3 request is signed with.
fn signer(request: &hyper::Request<Incoming>) -> Option<String> {
    let told = request.headers().get(header::AUTHORIZATION)?.to_str().ok()?;
    let (_, scope) = told.split_once("Credential=")?;
    Some(scope.split('/').next()?.to_owned())
}

/// Hands a request on and its answer back; of listings, remembers the first.
async fn pass(
    shared: &Shared,
    asked: &Request,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<Body>> {
    if asked.asked != Asked::List {
        return Ok(passed(send(shared, request).await?));
    }
    let (head, bytes) = collect(shared, request).await?;
    if head.status.is_success() {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        shared.state().listings.entry(asked.target.clone()).or_insert(text);
    }
    Ok(Response::from_parts(head, whole(bytes)))
}

async fn list(
    shared: &Shared,
    asked: &Request,
    request: hyper::Request<Incoming>,
    fault: ListFault,
) -> io::Result<Response<Body>> {
    let (head, bytes) = collect(shared, request).await?;
    if !head.status.is_success() {
        return Ok(Response::from_parts(head, whole(bytes)));
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let mut state = shared.state();
    let first = state.listings.entry(asked.target.clone()).or_insert_with(|| text.clone()).clone();
    Ok(document(match fault {
        ListFault::Stale => first,
        other => state.pages.damage(&text, asked.dialect, other),
    }))
}

fn document(text: String) -> Response<Body> {
    let mut response = Response::new(whole(text.into()));
    let xml = header::HeaderValue::from_static("application/xml");
    response.headers_mut().insert(header::CONTENT_TYPE, xml);
    response
}

/// Takes a request whole, as servers do, and refuses it.
async fn refuse(
    request: hyper::Request<Incoming>,
    dialect: Dialect,
    refused: Refusal,
) -> io::Result<Response<Body>> {
    request.into_body().collect().await.map_err(io::Error::other)?;
    Ok(refusal(dialect, refused))
}

/// Says nothing for a time, or until the weather is fair.
async fn hold(shared: &Shared, client: &mut Client, time: Duration) -> io::Result<Response<Body>> {
    let _held = Held::begin(shared);
    tokio::select! {
        () = tokio::time::sleep(time) => {}
        // An error means that the proxy ends.
        _ = client.cleared.changed() => {}
    }
    Err(client.reset())
}

/// A request that is held is counted as long as this is there: clients give up on their own too.
struct Held<'a>(&'a Shared);

impl<'a> Held<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.state().held += 1;
        Self(shared)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.state().held -= 1;
    }
}

/// The server's whole answer.
async fn collect(shared: &Shared, request: hyper::Request<Incoming>) -> io::Result<(Parts, Bytes)> {
    let (mut head, body) = send(shared, request).await?.into_parts();
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes();
    // It is known now, whatever the server said.
    head.headers.remove(header::TRANSFER_ENCODING);
    Ok((head, bytes))
}

async fn send(
    shared: &Shared,
    request: hyper::Request<Incoming>,
) -> io::Result<Response<Incoming>> {
    let stream = TcpStream::connect(&shared.upstream).await?;
    stream.set_nodelay(true)?;
    let handshake = client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(io::Error::other)?;
    drop(tokio::spawn(connection));
    sender.send_request(request).await.map_err(io::Error::other)
}
