//! A server of HTTP that answers as a test says, on a free port of loopback, gone with the test.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use tokio::net::TcpSocket;

/// A request as it came.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: String,
    /// With its query.
    pub(crate) path: String,
    /// By name in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// What is answered to it; with a status of 0 nothing is, and the connection ends.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    pub(crate) tail: Tail,
}

/// What comes behind the body.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) enum Tail {
    #[default]
    Nothing,
    /// Bytes without end, as far as a test's memory and time are concerned: 256 MiB.
    Flood,
    /// A blank now and then, for ever.
    Drip(Duration),
}

impl Seen {
    /// The names of its headers about checksums.
    pub(crate) fn checksums(&self) -> Vec<&str> {
        let names = self.headers.keys().map(String::as_str);
        names.filter(|name| name.starts_with("x-amz-checksum")).collect()
    }
}

impl Answer {
    /// One of an object or a part that was stored.
    pub(crate) fn stored() -> Self {
        let headers = vec![("ETag", "\"tag\"".to_owned())];
        Self { status: 200, headers, ..Self::default() }
    }

    pub(crate) fn document(body: &str) -> Self {
        Self { status: 200, body: body.to_owned(), ..Self::default() }
    }

    pub(crate) fn refusal(status: u16, code: &str, message: &str) -> Self {
        let body = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
        Self { status, body, ..Self::default() }
    }
}

/// The server.
pub(crate) struct Scripted {
    pub(crate) endpoint: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    flooded: Arc<AtomicU64>,
}

impl Scripted {
    pub(crate) fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_slow(Duration::ZERO, answer)
    }

    /// One that takes each body in four pieces, with this pause before each.
    pub(crate) fn start_slow(
        pause: Duration,
        answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (seen, answer) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(answer));
        let flooded = Arc::<AtomicU64>::default();
        let (kept, counted) = (Arc::clone(&seen), Arc::clone(&flooded));
        // Ends with the process of the test; each test has its own.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                let flooded = Arc::clone(&counted);
                let counts = (seen, flooded);
                thread::spawn(move || serve(stream.unwrap(), pause, &counts, &*answer));
            }
        });
        Self { endpoint, seen, flooded }
    }

    /// Bytes of floods that somebody took, or that lie in the kernel, since the last call.
    pub(crate) fn flooded(&self) -> u64 {
        self.flooded.swap(0, Ordering::Relaxed)
    }

    /// What came since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// A socket that refuses connections, and its endpoint. As long as it is bound, nobody else gets
/// its port and answers there.
pub(crate) fn refusing() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let endpoint = format!("http://{}", socket.local_addr().unwrap());
    (socket, endpoint)
}

fn serve(
    stream: TcpStream,
    pause: Duration,
    (seen, flooded): &(Arc<Mutex<Vec<Seen>>>, Arc<AtomicU64>),
    answer: &dyn Fn(&Seen) -> Answer,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader, pause) {
        let Answer { status, headers, body, tail } = answer(&request);
        seen.lock().unwrap().push(request);
        if status == 0 {
            return;
        }
        let mut text = format!("HTTP/1.1 {status} Said\r\n");
        if matches!(tail, Tail::Nothing) {
            text += &format!("Content-Length: {}\r\n", body.len());
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        text += &body;
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
        // Without a length the answer lasts as long as the connection.
        match tail {
            Tail::Nothing => {}
            Tail::Flood => return flood(&mut writer, flooded),
            Tail::Drip(pause) => {
                while writer.write_all(b" ").is_ok() {
                    thread::sleep(pause);
                }
                return;
            }
        }
    }
}

/// Sends until nobody takes it.
fn flood(writer: &mut TcpStream, flooded: &AtomicU64) {
    let piece = vec![b' '; 64 * 1024];
    for _ in 0..4096 {
        if writer.write_all(&piece).is_err() {
            return;
        }
        flooded.fetch_add(piece.len() as u64, Ordering::Relaxed);
    }
}

/// The next request of a connection; nothing when it has ended.
fn read(reader: &mut BufReader<TcpStream>, pause: Duration) -> Option<Seen> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    assert!(!headers.contains_key("transfer-encoding"), "{method} {path}: some servers refuse it");
    let told = headers.get("content-length");
    assert!(told.is_some() || !["PUT", "POST"].contains(&method.as_str()), "some servers want it");
    let len = told.map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    for piece in body.chunks_mut(len.div_ceil(4).max(1)) {
        thread::sleep(pause);
        reader.read_exact(piece).ok()?;
    }
    Some(Seen { method, path, headers, body })
}
