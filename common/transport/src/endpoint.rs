//! One UDP socket, its QUIC endpoint, and the thread that drives both.
//!
//! One endpoint is one task in quinn. Several sockets on threads of their own scale; a
//! work-stealing runtime under one socket halves its speed (measured: 0.4 GB/s with two workers,
//! 0.8 with one, at an MTU of 1452; 0.95 and 2.1 at 8900).
//!
//! Connections may be used from any thread and any tokio runtime: timers and drivers always run on
//! the endpoint's own.
//!
//! # Figures
//! Over loopback at MTU 8900 (16,000 now), client and server one process each on a 2-core AMD EPYC
//! virtual machine, this workspace's development profile, other builds running beside it. 1 MiB
//! replies, 8 to 32 in flight: 3.5 GB/s at 0.28 CPU-seconds per GB at the client; one at a time:
//! 2.6 GB/s; 1 MiB bodies to the server: 3.2 GB/s. At a load of 15 the same took 0.45 CPU-seconds
//! per GB at each end and gave 0.8 GB/s. Small requests: 98 us one at a time, 117,000 per second
//! with 64 in flight. The server took 20 MiB of resident memory.

use std::{
    fmt, io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use quinn::{
    AckFrequencyConfig, AsyncTimer, AsyncUdpSocket, EndpointConfig, IdleTimeout,
    MtuDiscoveryConfig, Runtime, ServerConfig, TransportConfig, VarInt, congestion::CubicConfig,
};
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    settings::{MTU_JUMBO, MTU_LOOPBACK, MTU_MIN, Mtu, TransportSettings},
    socket::{self, CappedSocket, Sharing},
};

/// A running endpoint. Dropping the last clone ends its thread and its connections.
#[derive(Clone)]
pub(crate) struct Endpoint {
    quic: quinn::Endpoint,
    runtime: Handle,
    _stop: Arc<DropGuard>,
}

/// What an endpoint is made of.
pub(crate) struct EndpointParts {
    pub(crate) bind: SocketAddr,
    /// Whether several endpoints are bound to the same address.
    pub(crate) sharing: Sharing,
    pub(crate) config: EndpointConfig,
    pub(crate) server: Option<ServerConfig>,
    /// Ends the thread, besides the drop of the last handle.
    pub(crate) stopped: CancellationToken,
}

impl Endpoint {
    /// Opens the socket and starts the thread.
    pub(crate) fn start(
        name: &'static str,
        mut parts: EndpointParts,
        settings: &TransportSettings,
    ) -> io::Result<Self> {
        let socket = socket::open(parts.bind, settings.socket_buffer_bytes, parts.sharing)?;
        parts.config.max_udp_payload_size(MTU_LOOPBACK).expect("it is within QUIC's limits");
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let driver = Arc::new(EndpointRuntime(handle.clone()));
        let socket = CappedSocket::new(driver.wrap_udp_socket(socket)?, MTU_LOOPBACK);
        let quic = quinn::Endpoint::new_with_abstract_socket(
            parts.config,
            parts.server,
            Arc::new(socket),
            driver,
        )?;
        let stop = parts.stopped.child_token();
        let (stopping, ending) = (stop.clone(), quic.clone());
        let (ready, started) = mpsc::sync_channel(1);
        let work = move || {
            let announced = ready.send(()).is_ok();
            runtime.block_on(async move {
                if announced {
                    stopping.cancelled().await;
                }
                ending.close(VarInt::from_u32(0), b"");
                // Peers learn of it by the close frames; who misses his waits for his idle timeout.
                let idle = tokio::time::timeout(CLOSE_PAUSE, ending.wait_idle());
                drop(idle.await);
            });
        };
        drop(thread::Builder::new().name(name.to_owned()).spawn(work)?);
        started.recv().map_err(|_| io::Error::other("the endpoint's thread ended at once"))?;
        Ok(Self { quic, runtime: handle, _stop: Arc::new(stop.drop_guard()) })
    }

