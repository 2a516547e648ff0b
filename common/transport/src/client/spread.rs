//! Which of a peer's connections takes the next request.
//!
//! Each connection has a thread of this node's and one of the server's behind it, which is what
//! bounds a stream where the network does not: so a peer that is asked for much gets more of them.
//! One that is asked for little keeps one, since each costs memory for its windows at both ends.

/// How a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has so many requests out.
    Open(usize),
    /// It is being made.
    Connecting,
    /// There is none, and none was tried lately.
    Closed,
    /// It could not be made lately: a server that lets no more in is not asked all the time.
    Failed,
}

/// The index of the connection to take: the one with the fewest requests out, or another one once
/// each has [`BUSY`]. One that is being made, or could not be, is left to itself while others
/// stand. Where none stands the first is made, and nobody tries the others: a server that is not
/// there is dialled for one of them at a time.
pub(super) fn choose(connections: impl IntoIterator<Item = Standing>) -> usize {
    let (mut open, mut closed, mut connecting) = (None::<(usize, usize)>, None, None);
    for (index, standing) in connections.into_iter().enumerate() {
        match standing {
            Standing::Open(out) if open.is_none_or(|(_, fewest)| out < fewest) => {
                open = Some((index, out));
            }
            Standing::Closed => closed = closed.or(Some(index)),
            Standing::Connecting => connecting = connecting.or(Some(index)),
            Standing::Open(_) | Standing::Failed => {}
        }
    }
    match (open, closed) {
        (Some((_, out)), Some(another)) if out >= BUSY => another,
        (Some((index, _)), _) => index,
        (None, _) => connecting.unwrap_or(0),
    }
}

/// Requests out on every connection of a peer that make it worth another one. Four transfers of
/// 1 MiB keep a connection busy for longer than a round trip in a data centre takes.
const BUSY: usize = 4;

#[cfg(test)]
mod tests {
    use super::{Standing::*, *};

    #[test]
    fn the_least_busy_of_those_that_stand_is_taken() {
        assert_eq!(choose([Open(3), Open(1), Open(2)]), 1);
        assert_eq!(choose([Open(2), Open(2)]), 0);
        assert_eq!(choose([Open(3), Closed]), 0, "it is not busy yet");
        assert_eq!(choose([Open(900), Open(901)]), 0);
    }

    #[test]
    fn another_one_is_made_when_all_are_busy() {
        assert_eq!(choose([Open(BUSY), Closed, Closed]), 1);
        assert_eq!(choose([Open(BUSY), Open(BUSY + 1), Closed]), 2);
        assert_eq!(choose([Open(BUSY), Open(BUSY - 1), Closed]), 1);
        assert_eq!(choose([Closed, Open(BUSY)]), 0);
    }

    #[test]
    fn what_is_being_made_or_has_failed_is_waited_for_by_nobody_who_has_another() {
        assert_eq!(choose([Open(100), Connecting]), 0);
        assert_eq!(choose([Open(100), Failed]), 0);
        assert_eq!(choose([Open(100), Connecting, Closed]), 2);
        assert_eq!(choose([Closed, Connecting, Closed]), 1, "one is enough to begin with");
    }

    #[test]
    fn without_any_the_first_is_made() {
        assert_eq!(choose([Closed, Closed]), 0);
        assert_eq!(choose([Failed]), 0);
        assert_eq!(choose([Failed, Closed]), 0);
        assert_eq!(choose([]), 0);
    }
}
