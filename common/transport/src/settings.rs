//! The knobs of the network: unit, default, cost.

use std::{num::NonZero, thread, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

/// How this node uses the network. Every field has a default that suits a data centre.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSettings {
    /// Size of UDP payloads: `"auto"`, or 1200 to 9000 bytes.
    pub mtu: Mtu,
    /// Sockets from which a client asks for bulk, 1 to 8; each has its own thread. A peer is asked
    /// over one of them, and over up to four while much is asked of it. Several help where one
    /// thread is the bound (1 to 2 GB/s), or the network limits a single flow (clouds: 5 Gb/s).
    pub bulk_sockets: u8,
    /// Sockets (and threads) on which a server listens, 1 to 8; the kernel spreads its clients'
    /// sockets over them.
    pub server_sockets: u8,
    /// Kernel buffer of each socket and direction, in bytes. Beyond `net.core.rmem_max` it needs
    /// `CAP_NET_ADMIN`; less is taken otherwise.
    pub socket_buffer_bytes: u32,
    /// How much of a body a peer may send before the server has asked for it, in bytes per request.
    /// Larger helps a single writer over a long line; costs memory for each request in flight.
    pub stream_window_bytes: u32,
    /// Requests that one connection may have in flight at a server over QUIC, 1 to 1024. Places of
    /// ended ones are given back in steps of an eighth.
    pub streams_per_connection: u32,
    /// Requests that a connection between two daemons of one host may have in flight besides, past
    /// the network, over local sockets: 0 to 1024. The less of both ends counts; 0 sends all over
    /// QUIC. Each socket takes a megabyte of kernel memory at most, and `send_budget_bytes` is
    /// enough for all of a server.
    pub same_host_streams: u16,
    /// Received bytes that all connections of this node together may hold in memory.
    pub receive_budget_bytes: u64,
    /// Bytes that one connection may have sent without confirmation.
    pub send_window_bytes: u32,
    /// Sent bytes without confirmation that all connections of a server together may hold in
    /// memory, as long as each has 256 KiB.
    pub send_budget_bytes: u64,
    /// Congestion window of a new connection in bytes. Large, because a data centre's switches
    /// take a burst; smaller on thin lines.
    pub initial_window_bytes: u32,
    /// A connection on which nothing arrives for so long is given up, in milliseconds.
    pub idle_timeout_ms: u32,
    /// A client keeps a connection that is not used for so long, in milliseconds; one small packet
    /// a second.
    pub linger_ms: u32,
    /// How long a client waits for a server's answer to a new connection before it tries again or
    /// another address, in milliseconds.
    pub connect_timeout_ms: u32,
    /// Connections that a server holds, in all; fewer where `receive_budget_bytes` is too small for
    /// them. Clients take no more than seven eighths: the last are for servers and operators.
    pub connections_max: u32,
    /// Connections that a server holds for one host.
    pub connections_per_host_max: u32,
    /// Handshakes that a server has under way; each costs up to a millisecond of CPU.
    pub handshakes_max: u32,
    /// How long a peer may take for its handshake, in milliseconds.
    pub handshake_timeout_ms: u32,
    /// How long a peer may take to send header and message of a request, in milliseconds.
    pub message_timeout_ms: u32,
}

impl Default for TransportSettings {
    fn default() -> Self {
        Self {
            mtu: Mtu::Auto,
            bulk_sockets: 1,
            server_sockets: 1,
            socket_buffer_bytes: 8 * MIB,
            stream_window_bytes: 256 * KIB,
            streams_per_connection: 64,
            same_host_streams: 64,
            receive_budget_bytes: 128 * u64::from(MIB),
            send_window_bytes: 16 * MIB,
            send_budget_bytes: 256 * u64::from(MIB),
            initial_window_bytes: MIB,
            idle_timeout_ms: 5_000,
            linger_ms: 60_000,
            connect_timeout_ms: 1_000,
            connections_max: 1_024,
            connections_per_host_max: 256,
            handshakes_max: 128,
            handshake_timeout_ms: 5_000,
            message_timeout_ms: 10_000,
        }
    }
}

impl TransportSettings {
    /// For a server that receives small messages from many clients and no bodies.
    ///
    /// A message that is larger than a stream's window waits for a round trip in its middle: small
    /// files come with their bytes (16 KiB at most), several in one message where programs make
    /// several at a time. The budget is what 2,048 connections need at least: four requests each,
    /// of 48 KiB and a quarter. That is 1,792 mounts, each of which has one connection: more of
    /// them take 240 KiB each of a larger budget, and a higher maximum.
    #[must_use]
    pub fn metadata() -> Self {
        Self {
            stream_window_bytes: 48 * KIB,
            streams_per_connection: 256,
            receive_budget_bytes: 512 * u64::from(MIB),
            connections_max: 2_048,
            ..Self::default()
        }
    }

