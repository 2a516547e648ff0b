//! Requests about links and jobs: checked, then handed to hydration.
//!
//! A client's paths begin at the directory that its certificate is restricted to; root is squashed,
//! and users may search directories, as in every other request.

use futures::future::BoxFuture;
use millrace_protocol::{Request, admin::PathBytes};
use millrace_transport::IncomingCall;
use millrace_types::Failure;

use super::{
    MetadataService, ServerEnvironment,
    answer::{Answer, Work, answer},
    client,
};
use crate::{hydration::Hydration, ops::Client};

/// Requests with the place of their caller, if they name one, and how hydration makes the reply of
/// each, below the directory to which its sender is restricted.
macro_rules! hydrated {
    ($($request:ty $([$($caller:ident).+])? =>
        |$hydration:ident, $top:pat_param, $it:pat_param| $reply:expr;)*) => {$(
        impl $crate::server::hydrate::Hydrated for $request {
            $(fn restrict(&mut self, client: &$crate::ops::Client) {
                self.$($caller).+ = client.caller(&self.$($caller).+);
            })?

            async fn answer(
                self,
                $hydration: $crate::hydration::Hydration<$crate::server::ServerEnvironment>,
                $top: millrace_protocol::admin::PathBytes,
            ) -> Result<Self::Reply, millrace_types::Failure> {
                let $it = self;
                Ok($reply)
            }
        }
    )*};
}

mod files;
mod jobs;
mod links;

/// A request that hydration answers.
pub(super) trait Hydrated: Request {
    /// Applies what the certificate of the caller says, where a caller is named.
    fn restrict(&mut self, _: &Client) {}

    /// Answers it; paths begin at `top`.
    fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> impl Future<Output = Result<Self::Reply, Failure>> + Send + 'static;
}

impl MetadataService {
    /// Has hydration answer. It works in the background: what has begun goes on when the caller
    /// gives up.
    pub(super) fn hydrate<R: Hydrated>(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let answered = answered::<R>(self.hydrated(restricted::<R>(call)?, call));
        Ok(Work::Other(Box::pin(self.in_background(answered))))
    }

    /// What hydration replies. Nothing is done of it before it is polled, so that more may be
    /// checked, and it ends with whoever polls it: see [`Self::in_background`].
    pub(super) fn hydrated<R: Hydrated>(
        &self,
        request: R,
        call: &IncomingCall,
    ) -> impl Future<Output = Result<R::Reply, Failure>> + Send + 'static + use<R> {
        let (hydration, top) = (self.hydration.clone(), client(call).subtree.unwrap_or_default());
        async move { request.answer(hydration, top).await }
    }
}

/// The request, as the certificate of its caller allows it.
pub(super) fn restricted<R: Hydrated>(call: &IncomingCall) -> Result<R, Failure> {
    let mut request = call.decode::<R>()?;
    request.restrict(&client(call));
    Ok(request)
}

/// The answer of a reply that is yet to come.
pub(super) fn answered<R: Request>(
    reply: impl Future<Output = Result<R::Reply, Failure>> + Send + 'static,
) -> BoxFuture<'static, Result<Answer, Failure>> {
    Box::pin(async move { Ok(answer::<R>(reply.await?)) })
}
