//! How a link follows its bucket.

use clap::{Args, ValueEnum};
use millrace_protocol::{
    admin::AttributeSource,
    ahead::FetchPolicy,
    bucket::QUIET_SECONDS_MAX,
    refresh::{REFRESH_INTERVAL_SECONDS_MAX, REFRESH_INTERVAL_SECONDS_MIN},
};

/// How a link follows its bucket.
#[derive(Args, Debug)]
pub struct LinkOptionArguments {
    /// A directory listed longer ago is listed again when somebody looks; 0: only on command
    #[arg(long, value_name = "SECONDS", help_heading = "Following the bucket")]
    pub refresh: Option<u32>,
    /// The server itself lists directories again that were listed once, so often; or off
    #[arg(long, value_name = "SECONDS", value_parser = RefreshEvery::parse,
        help_heading = "Following the bucket")]
    pub refresh_every: Option<RefreshEvery>,
    /// Where owner, mode and kind of listed objects come from
    #[arg(long, value_enum, help_heading = "Following the bucket")]
    pub attributes: Option<AttributesName>,
    /// Files go to the bucket by themselves once left alone for so long; or off
    #[arg(long, value_name = "SECONDS", value_parser = AutoExportName::parse,
        help_heading = "Following the bucket")]
    pub auto_export: Option<AutoExportName>,
    /// What is fetched behind reads that had to wait for the bucket
    #[arg(long, value_enum, help_heading = "Following the bucket")]
    pub fetch: Option<FetchName>,
    /// Objects of what is removed here are deleted, and those that files left behind under another
    /// key
    #[arg(long, value_enum, value_name = "SWITCH", num_args = 0..=1, default_missing_value = "on",
        require_equals = true, help_heading = "Following the bucket")]
    pub propagate_deletes: Option<SwitchName>,
}

/// Whether something is so.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchName {
    /// It is.
    On,
    /// It is not.
    Off,
}

/// What is fetched behind reads.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum FetchName {
    /// Nothing: only what was asked for
    Asked,
    /// The rest of the chunk
    Chunk,
    /// The rest of the file
    File,
    /// Other small files of the directory, the more the more of them were waited for
    Ahead,
}

impl FetchName {
    /// As it is asked for.
    pub(crate) fn policy(self) -> FetchPolicy {
        match self {
            Self::Asked => FetchPolicy::Asked,
            Self::Chunk => FetchPolicy::Chunk,
            Self::File => FetchPolicy::File,
            Self::Ahead => FetchPolicy::Ahead,
        }
    }
}

/// Whether files go to the bucket by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AutoExportName {
    /// They do not.
    Off,
    /// Once they have been left alone for so many seconds.
    After(u32),
}

impl AutoExportName {
    fn parse(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "off" => Ok(Self::Off),
            Ok(seconds) if seconds <= QUIET_SECONDS_MAX => Ok(Self::After(seconds)),
            _ => Err(format!("a number of seconds up to {QUIET_SECONDS_MAX} (a day), or off")),
        }
    }

    /// As it is asked for.
    pub(crate) fn quiet_seconds(self) -> Option<u32> {
        match self {
            Self::Off => None,
            Self::After(seconds) => Some(seconds),
        }
    }
}

/// Whether a link is listed again by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshEvery {
    /// It is not.
    Off,
    /// Each so many seconds.
    Seconds(u32),
}

impl RefreshEvery {
    fn parse(text: &str) -> Result<Self, String> {
        let (least, most) = (REFRESH_INTERVAL_SECONDS_MIN, REFRESH_INTERVAL_SECONDS_MAX);
        match text.parse() {
            _ if text == "off" => Ok(Self::Off),
            Ok(seconds) if (least..=most).contains(&seconds) => Ok(Self::Seconds(seconds)),
            _ => Err(format!("a number of seconds from {least} to {most} (thirty days), or off")),
        }
    }

    /// As it is asked for.
    pub(crate) fn every_seconds(self) -> Option<u32> {
        match self {
            Self::Off => None,
            Self::Seconds(seconds) => Some(seconds),
        }
    }
}

/// Where attributes come from.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttributesName {
    /// From the listing alone: no further requests, the link's defaults
    Listing,
    /// From each new or changed object's metadata: one HEAD for each
    Objects,
}

impl AttributesName {
    /// The word on the wire.
    pub(crate) fn source(self) -> AttributeSource {
        match self {
            Self::Listing => AttributeSource::Listing,
            Self::Objects => AttributeSource::Objects,
        }
    }
}
