//! What clients give back: the waits of those who change it, and the requests that stay open to
//! hear of it.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use millrace_protocol::lease::{
    AWAIT_RECALLS_MAX_MS, AwaitNews, AwaitRecalls, ListEntries, ListEntriesBare, ListFrom,
    MarkedPage, News, Recalls,
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure, LogIndex};
use tokio::{sync::watch, time::Instant};

use super::{
    MetadataService,
    answer::{Work, other},
    client,
    execute::{BUCKET_WAIT_MAX, NEEDS_MAX},
};
use crate::{
    engine::Core,
    leases::Wait,
    ops::{self, Client, Step},
};

/// Waits until the others have given back what an operation changes, which is not executed yet.
///
/// # Errors
/// [`ErrorKind::Busy`] when one of them takes longer than one attempt may: it is cut off when its
/// lease has run out.
pub(super) async fn given_back(wait: &Wait) -> Result<(), Failure> {
    tokio::time::timeout(BUCKET_WAIT_MAX, wait.given_back()).await.map_err(|_| {
        Failure::new(ErrorKind::Busy, "a client has not given back yet what this changes")
    })
}

/// Waits until others have heard of names that an answer tells of.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when one of them takes longer than one attempt may: the operation may
/// have been executed.
pub(super) async fn heard(waits: Vec<Wait>) -> Result<(), Failure> {
    for wait in waits {
        given_back(&wait)
            .await
            .map_err(|failure| Failure { kind: ErrorKind::Unavailable, ..failure })?;
    }
    Ok(())
}

/// Waits until others have heard of names in a directory, for a moment: only the maker of one waits
/// for who is gone.
pub(super) async fn told(waits: &[Wait]) {
    let all = join_all(waits.iter().map(Wait::given_back));
    drop(tokio::time::timeout(LOOK_WAIT_MAX, all).await);
}

/// How long who looks into a directory waits until names there are heard of: a few hundred times
/// what a client that is alive takes.
const LOOK_WAIT_MAX: Duration = Duration::from_millis(100);

/// How far a session has come that listens.
enum Begun<T> {
    /// The log knows that it may keep something, once it is synced up to this.
    Enrolled(LogIndex),
    /// It listens: what tells of news, and what there is.
    Listening(watch::Receiver<u64>, (bool, T)),
}

impl MetadataService {
    /// Answers when something is taken back from the session.
    pub(super) fn await_recalls(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let request = call.decode::<AwaitRecalls>()?;
        Ok(other::<AwaitRecalls>(self.recalls_of(client(call), request)))
    }

    async fn recalls_of(&self, client: Client, request: AwaitRecalls) -> Result<Recalls, Failure> {
        let session = request.session;
        let poll = move |core: &mut Core, client: &Client| {
            let recalls = ops::lease::recalls(core, client, session)?;
            Ok((recalls.recalls.is_empty(), recalls))
        };
        self.listen(client, request, false, poll).await
    }

    /// Answers when something is taken back from the session, or shown to it.
    pub(super) fn await_news(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let request = call.decode::<AwaitNews>()?;
        Ok(other::<AwaitNews>(self.news_of(client(call), request)))
    }

    async fn news_of(&self, client: Client, request: AwaitNews) -> Result<News, Failure> {
        let AwaitNews { session, incarnation, acknowledged } = request;
        let poll = move |core: &mut Core, client: &Client| {
            let news = ops::lease::news(core, client, session)?;
            Ok((news.recalls.is_empty() && news.shown.is_empty(), news))
        };
        self.listen(client, AwaitRecalls { session, incarnation, acknowledged }, true, poll).await
    }

    /// Answers with what `poll` finds when there is something, or when it has been long enough;
    /// `poll` also tells whether it has found nothing.
    async fn listen<T: Send + 'static>(
        &self,
        client: Client,
        request: AwaitRecalls,
        follows: bool,
        poll: impl Fn(&mut Core, &Client) -> Result<(bool, T), Failure> + Copy + Send + 'static,
    ) -> Result<T, Failure> {
        let limit = Instant::now() + Duration::from_millis(AWAIT_RECALLS_MAX_MS);
        // In one turn: others wait for what this acknowledges.
        let begin = move |core: &mut Core, client: &Client| {
            if let Some(index) = ops::lease::enrol(core, client, &request)? {
                return Ok(Begun::Enrolled(index));
            }
            let news = ops::lease::listen(core, client, &request, follows)?;
            Ok(Begun::Listening(news, poll(core, client)?))
        };
        let (mut news, mut polled) = loop {
            let (asks, begin) = (client.clone(), begin.clone());
            match self.engine.turn(move |core| begin(core, &asks)).await? {
                // A restart must know of the session before it keeps anything.
                Begun::Enrolled(index) => self.engine.synced(index).await?,
                Begun::Listening(news, polled) => break (news, polled),
            }
        };
        loop {
            let (is_empty, found) = polled;
            if !is_empty || Instant::now() >= limit {
                return Ok(found);
            }
            tokio::select! {
                changed = news.changed() => {
                    // Its queue is gone: so is the session.
                    changed.map_err(|_| ErrorKind::SessionGone)?;
                }
                () = tokio::time::sleep_until(limit) => {}
                () = self.shutdown.draining() => {
                    let text = "the metadata server is stopping";
                    return Err(Failure::new(ErrorKind::Unavailable, text));
                }
            }
            let asks = client.clone();
            news.mark_unchanged();
            polled = self.engine.turn(move |core| poll(core, &asks)).await?;
        }
    }

    /// Lists a page: of a linked directory that is being listed, what there is already.
    pub(super) fn list_entries(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let page = self.entries_page(client(call), Arc::new(call.decode()?));
        Ok(other::<ListEntries>(async move { page.await.map(|marked| marked.page) }))
    }

    /// The same, with which entries have extended attributes.
    pub(super) fn list_entries_bare(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let ListEntriesBare { list } = call.decode()?;
        Ok(other::<ListEntriesBare>(self.entries_page(client(call), Arc::new(list))))
    }

    async fn entries_page(
        &self,
        mut client: Client,
        request: Arc<ListEntries>,
    ) -> Result<MarkedPage, Failure> {
        let cookie = match request.from {
            ListFrom::Cookie(cookie) => Some(cookie),
            ListFrom::Name(_) => None,
        };
        for _ in 0..NEEDS_MAX {
            let (of_turn, caller) = (Arc::clone(&request), client.clone());
            let step =
                self.engine.turn(move |core| ops::lease::list(core, &caller, &of_turn)).await?;
            match step {
                // An empty page that is not the last would look like an end to a careless reader.
                Step::Done(MarkedPage { page, .. })
                    if page.entries.is_empty() && !page.last && cookie.is_some() =>
                {
                    client.settled.clear();
                }
                Step::Done(marked) => return Ok(marked),
                Step::Need(need) => {
                    self.settle(client.host, need.clone(), cookie.unwrap_or_default()).await?;
                    client.settled.push(need);
                }
            }
        }
        Err(ErrorKind::Busy.into())
    }
}
