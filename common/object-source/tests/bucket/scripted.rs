//! A server of HTTP that answers as a test says, on a free port of loopback, gone with the test.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    thread,
};

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
        Self { status: 200, headers: vec![("ETag", "\"tag\"".to_owned())], body: String::new() }
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
}

impl Scripted {
    pub(crate) fn start(answer: impl Fn(&Seen) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let (seen, answer) = (Arc::<Mutex<Vec<Seen>>>::default(), Arc::new(answer));
        let kept = Arc::clone(&seen);
        // Ends with the process of the test; each test has its own.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (seen, answer) = (Arc::clone(&kept), Arc::clone(&answer));
                thread::spawn(move || serve(stream.unwrap(), &seen, &*answer));
            }
        });
        Self { endpoint, seen }
    }

    /// What came since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn serve(stream: TcpStream, seen: &Mutex<Vec<Seen>>, answer: &dyn Fn(&Seen) -> Answer) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    while let Some(request) = read(&mut reader) {
        let Answer { status, headers, body } = answer(&request);
        seen.lock().unwrap().push(request);
        if status == 0 {
            return;
        }
        let mut text = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        text += &body;
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// The next request of a connection; nothing when it has ended.
fn read(reader: &mut BufReader<TcpStream>) -> Option<Seen> {
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
    let told = headers.get("content-length");
    assert!(told.is_some() || !["PUT", "POST"].contains(&method.as_str()), "some servers want it");
    let len = told.map_or(0, |len| len.parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body).ok()?;
    Some(Seen { method, path, headers, body })
}
