//! The knobs of bucket access.

use std::{path::PathBuf, time::Duration};

use millrace_types::{ByteLen, MIB};

/// Limits and timeouts of one bucket, the same for all buckets of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where named credentials are. Default: none, so that only the environment's are known.
    pub credentials_file: Option<PathBuf>,
    /// Requests in flight to one bucket. Default 64: beyond some 50 streams a 100 Gb/s host gains
    /// nothing from S3. Each costs a connection.
    pub requests_in_flight_max: usize,
    /// Bytes asked for or being sent, per bucket. Default 256 MiB. It bounds what slow receivers
    /// keep outstanding, not memory: bodies are handed on as they arrive.
    pub bytes_in_flight_max: ByteLen,
    /// How long an operation waits for its turn under the two limits. Default 60 s; after that it
    /// fails as busy.
    pub queue_timeout: Duration,
    /// How long a connection may take. Default 5 s.
    pub connect_timeout: Duration,
    /// How long a server may stay silent in the middle of an exchange, or send less than 1 KiB/s.
    /// A change has it and a second for each 128 KiB of its body until its answer begins. An answer
    /// that refuses comes in whole within it, and the answer to a change within ten times as long;
    /// completions and copies, which may take minutes, have ten minutes at least for both. Default
    /// 60 s.
    pub read_timeout: Duration,
    /// How often a request is repeated after a transient failure. Default 5.
    pub retries_max: usize,
    /// How long all attempts of one request may take together. Default 120 s.
    pub retry_timeout: Duration,
    /// How long [`Bucket::check`](crate::Bucket::check) may take. Default 10 s.
    pub check_timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            credentials_file: None,
            requests_in_flight_max: 64,
            bytes_in_flight_max: ByteLen(256 * MIB),
            queue_timeout: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(60),
            retries_max: 5,
            retry_timeout: Duration::from_secs(120),
            check_timeout: Duration::from_secs(10),
        }
    }
}
