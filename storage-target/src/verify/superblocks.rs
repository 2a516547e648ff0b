//! Both copies of the superblock.

use bytes::Bytes;
use millrace_types::Crc32c;

use super::{
    Unreadable,
    flipped::flipped,
    report::{Kind, Report},
};
use crate::{
    format::{
        FormatError,
        superblock::{COPIES, Superblock, SuperblockError},
    },
    image::PageSource,
};

const REMEDY: &str = "the next start of the daemon writes it anew from the other copy";

/// Reads both copies; returns the one that counts.
pub(super) fn check(
    source: &dyn PageSource,
    report: &Report<'_>,
) -> Result<Superblock, Unreadable> {
    let copies = COPIES.map(|page| source.pages_at(page, 1));
    let [a, b] = &copies;
    let bytes = |copy: &std::io::Result<Bytes>| copy.as_ref().cloned().unwrap_or_default();
    let newest = match Superblock::newest([&bytes(a), &bytes(b)]) {
        Ok(newest) => newest.superblock,
        Err(error) => return Err(refuse([&bytes(a), &bytes(b)], error)),
    };
    for (at, copy) in copies.iter().enumerate() {
        let (page, name) = (COPIES[at], ["A", "B"][at]);
        let bytes = match copy {
            Ok(bytes) => bytes,
            Err(error) => {
                let text = format!("the disk cannot read copy {name} of the superblock: {error}");
                report.damage(Kind::Superblock, page, text, "replace the disk");
                continue;
            }
        };
        let text = match Superblock::decode(bytes, at) {
            Ok(found) if found == newest => continue,
            Ok(found) if found.writes < newest.writes => format!(
                "copy {name} of the superblock is stale: it says write {}, the other copy write {}",
                found.writes, newest.writes
            ),
            Ok(_) => format!(
                "copy {name} of the superblock contradicts the other one, although both say \
                 write {}",
                newest.writes
            ),
            Err(error) => {
                format!("copy {name} of the superblock is damaged: {error}{}", in_bits(bytes))
            }
        };
        report.damage(Kind::Superblock, page, text, REMEDY);
    }
    Ok(newest)
}

/// Which bit is flipped, if only one is.
fn in_bits(bytes: &[u8]) -> String {
    let expected = bytes.get(8..12).and_then(|field| field.first_chunk());
    let expected = expected.map(|field| Crc32c(u32::from_le_bytes(*field)));
    match expected.and_then(|expected| flipped(&bytes[12..], expected)) {
        Some(flip) => format!(" ({flip}, from byte 12 on)"),
        None => String::new(),
    }
}

fn refuse(copies: [&[u8]; 2], error: SuperblockError) -> Unreadable {
    let is_zero = |copy: &[u8]| copy.iter().all(|&byte| byte == 0);
    match error {
        _ if copies.iter().all(|copy| copy.is_empty()) => Unreadable::Short,
        _ if copies.iter().all(|copy| is_zero(copy)) => Unreadable::Blank,
        SuperblockError::Format(FormatError::Magic(_)) => Unreadable::Foreign,
        other => Unreadable::Superblock(other),
    }
}
