//! UDP sockets with large buffers, and the cap that makes jumbo datagrams work.
//!
//! quinn joins up to 10 datagrams into one send (GSO). Ten times a jumbo datagram is more than
//! UDP's 65,507 bytes; the kernel answers EMSGSIZE, which is swallowed, and the connection hangs or
//! crawls (measured: 0.3-0.5 GB/s instead of 2.1). [`CappedSocket`] therefore sends what quinn has
//! joined in as many parts as it takes.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use quinn::{
    AsyncUdpSocket, UdpPoller,
    udp::{RecvMeta, Transmit},
};
use rustix::net::sockopt;
use socket2::{Domain, Protocol, Socket, Type};

/// Whether several sockets are bound to one address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sharing {
    /// Only this one.
    Alone,
    /// The first of several: nobody else may have the address.
    First,
    /// Another one of them.
    Further,
}

/// Opens a socket bound to `address`.
pub(crate) fn open(
    address: SocketAddr,
    buffer_bytes: u32,
    sharing: Sharing,
) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    if sharing == Sharing::Further {
        socket.set_reuse_port(true)?;
    }
    let bytes = buffer_bytes as usize;
    // The plain variants are silently limited by the sysctl, which is as much as can be had.
    if sockopt::set_socket_recv_buffer_size_force(&socket, bytes).is_err() {
        socket.set_recv_buffer_size(bytes)?;
    }
    if sockopt::set_socket_send_buffer_size_force(&socket, bytes).is_err() {
        socket.set_send_buffer_size(bytes)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    // Not before: it would share the address with a server that was there already.
    if sharing == Sharing::First {
        socket.set_reuse_port(true)?;
    }
    Ok(socket.into())
}

/// A socket that never joins more datagrams than UDP can carry.
pub(crate) struct CappedSocket {
    inner: Arc<dyn AsyncUdpSocket>,
    receive_segments_max: usize,
}

impl CappedSocket {
    /// Datagrams that arrive have `payload_max` bytes at most.
    pub(crate) fn new(inner: Arc<dyn AsyncUdpSocket>, payload_max: u16) -> Self {
        let payload = usize::from(payload_max);
        Self {
            // quinn allocates this many times the payload per receive slot, though the kernel
            // joins at most 64 KiB; without the limit an endpoint takes 18 MiB for it.
            receive_segments_max: (64 * 1024_usize).div_ceil(payload),
            inner,
        }
    }
}

/// Bytes of each part of a batch of `len` bytes in datagrams of `segment` bytes: as few parts as
/// UDP allows, of about the same length.
fn part_len(len: usize, segment: usize) -> usize {
    assert!(segment > 0, "a datagram has bytes");
    let segments = len.div_ceil(segment);
    let fitting = (UDP_PAYLOAD_MAX / segment).max(1);
    segments.div_ceil(segments.div_ceil(fitting).max(1)) * segment
}

impl AsyncUdpSocket for CappedSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Arc::clone(&self.inner).create_io_poller()
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(segment) = transmit.segment_size else { return self.inner.try_send(transmit) };
        let part = part_len(transmit.contents.len(), segment);
        for contents in transmit.contents.chunks(part.max(1)) {
            let segment_size = (contents.len() > segment).then_some(segment);
            // When a later part finds the socket full, quinn sends all of it again: the peer drops
            // datagrams that it has seen.
            self.inner.try_send(&Transmit { contents, segment_size, ..*transmit })?;
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        context: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        self.inner.poll_recv(context, buffers, meta)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        self.inner.max_transmit_segments()
    }

    fn max_receive_segments(&self) -> usize {
        self.inner.max_receive_segments().min(self.receive_segments_max)
    }

    fn may_fragment(&self) -> bool {
        self.inner.may_fragment()
    }
}

impl fmt::Debug for CappedSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CappedSocket").finish_non_exhaustive()
    }
}

/// The most that one UDP send can carry over IPv4.
const UDP_PAYLOAD_MAX: usize = 65_507;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_goes_out_in_the_fewest_parts_that_udp_carries() {
        assert_eq!(part_len(10 * 1452, 1452), 10 * 1452, "all at once");
        assert_eq!(part_len(10 * 8900, 8900), 5 * 8900, "two of the same length");
        assert_eq!(part_len(10 * 16_000, 16_000), 4 * 16_000, "three");
        assert_eq!(part_len(9 * 8900 + 17, 8900), 5 * 8900, "the last datagram may be short");
        for segment in [1, 1200, 8900, 16_000, 65_507] {
            for segments in 1..=10 {
                let part = part_len(segments * segment, segment);
                assert!(part <= UDP_PAYLOAD_MAX && part.is_multiple_of(segment), "{part}");
            }
        }
    }
}