    /// For a mount, which reads and writes bulk: a socket for every four processors.
    #[must_use]
    pub fn mount() -> Self {
        Self { bulk_sockets: a_quarter_of(processors()), ..Self::default() }
    }

    /// For a server of bulk: a socket for every four processors.
    ///
    /// The budget carries 409 connections, each with its least windows (four requests of 320 KiB);
    /// half of them are kept for mounts that have none yet.
    #[must_use]
    pub fn target() -> Self {
        Self {
            server_sockets: a_quarter_of(processors()),
            receive_budget_bytes: 512 * u64::from(MIB),
            ..Self::default()
        }
    }

    /// Reads a table that names some of the settings; the others are those of `preset`.
    ///
    /// # Errors
    /// Of the format, such as a key that is not known.
    pub fn over<'de, D: Deserializer<'de>>(preset: &Self, named: D) -> Result<Self, D::Error> {
        let named = toml::Table::deserialize(named)?;
        let mut whole = toml::Table::try_from(preset).map_err(D::Error::custom)?;
        whole.extend(named);
        whole.try_into().map_err(D::Error::custom)
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`SettingsError`] that names the field.
    pub fn check(&self) -> Result<(), SettingsError> {
        let within = |name, value: u64, min: u64, max: u64| match (min..=max).contains(&value) {
            true => Ok(()),
            false => Err(SettingsError { name, value, min, max }),
        };
        if let Mtu::Bytes(bytes) = self.mtu {
            let (min, max) = (u64::from(MTU_MIN), u64::from(MTU_MAX));
            within("mtu", bytes.into(), min, max)?;
        }
        let (kib, mib) = (u64::from(KIB), u64::from(MIB));
        within("bulk_sockets", self.bulk_sockets.into(), 1, SOCKETS_MAX.into())?;
        within("server_sockets", self.server_sockets.into(), 1, SOCKETS_MAX.into())?;
        let buffer = self.socket_buffer_bytes.into();
        within("socket_buffer_bytes", buffer, 64 * kib, 256 * mib)?;
        let window = self.stream_window_bytes.into();
        within("stream_window_bytes", window, 16 * kib, 16 * mib)?;
        let streams = self.streams_per_connection.into();
        within("streams_per_connection", streams, 1, 1024)?;
        within("same_host_streams", self.same_host_streams.into(), 0, 1024)?;
        let (budget, least) = (self.receive_budget_bytes, 8 * window);
        within("receive_budget_bytes", budget, least, 64 * 1024 * mib)?;
        let window = self.send_window_bytes.into();
        within("send_window_bytes", window, 64 * kib, 1024 * mib)?;
        let budget = self.send_budget_bytes;
        within("send_budget_bytes", budget, mib, 64 * 1024 * mib)?;
        let window = self.initial_window_bytes.into();
        within("initial_window_bytes", window, 14 * kib, 64 * mib)?;
        within("idle_timeout_ms", self.idle_timeout_ms.into(), 1_500, 600_000)?;
        within("linger_ms", self.linger_ms.into(), 0, 86_400_000)?;
        let timeout = self.connect_timeout_ms.into();
        within("connect_timeout_ms", timeout, 100, 60_000)?;
        within("connections_max", self.connections_max.into(), 1, 65_536)?;
        let per_host = self.connections_per_host_max.into();
        within("connections_per_host_max", per_host, 1, 65_536)?;
        within("handshakes_max", self.handshakes_max.into(), 1, 65_536)?;
        let timeout = self.handshake_timeout_ms.into();
        within("handshake_timeout_ms", timeout, 100, 60_000)?;
        let timeout = self.message_timeout_ms.into();
        within("message_timeout_ms", timeout, 100, 600_000)
    }

    pub(crate) fn idle_timeout(&self) -> Duration {
        Duration::from_millis(self.idle_timeout_ms.into())
    }

    pub(crate) fn linger(&self) -> Duration {
        Duration::from_millis(self.linger_ms.into())
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms.into())
    }

    pub(crate) fn handshake_timeout(&self) -> Duration {
        Duration::from_millis(self.handshake_timeout_ms.into())
    }

    pub(crate) fn message_timeout(&self) -> Duration {
        Duration::from_millis(self.message_timeout_ms.into())
    }
}

