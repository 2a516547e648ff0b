//! Finds the sequential streams among the reads of one file, and how far to read ahead of each.
//!
//! A file may be read by several threads at different places, by one program that scans it, or
//! through page faults of a mapping (the kernel then reads around each fault in large requests that
//! arrive out of order). All of these look alike: reads that begin near the furthest byte that a
//! stream has reached. A read that is near no stream begins a new one and is answered exactly, so
//! that random reads cost what they ask for.
//!
//! ```text
//!                 first byte of the file,
//!                 or the second read in a row          each further read
//!   Candidate ─────────────────────────────▶ Running ─────┐ window doubles up to the limit
//!       │                                       │  ◀──────┘
//!       └───────── least recently used ─────────┴──▶ forgotten
//! ```

use std::ops::Range;

use millrace_types::MIB;

/// The streams of one file.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    streams: Vec<Stream>,
    reads: u64,
    ticks: u64,
}

/// One run of reads that go forward.
#[derive(Debug)]
struct Stream {
    /// The furthest byte that a read has asked for.
    reached: u64,
    /// The furthest byte that was asked for ahead.
    ahead: u64,
    /// How far `ahead` may lie past `reached`; 0 while the stream is only a candidate.
    window: u64,
    /// The number of the last read that belonged to it.
    used: u64,
    /// The tick before that read.
    used_at: u64,
}

/// What to do about a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Advice {
    /// Whether the read belongs to a running stream.
    pub(crate) sequential: bool,
    /// Bytes of the file that should be fetched now; empty when there is nothing to do.
    pub(crate) ahead: Range<u64>,
}

impl Streams {
    /// Records a read of `read` and says what to fetch ahead, never past `size`, and never more
    /// than `window_max` bytes past the read.
    pub(crate) fn handle_read(&mut self, read: Range<u64>, size: u64, window_max: u64) -> Advice {
        assert!(read.start <= read.end, "a range never runs backwards");
        self.reads += 1;
        let Some(found) = self.streams.iter().position(|stream| stream.is_near(&read)) else {
            return self.begin(read, size, window_max);
        };
        let (reads, ticks) = (self.reads, self.ticks);
        let stream = &mut self.streams[found];
        (stream.used, stream.used_at) = (reads, ticks);
        if read.end <= stream.reached {
            // An echo of the kernel's own read-ahead: it neither proves nor moves anything.
            return Advice { sequential: stream.window > 0, ahead: 0..0 };
        }
        stream.reached = read.end;
        stream.window = match stream.window {
            0 => WINDOW_FIRST,
            window => window.saturating_mul(2),
        }
        .min(window_max);
        stream.advise(size)
    }

    /// Forgets how far the streams have been read ahead, because what was fetched was dropped.
    pub(crate) fn handle_invalidation(&mut self) {
        for stream in &mut self.streams {
            stream.ahead = stream.reached;
        }
    }

    /// This range was to be fetched ahead and is not: whoever comes nearer asks for it again.
    pub(crate) fn handle_unfetched(&mut self, range: &Range<u64>) {
        for stream in self.streams.iter_mut().filter(|stream| stream.is_before(range)) {
            stream.ahead = stream.reached.max(range.start);
        }
    }

    /// Some seconds have passed.
    pub(crate) fn handle_tick(&mut self) {
        self.ticks += 1;
    }

    /// Whether a stream that goes on has yet to come to part of this range, and had it fetched.
    pub(crate) fn awaits(&self, range: &Range<u64>) -> bool {
        let goes_on = |stream: &&Stream| self.ticks - stream.used_at <= IDLE_TICKS_MAX;
        let mut going_on = self.streams.iter().filter(goes_on);
        going_on.any(|stream| stream.is_before(range))
    }

    /// How many streams are running.
    pub(crate) fn running(&self) -> usize {
        self.streams.iter().filter(|stream| stream.window > 0).count()
    }

    fn begin(&mut self, read: Range<u64>, size: u64, window_max: u64) -> Advice {
        if self.streams.len() == STREAMS_MAX {
            let oldest = (0..STREAMS_MAX).min_by_key(|&at| self.streams[at].used);
            self.streams.swap_remove(oldest.expect("the list is full, so it has an oldest"));
        }
        // Whoever reads the first bytes most likely wants the rest too; in any other place a read
        // has to prove itself by a second one.
        let window = if read.start == 0 { WINDOW_FIRST.min(window_max) } else { 0 };
        let (used, used_at) = (self.reads, self.ticks);
        let mut stream = Stream { reached: read.end, ahead: read.end, window, used, used_at };
        let advice = stream.advise(size);
        self.streams.push(stream);
        advice
    }
}

impl Stream {
    fn is_near(&self, read: &Range<u64>) -> bool {
        read.start <= self.reached.saturating_add(GAP_MAX)
            && read.start.saturating_add(BACK_MAX) >= self.reached
    }

    /// Whether it has yet to come to part of this range, and had it fetched.
    fn is_before(&self, range: &Range<u64>) -> bool {
        range.end > self.reached && range.start < self.ahead
    }

    fn advise(&mut self, size: u64) -> Advice {
        let from = self.ahead.max(self.reached);
        let to = self.reached.saturating_add(self.window).min(size);
        // Asking in steps of half a window at least keeps the requests large while the kernel's
        // reads are small; the end of the file is asked for at once.
        let worthwhile = to == size || to.saturating_sub(from) >= (self.window / 2).min(MIB);
        if self.window == 0 || from >= to || !worthwhile {
            return Advice { sequential: self.window > 0, ahead: 0..0 };
        }
        self.ahead = to;
        Advice { sequential: true, ahead: from..to }
    }
}

