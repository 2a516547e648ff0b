//! Keeps a connection alive while it is used and lets it go when it is not; see the parent's page.

use std::{sync::Arc, time::Duration};

use super::{Lane, Live, PeerState};

/// Watches `live` from the endpoint's runtime until it is closed or dropped.
pub(super) fn start(peer: &Arc<PeerState>, lane: Lane, index: usize, live: &Arc<Live>) {
    let owner = Arc::downgrade(peer);
    let linger = peer.endpoints.settings().linger();
    let watched = Arc::downgrade(live);
    let runtime = peer.endpoints.endpoint(lane, index).runtime();
    drop(runtime.spawn(async move {
        let mut received = 0;
        let mut silent = Duration::ZERO;
        loop {
            // One that has just been ended is let go of in the next turn.
            tokio::time::sleep(TICK).await;
            let Some(live) = watched.upgrade() else { return };
            if live.is_closed() {
                if let Some(peer) = owner.upgrade() {
                    peer.forget(&live);
                }
                return;
            }
            let before = std::mem::replace(&mut received, live.received());
            silent = if received == before { silent + TICK } else { Duration::ZERO };
            match decide(live.in_flight() > 0, silent, live.unused_for(), linger) {
                Decision::Nothing => {}
                Decision::Poke => live.poke(),
                Decision::End => live.end(),
            }
        }
    }));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    Nothing,
    Poke,
    End,
}

/// What to do when nothing has arrived for `silent` and the last request ended `unused` ago.
fn decide(requests_out: bool, silent: Duration, unused: Duration, linger: Duration) -> Decision {
    match (requests_out, silent) {
        (true, silent) if silent >= TICK => Decision::Poke,
        (false, _) if unused >= linger => Decision::End,
        (false, silent) if silent >= PAUSE_UNUSED => Decision::Poke,
        _ => Decision::Nothing,
    }
}

/// How soon a restarted server's reset is provoked while requests wait.
const TICK: Duration = Duration::from_millis(250);

/// Between two signs of life without requests; the idle timeout is several times this.
const PAUSE_UNUSED: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_connection_is_poked_often_with_requests_out_and_rarely_without() {
        let linger = Duration::from_secs(60);
        let decide = |out, silent: u64, unused: u64| {
            let silent = Duration::from_millis(silent);
            decide(out, silent, Duration::from_secs(unused), linger)
        };
        assert_eq!(decide(true, 0, 0), Decision::Nothing);
        assert_eq!(decide(true, 250, 0), Decision::Poke);
        assert_eq!(decide(false, 250, 1), Decision::Nothing);
        assert_eq!(decide(false, 1000, 1), Decision::Poke);
        assert_eq!(decide(false, 0, 60), Decision::End);
        // A request that takes longer than the linger time keeps its connection.
        assert_eq!(decide(true, 250, 600), Decision::Poke);
    }
}
