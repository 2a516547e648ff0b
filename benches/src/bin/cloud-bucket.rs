//! A bucket as in the cloud: stands in front of an S3 server on this machine and makes it as far
//! away, and as slow, as one is that lies in a cloud.
//!
//! It knows nothing of HTTP. Whenever bytes went up since the last answer, the next bytes that come
//! down are the first of an answer and wait a while. All bytes are held to the rate of their
//! connection and to that of all together; both directions count.

#![expect(clippy::print_stdout, reason = "the address that it listens on")]

use std::{
    io,
    net::SocketAddr,
    str::FromStr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    time::{sleep, sleep_until},
};

/// Makes an S3 server as far away as a bucket in the cloud. Prints its address when it listens, and
/// serves until it is ended.
#[derive(Parser, Debug)]
struct Arguments {
    /// Where to listen.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The S3 server.
    #[arg(long, value_name = "HOST:PORT")]
    upstream: String,
    /// How much later the first byte of each answer comes.
    #[arg(long, default_value = "20ms")]
    first_byte: jiff::SignedDuration,
    /// The most that one connection carries in a second; a MB has 1,000,000 bytes.
    #[arg(long, default_value = "90MB")]
    connection: Rate,
    /// The most that all connections carry together in a second.
    #[arg(long, default_value = "200MB")]
    whole: Rate,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    // One thread: what moves the bytes is the kernel, and threads for each connection would cost
    // half as much again.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<()> {
    let first_byte = arguments.first_byte.try_into().context("--first-byte is negative")?;
    let listener = TcpListener::bind(arguments.listen).await.context("listen")?;
    println!("listening on {}", listener.local_addr()?);
    let whole = Shared::new(arguments.whole);
    let upstream: Arc<str> = arguments.upstream.into();
    loop {
        let Ok((client, _)) = listener.accept().await else {
            // No descriptors left, or the client is gone already.
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let way = Way {
            first_byte,
            is_asked: AtomicBool::new(false),
            connection: Shared::new(arguments.connection),
            whole: whole.clone(),
        };
        let upstream = Arc::clone(&upstream);
        // A connection that cannot be made, or that one side breaks, is no affair of the others;
        // both sides see it.
        drop(tokio::spawn(async move { carry(client, &upstream, &way).await }));
    }
}

/// Carries one connection until both sides have ended it, or one has broken it.
async fn carry(mut client: TcpStream, upstream: &str, way: &Way) -> io::Result<()> {
    let mut server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let up = way.pump(from_client, to_server, Direction::Up);
    let down = way.pump(from_server, to_client, Direction::Down);
    tokio::try_join!(up, down)?;
    Ok(())
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// What a connection goes through.
struct Way {
    first_byte: Duration,
    /// Whether bytes went up since the last ones that came down.
    is_asked: AtomicBool,
    connection: Shared,
    whole: Shared,
}

impl Way {
    /// Passes bytes on until there are no more, and then says so.
    async fn pump(
        &self,
        mut from: ReadHalf<'_>,
        mut to: WriteHalf<'_>,
        direction: Direction,
    ) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        loop {
            let read = from.read(&mut buffer).await?;
            if read == 0 {
                return to.shutdown().await;
            }
            // Before their turn is taken: bytes that wait take nothing from the others.
            let delay = self.delay(direction).saturating_sub(TIMER_DELAY);
            if !delay.is_zero() {
                sleep(delay).await;
            }
            let now = Instant::now();
            let due = self.due(read, now);
            if due > now + AHEAD {
                sleep_until(due.into()).await;
            }
            to.write_all(&buffer[..read]).await?;
        }
    }

    /// How long the bytes that have come are held back, whatever the rates are.
    fn delay(&self, direction: Direction) -> Duration {
        match direction {
            Direction::Up => {
                self.is_asked.store(true, Ordering::Relaxed);
                Duration::ZERO
            }
            Direction::Down if self.is_asked.swap(false, Ordering::Relaxed) => self.first_byte,
            Direction::Down => Duration::ZERO,
        }
    }

    /// When so many bytes may go on.
    fn due(&self, bytes: usize, now: Instant) -> Instant {
        self.connection.take(bytes, now).max(self.whole.take(bytes, now))
    }
}

/// A rate that several share.
#[derive(Clone)]
struct Shared(Arc<Mutex<Pacer>>);

impl Shared {
    fn new(rate: Rate) -> Self {
        Self(Arc::new(Mutex::new(Pacer { rate, free: Instant::now() })))
    }

    fn take(&self, bytes: usize, now: Instant) -> Instant {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, now)
    }
}

/// Holds bytes to a rate, by a time at which the way is free again: it moves on by what the bytes
/// take, so that a timer which wakes up late costs nothing.
struct Pacer {
    rate: Rate,
    free: Instant,
}

impl Pacer {
    /// When the last of so many bytes, which are there `now`, is through. Who comes late, or after
    /// a pause, makes up for [`BURST`] of it at most.
    fn take(&mut self, bytes: usize, now: Instant) -> Instant {
        let earliest = now.checked_sub(BURST).unwrap_or(now);
        self.free = self.free.max(earliest) + self.rate.time(bytes);
        self.free
    }
}

/// Bytes in a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rate(u32);