/// Streams that are watched in one file: a loader with eight threads over one archive fits.
const STREAMS_MAX: usize = 8;

/// The first window: one request, so that a wrong guess costs little.
const WINDOW_FIRST: u64 = MIB;

/// A read may leave out this much and still belong to the stream: readers of record formats skip
/// headers and padding.
const GAP_MAX: u64 = MIB;

/// A read may begin this far before the furthest byte: the kernel has up to 8 MiB of read-ahead in
/// flight (the mount's `read_ahead_kb`), and its requests arrive in any order.
const BACK_MAX: u64 = 16 * MIB;

/// A stream goes on that was read within so many ticks: the kernel asks for up to 8 MiB at a time,
/// and a program that reads 1 MB/s leaves that alone for 8 s.
const IDLE_TICKS_MAX: u64 = 5;

#[cfg(test)]
mod tests {
    use millrace_types::{GIB, KIB};

    use super::*;

    const LIMIT: u64 = 32 * MIB;

    #[test]
    fn a_scan_from_the_start_reads_ahead_at_once_and_ever_further() {
        let mut streams = Streams::default();
        let first = streams.handle_read(0..128 * KIB, GIB, LIMIT);
        assert_eq!(first.ahead, 128 * KIB..128 * KIB + MIB);
        let mut asked = first.ahead.end;
        for at in 1..200 {
            let start = at * 128 * KIB;
            let advice = streams.handle_read(start..start + 128 * KIB, GIB, LIMIT);
            assert!(advice.sequential);
            if !advice.ahead.is_empty() {
                assert_eq!(advice.ahead.start, asked, "nothing is asked for twice or left out");
                asked = advice.ahead.end;
            }
            assert!(asked <= start + 128 * KIB + LIMIT);
        }
        assert!(asked >= 200 * 128 * KIB + LIMIT - MIB, "the window is full in the end");
    }

    #[test]
    fn random_reads_are_answered_exactly() {
        let mut streams = Streams::default();
        for at in [700, 100, 900, 300, 500, 200, 800, 400, 600, 950, 50] {
            let start = at * MIB;
            let advice = streams.handle_read(start..start + 4 * KIB, GIB, LIMIT);
            assert_eq!(advice, Advice { sequential: false, ahead: 0..0 });
        }
        assert_eq!(streams.running(), 0);
    }

    #[test]
    fn several_streams_of_one_file_are_told_apart() {
        let mut streams = Streams::default();
        for step in 0..4 {
            for base in [100 * MIB, 400 * MIB, 800 * MIB] {
                let start = base + step * 64 * KIB;
                let advice = streams.handle_read(start..start + 64 * KIB, GIB, LIMIT);
                assert_eq!(advice.sequential, step > 0);
                if !advice.ahead.is_empty() {
                    assert!(advice.ahead.start >= start && advice.ahead.start < base + LIMIT);
                }
            }
        }
        assert_eq!(streams.running(), 3);
    }

    #[test]
    fn the_kernels_reordered_requests_stay_one_stream() {
        let mut streams = Streams::default();
        let base = 64 * MIB;
        let order = [0, 2, 1, 3, 5, 4, 7, 6];
        for at in order {
            streams.handle_read(base + at * MIB..base + (at + 1) * MIB, GIB, LIMIT);
        }
        assert_eq!(streams.running(), 1);
        assert_eq!(streams.streams.len(), 1);
    }

    #[test]
    fn nothing_is_asked_for_past_the_end() {
        let mut streams = Streams::default();
        let advice = streams.handle_read(0..100, 300, LIMIT);
        assert_eq!(advice.ahead, 100..300);
        assert!(streams.handle_read(100..300, 300, LIMIT).ahead.is_empty());
        assert!(streams.handle_read(0..0, 0, LIMIT).ahead.is_empty());
    }

    #[test]
    fn what_could_not_be_fetched_ahead_is_asked_for_again() {
        let mut streams = Streams::default();
        let mut reached = 0;
        let mut read = |streams: &mut Streams| {
            reached += MIB;
            (reached, streams.handle_read(reached - MIB..reached, GIB, LIMIT).ahead)
        };
        for _ in 0..8 {
            read(&mut streams);
        }
        let (at, ahead) = read(&mut streams);
        assert!(ahead.start > at + 4 * MIB, "the window is wide");
        streams.handle_unfetched(&(at + 2 * MIB..at + 3 * MIB));
        streams.handle_unfetched(&(at + 4 * MIB..at + 5 * MIB));
        // Far from here, and behind.
        streams.handle_unfetched(&(GIB - MIB..GIB));
        streams.handle_unfetched(&(at - MIB..at));
        assert_eq!(read(&mut streams).1.start, at + 2 * MIB);
        let (at, ahead) = read(&mut streams);
        assert!(ahead.start > at + 4 * MIB, "once");
        streams.handle_unfetched(&(at - MIB..at + MIB));
        let (at, ahead) = read(&mut streams);
        assert_eq!(ahead.start, at, "of what it has reached it has asked itself");
    }

    #[test]
    fn what_was_dropped_is_asked_for_again() {
        let mut streams = Streams::default();
        streams.handle_read(0..MIB, GIB, LIMIT);
        streams.handle_invalidation();
        let advice = streams.handle_read(MIB..2 * MIB, GIB, LIMIT);
        assert_eq!(advice.ahead.start, 2 * MIB);
    }
}
