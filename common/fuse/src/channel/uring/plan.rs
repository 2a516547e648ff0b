//! How many queues and entries there are. No I/O but for one file.

use std::fs;

use crate::protocol::ring::PAYLOAD_LEN_MIN;

/// What a ring is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// One for each CPU that the machine may ever have.
    pub queues: u16,
    /// In each queue, at least 1.
    pub entries: u16,
    /// Bytes of the payload of each entry.
    pub payload_len: usize,
}

impl Plan {
    /// Rings for requests and answers of `max_write` bytes and `max_pages` pages of `page` bytes,
    /// on a machine with `queues` possible CPUs. As many entries as payloads of all queues fit into
    /// `memory` bytes, but one in each queue at least, and no more than are useful. Where no number
    /// of bytes is given it is 256 MiB, or 8 entries in each queue if that is more.
    #[must_use]
    pub fn new(
        queues: u16,
        memory: Option<usize>,
        max_write: usize,
        max_pages: usize,
        page: usize,
    ) -> Self {
        let payload_len = max_write.max(max_pages.saturating_mul(page)).max(PAYLOAD_LEN_MIN);
        let payload_len = payload_len.next_multiple_of(page.max(1));
        let fitting = memory.unwrap_or(MEMORY) / payload_len / usize::from(queues.max(1));
        let least = if memory.is_none() { ENTRIES_USUAL } else { 1 };
        let entries = u16::try_from(fitting).unwrap_or(ENTRIES_MAX).clamp(least, ENTRIES_MAX);
        Self { queues, entries, payload_len }
    }

    /// CPUs that this machine may ever have; the kernel wants a queue for each.
    #[must_use]
    pub fn possible_cpus() -> Option<u16> {
        count(fs::read_to_string("/sys/devices/system/cpu/possible").ok()?.trim())
    }
}

/// CPUs of a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut sum: u16 = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        sum = sum.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(sum)
}

/// Bytes of all payloads, unless that is said.
const MEMORY: usize = 256 * 1024 * 1024;
/// Entries in each queue at least, unless the memory is said.
const ENTRIES_USUAL: u16 = 8;
/// Requests of one CPU that wait at once, such as those for locks, of which each keeps an entry.
const ENTRIES_MAX: u16 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_decides_the_number_of_entries() {
        let entries = |queues, memory| Plan::new(queues, memory, 1 << 20, 256, 4096).entries;
        assert_eq!(entries(2, Some(256 << 20)), 128);
        assert_eq!(entries(2, Some((256 << 20) - 1)), 127);
        assert_eq!(entries(64, Some(256 << 20)), 4);
        assert_eq!(entries(512, Some(256 << 20)), 1);
        assert_eq!(entries(2, Some(0)), 1);
        assert_eq!(entries(1, Some(usize::MAX)), ENTRIES_MAX);
        assert_eq!(entries(2, None), 128);
        assert_eq!(entries(512, None), ENTRIES_USUAL);
    }

    #[test]
    fn a_payload_has_room_for_whatever_was_agreed_on() {
        let len = |max_write, max_pages| Plan::new(1, None, max_write, max_pages, 4096).payload_len;
        assert_eq!(len(1 << 20, 256), 1 << 20);
        assert_eq!(len(100_000, 25), 102_400);
        assert_eq!(len(100_000, 256), 1 << 20);
        assert_eq!(len(4096, 1), PAYLOAD_LEN_MIN);
        assert_eq!(Plan::new(1, None, 4096, 1, 65_536).payload_len, 65_536);
    }

    #[test]
    fn possible_cpus_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-1"), Some(2));
        assert_eq!(count("0-3,8-11,13"), Some(9));
        for bad in ["", "1-0", "x", "0-65535", "0-", "0-1-2"] {
            assert_eq!(count(bad), None, "{bad}");
        }
        assert!(Plan::possible_cpus().is_none_or(|cpus| cpus > 0));
    }
}
