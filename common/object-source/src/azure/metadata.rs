//! User metadata under names that Azure allows: `-` here is `_` there.
//!
//! Names there are those of C# identifiers. Our keys hold no `_`, so that nothing is lost on the
//! way to Azure and back.

use http::HeaderMap;

use crate::{Error, Metadata, web::Ask};

const PREFIX: &str = "x-ms-meta-";

/// Adds user metadata to a request.
pub(super) fn with_metadata(mut ask: Ask, metadata: &Metadata) -> Result<Ask, Error> {
    for (key, value) in metadata.iter() {
        if key.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(Error::invalid(format!(
                "Azure takes no metadata whose name begins with a digit: {key:?}"
            )));
        }
        ask = ask.with(&format!("{PREFIX}{}", key.replace('-', "_")), value)?;
    }
    Ok(ask)
}

/// The user metadata in an answer.
pub(super) fn metadata_of(headers: &HeaderMap) -> Metadata {
    let pairs = headers.iter().filter_map(|(name, value)| {
        let key = name.as_str().strip_prefix(PREFIX)?;
        Some((key.replace('_', "-"), value.to_str().ok()?.to_owned()))
    });
    Metadata::received(pairs)
}
