//! A TCP proxy that can be slow or refuse: a bucket in a far or a broken network.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};

/// What the network does to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Bytes pass at once.
    Fair,
    /// Every piece of a reply comes this much later.
    Slow(Duration),
    /// Connections are closed as soon as they are made, and those that stand are cut.
    Down,
}

/// A running proxy. Dropping it closes the port and every connection.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    upstream: String,
    weather: Mutex<Weather>,
    connections: Mutex<Vec<TcpStream>>,
    ended: AtomicBool,
}

impl Proxy {
    /// Starts a proxy on a free port of loopback for the server at `upstream` (`host:port`).
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(upstream: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            upstream: upstream.to_owned(),
            weather: Mutex::new(Weather::Fair),
            connections: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || accept(&listener, &accepting));
        Ok(Self { address, shared })
    }

    /// Starts a proxy for a server named by an `http://` address.
    ///
    /// # Errors
    /// When the address is of another kind, or no port can be had.
    pub fn for_endpoint(endpoint: &str) -> Result<Self> {
        Self::start(endpoint.strip_prefix("http://").context("not an http address")?)
    }

    /// The proxy's own address, for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the weather for new and standing connections.
    pub fn set(&self, weather: Weather) {
        *self.shared.weather.lock().expect("no thread panics with it") = weather;
        if weather == Weather::Down {
            self.shared.cut();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.shared.cut();
        // Wakes the accepting thread, which then sees that it is over.
        drop(TcpStream::connect(self.address));
    }
}

impl Shared {
    fn weather(&self) -> Weather {
        *self.weather.lock().expect("no thread panics with it")
    }

    fn cut(&self) {
        for stream in self.connections.lock().expect("no thread panics with it").drain(..) {
            drop(stream.shutdown(Shutdown::Both));
        }
    }

    fn keep(&self, stream: &TcpStream) -> io::Result<()> {
        let mut connections = self.connections.lock().expect("no thread panics with it");
        connections.push(stream.try_clone()?);
        Ok(())
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::Acquire) {
            return;
        }
        if shared.weather() == Weather::Down {
            continue;
        }
        // A connection that cannot be passed on is closed, as a network would.
        if let Ok(stream) = stream {
            drop(pass(stream, shared));
        }
    }
}

fn pass(client: TcpStream, shared: &Arc<Shared>) -> io::Result<()> {
    let server = TcpStream::connect(&shared.upstream)?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    shared.keep(&client)?;
    shared.keep(&server)?;
    let (client_again, server_again) = (client.try_clone()?, server.try_clone()?);
    let replies = Arc::clone(shared);
    thread::spawn(move || copy(client, server, || Weather::Fair));
    thread::spawn(move || copy(server_again, client_again, move || replies.weather()));
    Ok(())
}

fn copy(mut from: TcpStream, mut to: TcpStream, weather: impl Fn() -> Weather) {
    let mut buffer = vec![0; 256 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        match weather() {
            Weather::Fair => {}
            Weather::Slow(delay) => thread::sleep(delay),
            Weather::Down => break,
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    drop(to.shutdown(Shutdown::Both));
    drop(from.shutdown(Shutdown::Both));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo_server() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut byte = [0];
                while stream.read_exact(&mut byte).is_ok() {
                    stream.write_all(&byte).unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn bytes_pass_in_fair_weather_and_connections_are_cut_when_it_is_down() {
        let proxy = Proxy::start(&echo_server().to_string()).unwrap();
        let mut stream = TcpStream::connect(proxy.address).unwrap();
        let mut byte = [7];
        stream.write_all(&byte).unwrap();
        stream.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [7]);
        proxy.set(Weather::Down);
        assert_eq!(stream.read(&mut byte).unwrap_or(0), 0);
        let mut refused = TcpStream::connect(proxy.address).unwrap();
        assert_eq!(refused.read(&mut byte).unwrap_or(0), 0);
    }
}
