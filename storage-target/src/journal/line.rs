//! Who waits for the same thing to be done to records, and whether somebody does it. No I/O.

use tokio::sync::oneshot;

use super::JournalError;

/// What who waits is told.
pub(super) type Outcome = Result<(), JournalError>;

/// A line of waiting tasks.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Each with the record that it waits for.
    waiting: Vec<(u64, oneshot::Sender<Outcome>)>,
    is_served: bool,
}

impl Line {
    /// Joins the line for a record. Also says whether nobody serves it: whoever learns that must.
    pub(super) fn join(&mut self, sequence: u64) -> (oneshot::Receiver<Outcome>, bool) {
        let (answer, outcome) = oneshot::channel();
        self.waiting.push((sequence, answer));
        (outcome, !std::mem::replace(&mut self.is_served, true))
    }

    /// The newest record that somebody waits for; `None` when nobody does, and the line is then
    /// served no more.
    pub(super) fn newest(&mut self) -> Option<u64> {
        let newest = self.waiting.iter().map(|(sequence, _)| *sequence).max();
        self.is_served = newest.is_some();
        newest
    }

    /// Takes those who wait for records below `end` out of the line.
    pub(super) fn take(&mut self, end: u64) -> Vec<oneshot::Sender<Outcome>> {
        if self.waiting.is_empty() {
            return Vec::new();
        }
        let served = self.waiting.extract_if(.., |(sequence, _)| *sequence < end);
        served.map(|(_, answer)| answer).collect()
    }

    /// Nobody serves the line any more, and nobody who waits gets an answer.
    pub(super) fn leave(&mut self) {
        self.is_served = false;
        self.waiting.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_serves_and_whoever_is_done_leaves() {
        let mut line = Line::default();
        let (_, is_first) = line.join(5);
        assert!(is_first);
        let (mut later, is_first) = line.join(7);
        assert!(!is_first);
        assert_eq!(line.newest(), Some(7));
        assert_eq!(line.take(7).len(), 1);
        assert_eq!(line.newest(), Some(7));
        assert!(later.try_recv().is_err());
        line.take(8).into_iter().for_each(|waiting| waiting.send(Ok(())).unwrap());
        assert!(matches!(later.try_recv(), Ok(Ok(()))));
        assert_eq!(line.newest(), None);
        assert!(line.join(9).1, "a line that is empty is served anew");
    }

    #[test]
    fn a_line_that_is_left_answers_nobody_and_is_served_anew() {
        let mut line = Line::default();
        let (mut waiting, _) = line.join(5);
        line.leave();
        assert!(matches!(waiting.try_recv(), Err(oneshot::error::TryRecvError::Closed)));
        assert!(line.join(5).1);
    }
}