    pub(crate) fn quic(&self) -> &quinn::Endpoint {
        &self.quic
    }

    /// Where tasks of this endpoint's connections run.
    pub(crate) fn runtime(&self) -> &Handle {
        &self.runtime
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Endpoint").field(&self.quic.local_addr()).finish()
    }
}

/// What the two ends of a connection set differently.
pub(crate) struct Windows {
    /// Requests that the peer may have in flight.
    pub(crate) streams: u32,
    /// Unread bytes of one stream.
    pub(crate) stream: u32,
    /// Unread bytes of the whole connection.
    pub(crate) connection: u64,
}

/// How a connection with `peer` behaves.
pub(crate) fn transport_config(
    settings: &TransportSettings,
    peer: SocketAddr,
    windows: &Windows,
) -> TransportConfig {
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(VarInt::from_u32(windows.streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(VarInt::from_u32(windows.stream))
        .receive_window(var_int(windows.connection))
        .send_window(u64::from(settings.send_window_bytes))
        // One reply after the other is complete sooner than all at once.
        .send_fairness(false)
        .max_idle_timeout(IdleTimeout::try_from(settings.idle_timeout()).ok())
        // The pool sends datagrams of one byte to keep a connection alive; nobody reads them.
        .keep_alive_interval(None)
        .datagram_receive_buffer_size(Some(KEEP_ALIVE_BUFFER))
        .datagram_send_buffer_size(KEEP_ALIVE_BUFFER)
        .initial_rtt(INITIAL_RTT)
        .ack_frequency_config(Some(ack_frequency()))
        .congestion_controller_factory(Arc::new(congestion(settings)));
    let loopback = peer.ip().to_canonical().is_loopback();
    match settings.mtu {
        Mtu::Auto if loopback => config.initial_mtu(MTU_LOOPBACK).mtu_discovery_config(None),
        Mtu::Auto => {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(MTU_JUMBO);
            config.initial_mtu(MTU_MIN).mtu_discovery_config(Some(discovery))
        }
        Mtu::Bytes(bytes) => config.initial_mtu(bytes).mtu_discovery_config(None),
    };
    config
}

/// A number of bytes as QUIC encodes it, cut at QUIC's largest.
pub(crate) fn var_int(bytes: u64) -> VarInt {
    VarInt::from_u64(bytes).unwrap_or(VarInt::MAX)
}

fn ack_frequency() -> AckFrequencyConfig {
    let mut config = AckFrequencyConfig::default();
    config.ack_eliciting_threshold(VarInt::from_u32(ACK_EVERY));
    config.max_ack_delay(Some(ACK_DELAY_MAX));
    config
}

fn congestion(settings: &TransportSettings) -> CubicConfig {
    let mut config = CubicConfig::default();
    config.initial_window(u64::from(settings.initial_window_bytes));
    config
}

/// quinn's calls into tokio, bound to one runtime instead of that of whoever calls.
#[derive(Debug)]
struct EndpointRuntime(Handle);

impl Runtime for EndpointRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        let _entered = self.0.enter();
        quinn::TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        drop(self.0.spawn(future));
    }

    fn wrap_udp_socket(&self, socket: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        let _entered = self.0.enter();
        quinn::TokioRuntime.wrap_udp_socket(socket)
    }
}

/// How long the close frames of an ending endpoint may take.
pub(crate) const CLOSE_PAUSE: Duration = Duration::from_millis(200);

/// Before the first measurement. A lost first packet is sent again after three times this; quinn's
/// 333 ms suit the open Internet.
const INITIAL_RTT: Duration = Duration::from_millis(50);

/// One acknowledgement for so many packets: at 8,900 bytes a packet, one for 140 KB.
const ACK_EVERY: u32 = 16;

/// An acknowledgement is never held back longer.
const ACK_DELAY_MAX: Duration = Duration::from_millis(5);

const KEEP_ALIVE_BUFFER: usize = 1024;