/// Processors that this process may use.
fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Sockets for a machine of so many processors. The others are for the kernel's part of the work,
/// for FUSE or the disks, and for programs.
fn a_quarter_of(processors: usize) -> u8 {
    u8::try_from((processors / 4).clamp(1, SOCKETS_MAX.into())).unwrap_or(SOCKETS_MAX)
}

/// The size of UDP payloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", from = "MtuText", into = "MtuText")]
pub enum Mtu {
    /// Jumbo at once to peers on this machine; to others from 1,200 bytes up to what the path
    /// proves to carry.
    #[default]
    Auto,
    /// This size, never probed. For paths whose size is known.
    Bytes(u16),
}

/// How [`Mtu`] looks in a settings file.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum MtuText {
    Bytes(u16),
    Word(AutoWord),
}

#[derive(Serialize, Deserialize)]
enum AutoWord {
    #[serde(rename = "auto")]
    Auto,
}

impl From<MtuText> for Mtu {
    fn from(text: MtuText) -> Self {
        match text {
            MtuText::Bytes(bytes) => Self::Bytes(bytes),
            MtuText::Word(AutoWord::Auto) => Self::Auto,
        }
    }
}

impl From<Mtu> for MtuText {
    fn from(mtu: Mtu) -> Self {
        match mtu {
            Mtu::Auto => Self::Word(AutoWord::Auto),
            Mtu::Bytes(bytes) => Self::Bytes(bytes),
        }
    }
}

/// A setting is out of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("transport setting {name} is {value}, but must be {min} to {max}")]
pub struct SettingsError {
    /// Which setting.
    pub name: &'static str,
    /// What it is.
    pub value: u64,
    /// The least that it may be.
    pub min: u64,
    /// The most that it may be.
    pub max: u64,
}

/// QUIC requires that every path carries this.
pub(crate) const MTU_MIN: u16 = 1200;

/// A 9,000-byte Ethernet frame less IPv6 and UDP headers is 8,952; 8,900 leaves room for a tunnel.
/// Sizes from 16,384 trip an assertion in quinn.
pub(crate) const MTU_JUMBO: u16 = 8900;

/// The largest payload that the settings may name.
pub(crate) const MTU_MAX: u16 = 9000;

/// What loopback carries in one piece, with room below quinn's limit of 16,384: two daemons of one
/// host spend less on packets. It is also the largest payload that a node accepts.
pub(crate) const MTU_LOOPBACK: u16 = 16_000;

/// The most that the design asks for, and that was measured (on 16 processors).
const SOCKETS_MAX: u8 = 8;

const KIB: u32 = 1024;
const MIB: u32 = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_presets_are_valid() {
        assert_eq!(TransportSettings::default().check(), Ok(()));
        assert_eq!(TransportSettings::metadata().check(), Ok(()));
        assert_eq!(TransportSettings::mount().check(), Ok(()));
        assert_eq!(TransportSettings::target().check(), Ok(()));
    }

    #[test]
    fn sockets_follow_the_processors() {
        let sockets = [1, 2, 7, 8, 16, 32, 4096].map(a_quarter_of);
        assert_eq!(sockets, [1, 1, 1, 2, 4, 8, 8]);
    }

    #[test]
    fn what_a_table_does_not_name_is_the_presets() {
        let preset = TransportSettings { bulk_sockets: 3, ..TransportSettings::metadata() };
        let read =
            |text| TransportSettings::over(&preset, toml::Deserializer::parse(text).unwrap());
        assert_eq!(read("").unwrap(), preset);
        let named = TransportSettings { mtu: Mtu::Bytes(1452), ..preset.clone() };
        assert_eq!(read("mtu = 1452").unwrap(), named);
        assert!(read("bulk_socket = 2").is_err());
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let settings = TransportSettings { bulk_sockets: 9, ..TransportSettings::default() };
        let error = settings.check().unwrap_err().to_string();
        let expected = "transport setting bulk_sockets is 9, but must be 1 to 8";
        assert_eq!(error, expected);
    }

    #[test]
    fn settings_read_from_toml_and_refuse_what_they_do_not_know() {
        let settings: TransportSettings = toml::from_str("mtu = 1452\nbulk_sockets = 2").unwrap();
        assert_eq!((settings.mtu, settings.bulk_sockets), (Mtu::Bytes(1452), 2));
        let settings: TransportSettings = toml::from_str("mtu = \"auto\"").unwrap();
        assert_eq!(settings, TransportSettings::default());
        assert!(toml::from_str::<TransportSettings>("mtu = \"big\"").is_err());
        assert!(toml::from_str::<TransportSettings>("bulk_socket = 2").is_err());
    }
}
