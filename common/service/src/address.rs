//! Addresses of servers as settings write them: `host:port`, a name or an IP address.
//!
//! For an address to listen on use [`std::net::SocketAddr`] itself; a server that others name by
//! DNS is a [`ServerAddress`], which is resolved anew at each connection attempt, so that a moved
//! server is found again.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

/// The port that a metadata server listens on when nothing else is said.
pub const METADATA_PORT: u16 = 7440;

/// The port that a storage target daemon listens on when nothing else is said.
pub const TARGET_PORT: u16 = 7441;

/// A server: DNS name or IP address, and port. The host is 1 to 255 bytes, the port is not 0.
#[derive(
    Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, serde::Serialize, serde::Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct ServerAddress {
    host: String,
    port: u16,
}

impl ServerAddress {
    /// Reads `host`, `host:port`, `1.2.3.4:port`, `::1` or `[::1]:port`; the port may be left out.
    ///
    /// # Errors
    /// [`ParseAddressError`] for anything else.
    pub fn parse_with_port(text: &str, default_port: u16) -> Result<Self, ParseAddressError> {
        let fail = || ParseAddressError(text.to_owned());
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(Self::new(ip.to_string(), default_port));
        }
        if let Ok(address) = text.parse::<SocketAddr>() {
            return match address.port() {
                0 => Err(fail()),
                port => Ok(Self::new(address.ip().to_string(), port)),
            };
        }
        let (host, port) = match text.split_once(':') {
            None => (text, default_port),
            Some((host, port)) => (host, port.parse().map_err(|_| fail())?),
        };
        if !is_host_name(host) || port == 0 {
            return Err(fail());
        }
        Ok(Self::new(host.to_owned(), port))
    }

    fn new(host: String, port: u16) -> Self {
        Self { host, port }
    }

    /// The DNS name or IP address.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Looks the name up. May be dropped at any time.
    ///
    /// # Errors
    /// Those of the resolver, and [`std::io::ErrorKind::NotFound`] when it knows no address.
    pub async fn resolve(&self) -> std::io::Result<Vec<SocketAddr>> {
        let found: Vec<_> =
            tokio::net::lookup_host((self.host.as_str(), self.port)).await?.collect();
        if found.is_empty() {
            return Err(std::io::Error::new(
                std::io::ErrorKind::NotFound,
                format!("no address for {}", self.host),
            ));
        }
        Ok(found)
    }
}

impl From<SocketAddr> for ServerAddress {
    fn from(address: SocketAddr) -> Self {
        Self::new(address.ip().to_string(), address.port())
    }
}

impl FromStr for ServerAddress {
    type Err = ParseAddressError;

    fn from_str(text: &str) -> Result<Self, ParseAddressError> {
        match Self::parse_with_port(text, 0) {
            // Port 0 can only come from the default: here the port must be written.
            Ok(address) if address.port == 0 => Err(ParseAddressError(text.to_owned())),
            other => other,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl TryFrom<String> for ServerAddress {
    type Error = ParseAddressError;

    fn try_from(text: String) -> Result<Self, ParseAddressError> {
        text.parse()
    }
}

impl From<ServerAddress> for String {
    fn from(address: ServerAddress) -> Self {
        address.to_string()
    }
}

/// A text is no server address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a server address: {0:?} (write host:port, such as meta-1:7440 or [::1]:7440)")]
pub struct ParseAddressError(String);

fn is_host_name(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    (1..=255).contains(&host.len()) && host.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_prints_as_it_is_read() {
        for text in ["meta-1:7440", "10.0.0.1:1", "[::1]:65535", "a.b_c.example:80"] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
        }
    }

    #[test]
    fn a_port_is_needed_unless_a_default_is_given() {
        assert!("meta-1".parse::<ServerAddress>().is_err());
        for (text, expected) in [
            ("meta-1", "meta-1:7440"),
            ("::1", "[::1]:7440"),
            ("10.0.0.1", "10.0.0.1:7440"),
            ("meta-1:9", "meta-1:9"),
        ] {
            let address = ServerAddress::parse_with_port(text, METADATA_PORT).unwrap();
            assert_eq!(address.to_string(), expected);
        }
        for text in ["", ":1", "a b:1", "a:0", "a:65536", "a:b:c", "127.0.0.1:0", "é:1"] {
            assert!(ServerAddress::parse_with_port(text, 1).is_err(), "{text}");
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