impl Rate {
    fn time(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / f64::from(self.0))
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix("MB").and_then(|number| number.parse::<u32>().ok());
        let bytes = number.and_then(|number| number.checked_mul(MB)).filter(|bytes| *bytes > 0);
        bytes.map(Self).ok_or_else(|| "expected whole MB in a second, such as 90MB".to_owned())
    }
}

const MB: u32 = 1_000_000;
/// Bytes that are carried at once: 1.5 ms of a connection at 90 MB/s.
const BUFFER: usize = 128 * 1024;
/// What may be made up for. The machine's other programs delay this one by a few milliseconds.
const BURST: Duration = Duration::from_millis(5);
/// Bytes that are due sooner go at once: a sleep for each piece would cost more than it gives.
const AHEAD: Duration = Duration::from_millis(2);

/// The timer rounds up to whole milliseconds, and so does the call that waits for it: together that
/// is one millisecond on the average.
const TIMER_DELAY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: Rate = Rate(90 * MB);

    #[test]
    fn a_rate_is_held_however_late_its_timer_wakes_up() {
        let begun = Instant::now();
        let mut pacer = Pacer { rate: RATE, free: begun };
        let mut now = begun;
        for nth in 0..10_000 {
            let due = pacer.take(BUFFER, now);
            if due > now + AHEAD {
                now = due + Duration::from_millis(nth % 4);
            }
        }
        let rate = 10_000.0 * BUFFER as f64 / (now - begun).as_secs_f64();
        assert!((0.98..=1.02).contains(&(rate / f64::from(RATE.0))), "{rate} bytes/s");
    }

    #[test]
    fn after_a_pause_a_burst_is_five_milliseconds() {
        let begun = Instant::now();
        let mut pacer = Pacer { rate: RATE, free: begun };
        let now = begun + Duration::from_secs(3600);
        let mut at_once = 0;
        while pacer.take(1000, now) <= now {
            at_once += 1000;
        }
        assert!((440_000..=450_000).contains(&at_once), "{at_once} bytes");
    }

    #[test]
    fn the_first_byte_of_each_answer_comes_later_and_the_next_do_not() {
        let first_byte = Duration::from_millis(20);
        let way = way(first_byte);
        for _ in 0..3 {
            assert_eq!(way.delay(Direction::Up), Duration::ZERO);
            assert_eq!(way.delay(Direction::Up), Duration::ZERO, "a request in two pieces");
            assert_eq!(way.delay(Direction::Down), first_byte);
            assert_eq!(way.delay(Direction::Down), Duration::ZERO);
        }
    }

    #[test]
    fn connections_share_the_whole_and_have_a_rate_of_their_own() {
        let begun = Instant::now();
        let one = way(Duration::ZERO);
        let other = Way { connection: Shared::new(RATE), whole: one.whole.clone(), ..way(BURST) };
        // Two seconds of the one are 1.8 of the whole, which has 100 MB in a second.
        let due = (one.due(180_000_000, begun), other.due(20_000_000, begun));
        let seconds = |due: Instant| (due - begun).as_secs_f64();
        assert!((seconds(due.0) - 2.0).abs() < 0.01, "{due:?}");
        assert!((seconds(due.1) - 2.0).abs() < 0.01, "{due:?}");
        assert!((seconds(other.due(90_000_000, begun)) - 2.9).abs() < 0.01);
    }

    #[tokio::test]
    async fn bytes_go_through_both_ways_until_both_sides_have_ended() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let upstream = listener.local_addr().expect("it is bound").to_string();
        let front = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let place = front.local_addr().expect("it is bound");
        let mut client = TcpStream::connect(place).await.expect("somebody listens");
        let (inner, _) = front.accept().await.expect("somebody connects");
        let carrier =
            tokio::spawn(async move { carry(inner, &upstream, &way(Duration::ZERO)).await });
        let (mut server, _) = listener.accept().await.expect("the carrier connects");
        // Less than sockets hold, so that nobody has to read meanwhile.
        let sent: Vec<u8> = (0..2 * BUFFER).map(|nth| nth.to_le_bytes()[1]).collect();
        let mut found = vec![0; sent.len()];
        client.write_all(&sent).await.expect("the way is open");
        server.read_exact(&mut found).await.expect("the way is open");
        assert!(found == sent, "what went up is another");
        client.shutdown().await.expect("it is open");
        assert_eq!(server.read(&mut found).await.expect("the way is open"), 0);
        server.write_all(&sent).await.expect("the way is open");
        drop(server);
        client.read_exact(&mut found).await.expect("the way is open");
        assert!(found == sent, "what came down is another");
        assert_eq!(client.read(&mut found).await.expect("the way is open"), 0);
        carrier.await.expect("it does not panic").expect("both sides have ended");
    }

    fn way(first_byte: Duration) -> Way {
        Way {
            first_byte,
            is_asked: AtomicBool::new(false),
            connection: Shared::new(RATE),
            whole: Shared::new(Rate(100 * MB)),
        }
    }

    #[test]
    fn rates_are_whole_megabytes() {
        assert_eq!("90MB".parse(), Ok(RATE));
        for wrong in ["", "90", "MB", "0MB", "-1MB", "5000MB"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
    }
}
