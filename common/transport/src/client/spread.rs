//! Which of a peer's connections takes the next request.
//!
//! Each connection has a thread of this node's and one of the server's behind it, which is what
//! bounds a stream where the network does not: so a peer that is asked for much gets more of them.
//! One that is asked for little keeps one, since each costs memory for its windows at both ends,
//! and one of the places that the server has.

/// How a connection stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// It has so many requests out.
    Open(usize),
    /// It is being made.
    Connecting,
    /// There is none, and none was tried lately.
    Closed,
    /// It could not be made lately, or was lost: a server that lets no more in is not asked all the
    /// time, and what cuts one way off may leave others.
    Failed,
}

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Choice {
    /// The index of the connection that takes it.
    pub(super) take: usize,
    /// The index of a further connection, which is to be made meanwhile.
    pub(super) make: Option<usize>,
}

/// Takes the connection with the fewest requests out; once each has [`BUSY`], a further one is made
/// for the next requests, one at a time. Where none stands, one is made and waited for.
pub(super) fn choose(connections: impl IntoIterator<Item = Standing>) -> Choice {
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
    match open {
        Some((take, out)) => {
            let make = closed.filter(|_| out >= BUSY && connecting.is_none());
            Choice { take, make }
        }
        None => Choice { take: connecting.or(closed).unwrap_or(0), make: None },
    }
}

/// Requests out on every connection of a peer that make it worth another one. Four transfers of
/// 1 MiB keep a connection busy for longer than a round trip in a data centre takes.
const BUSY: usize = 4;

/// Connections for bulk that one peer has at most. Four to each of two targets carried 1.5 to 2
/// times what one carried, on 16 processors; more were not measured.
pub(super) const CONNECTIONS_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::{Standing::*, *};

    fn taken<const N: usize>(standings: [Standing; N]) -> usize {
        let Choice { take, make } = choose(standings);
        assert_eq!(make, None, "{standings:?}");
        take
    }

    #[test]
    fn the_least_busy_of_those_that_stand_is_taken() {
        assert_eq!(taken([Open(3), Open(1), Open(2)]), 1);
        assert_eq!(taken([Open(2), Open(2)]), 0);
        assert_eq!(taken([Open(3), Closed]), 0);
        assert_eq!(taken([Open(900), Open(901)]), 0);
    }

    #[test]
    fn a_further_one_is_made_when_all_are_busy_and_nobody_waits_for_it() {
        assert_eq!(choose([Open(BUSY), Closed, Closed]), Choice { take: 0, make: Some(1) });
        assert_eq!(choose([Open(5), Open(BUSY), Closed]), Choice { take: 1, make: Some(2) });
        assert_eq!(choose([Closed, Open(BUSY)]), Choice { take: 1, make: Some(0) });
        assert_eq!(taken([Open(BUSY), Open(BUSY - 1), Closed]), 1);
        assert_eq!(taken([Open(100), Connecting, Closed]), 0, "one at a time");
        assert_eq!(taken([Open(100), Failed]), 0);
    }

    #[test]
    fn without_any_one_is_made_and_waited_for() {
        assert_eq!(taken([Closed, Closed]), 0);
        assert_eq!(taken([Closed, Connecting, Closed]), 1);
        assert_eq!(taken([Failed, Closed]), 1, "another way may be better");
        assert_eq!(taken([Failed, Failed]), 0);
        assert_eq!(taken([Failed]), 0);
        assert_eq!(taken([]), 0);
    }
}
