//! Durations in settings: text with a unit, such as `"30s"`, `"1m 30s"` or `"250ms"`.
//!
//! Use as `#[serde(with = "millrace_service::duration")]` on a [`Duration`], and
//! `millrace_service::duration::option` on an `Option<Duration>`. A bare number is refused, so that
//! nobody has to guess its unit. The parser is jiff's, which the workspace has anyway for dates; it
//! accepts the unit names that people write and never a negative duration here.

use std::time::Duration;

use jiff::SignedDuration;
use serde::{Deserializer, Serializer, de};

/// Reads a duration as settings and arguments write it.
///
/// # Errors
/// [`ParseDurationError`] when the text is no duration, or a negative one.
pub fn parse(text: &str) -> Result<Duration, ParseDurationError> {
    let signed: SignedDuration =
        text.trim().parse().map_err(|_| ParseDurationError(text.to_owned()))?;
    Duration::try_from(signed).map_err(|_| ParseDurationError(text.to_owned()))
}

/// Writes a duration so that [`parse`] reads it back.
#[must_use]
pub fn format(duration: Duration) -> String {
    SignedDuration::try_from(duration)
        .map_or_else(|_| format!("{}s", duration.as_secs()), |signed| format!("{signed:#}"))
}

/// Serialises as text.
///
/// # Errors
/// Those of the serialiser.
pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

/// Reads the text form.
///
/// # Errors
/// Those of the deserialiser, and a text that is no duration.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    deserializer.deserialize_str(Text)
}

/// The same for settings that may be left out; use with `#[serde(default)]`.
pub mod option {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    /// Serialises as text, or as nothing.
    ///
    /// # Errors
    /// Those of the serialiser.
    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => serializer.serialize_some(&super::format(*duration)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// Those of the deserialiser, and a text that is no duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        super::deserialize(deserializer).map(Some)
    }
}

/// A text is no duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a duration: {0:?} (write a number with a unit, such as 250ms, 30s or 1h 30m)")]
pub struct ParseDurationError(String);

struct Text;

impl de::Visitor<'_> for Text {
    type Value = Duration;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a duration with its unit, such as \"30s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
        parse(text).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them_and_printed_to_be_read_again() {
        for (text, millis) in
            [("250ms", 250), ("30s", 30_000), ("1m 30s", 90_000), ("2 hours", 7_200_000), ("0s", 0)]
        {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse(text), Ok(duration), "{text}");
            assert_eq!(parse(&format(duration)), Ok(duration), "{text}");
        }
        for text in ["", "30", "-5s", "5s ago", "soon", "1 fortnight"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
