//! Byte quantities: readable constants, and sizes as people write and read them.

use std::{fmt, str::FromStr};

use rkyv::{Archive, Deserialize, Serialize};

/// 1,024 bytes.
pub const KIB: u64 = 1024;
/// 1,024 KiB.
pub const MIB: u64 = 1024 * KIB;
/// 1,024 MiB.
pub const GIB: u64 = 1024 * MIB;
/// 1,024 GiB.
pub const TIB: u64 = 1024 * GIB;

/// A number of bytes. Settings and arguments accept `512`, `64KiB`, `8M` or `1.5 GiB` (powers of
/// 1,024 throughout) and it prints as the largest unit that reads well.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Debug,
)]
pub struct ByteLen(pub u64);

impl FromStr for ByteLen {
    type Err = ParseSizeError;

    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let fail = || ParseSizeError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let unit_bytes = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => KIB,
            "m" | "mb" | "mib" => MIB,
            "g" | "gb" | "gib" => GIB,
            "t" | "tb" | "tib" => TIB,
            _ => return Err(fail()),
        };
        let (whole, fraction) = match number.split_once('.') {
            None => (number, ""),
            Some((whole, fraction)) => (whole, fraction),
        };
        let whole: u64 = whole.replace('_', "").parse().map_err(|_| fail())?;
        let mut bytes = u128::from(whole) * u128::from(unit_bytes);
        if number.contains('.') {
            // Three digits are exact enough for a size that a person writes with a fraction.
            if fraction.is_empty() || fraction.len() > 3 {
                return Err(fail());
            }
            let thousandths: u64 = format!("{fraction:0<3}").parse().map_err(|_| fail())?;
            bytes += u128::from(thousandths) * u128::from(unit_bytes) / 1000;
        }
        u64::try_from(bytes).map(Self).map_err(|_| fail())
    }
}

impl fmt::Display for ByteLen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit_bytes, unit) = match self.0 {
            TIB.. => (TIB, "TiB"),
            GIB.. => (GIB, "GiB"),
            MIB.. => (MIB, "MiB"),
            KIB.. => (KIB, "KiB"),
            _ => return write!(f, "{} B", self.0),
        };
        let tenths = u128::from(self.0) * 10 / u128::from(unit_bytes);
        if tenths % 10 == 0 {
            write!(f, "{} {unit}", tenths / 10)
        } else {
            write!(f, "{}.{} {unit}", tenths / 10, tenths % 10)
        }
    }
}

impl serde::Serialize for ByteLen {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> serde::Deserialize<'de> for ByteLen {
    /// Accepts a number of bytes or a text such as `"8MiB"`.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match <Written as serde::Deserialize>::deserialize(deserializer)? {
            Written::Number(bytes) => Ok(Self(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A text is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a size: {0:?} (write a number with an optional unit, such as 64KiB, 8M or 1.5GiB)")]
pub struct ParseSizeError(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("512", 512),
            ("64KiB", 64 * KIB),
            ("8M", 8 * MIB),
            (" 1.5 GiB ", GIB + GIB / 2),
            ("1_000", 1000),
            ("2tb", 2 * TIB),
        ] {
            assert_eq!(text.parse(), Ok(ByteLen(bytes)), "{text}");
        }
        for text in ["", "KiB", "-1", "8X", "1.2345M", "1.", "99999999999999T"] {
            assert!(text.parse::<ByteLen>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_with_the_largest_unit_that_fits() {
        assert_eq!(ByteLen(0).to_string(), "0 B");
        assert_eq!(ByteLen(1023).to_string(), "1023 B");
        assert_eq!(ByteLen(8 * MIB).to_string(), "8 MiB");
        assert_eq!(ByteLen(GIB + GIB / 2).to_string(), "1.5 GiB");
    }
}
