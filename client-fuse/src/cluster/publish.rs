//! Tells the metadata server of files that were made here, several in one message.

use std::time::Instant;

use millrace_protocol::{
    delegation::{NewFile, PublishFiles, PublishedFile},
    lease::MadeName,
};
use millrace_transport::CallOptions;
use millrace_types::{ErrorKind, Failure, SessionId};

use super::{
    Cluster, Logged,
    metadata::{DEADLINE, Indexed as _},
};

/// What became of some files, in their order.
type Answers = Vec<Option<Result<(MadeName, Logged), Failure>>>;

impl Cluster {
    /// Publishes files that were opened in `session`, each exactly once, however often they have to
    /// be sent: this numbers their operations.
    ///
    /// Returns what became of each, in their order: what the server answers, with where that stood
    /// in the log at that moment; [`ErrorKind::SessionGone`] when the session has ended;
    /// [`ErrorKind::Unavailable`] after the mount's patience.
    pub(crate) async fn publish(
        &self,
        session: SessionId,
        files: &[NewFile],
    ) -> Vec<Result<(MadeName, Logged), Failure>> {
        let numbers: Vec<_> = files.iter().map(|_| self.operations.begin()).collect();
        let mut answers: Answers = files.iter().map(|_| None).collect();
        let mut attempts = self.patience.begin(Instant::now());
        loop {
            let open: Vec<_> = (0..files.len()).filter(|nth| answers[*nth].is_none()).collect();
            let numbered = |&nth: &usize| NewFile {
                operation: numbers[nth].operation(session),
                ..files[nth].clone()
            };
            let request = PublishFiles { session, files: open.iter().map(numbered).collect() };
            let deadline = attempts.deadline(DEADLINE, Instant::now());
            let answer = self.metadata.call(&request, CallOptions::control(deadline)).await;
            let failure = match answer {
                Ok(published) => self.take_published(&mut answers, files, &open, published.files),
                Err(failure) => Some(failure),
            };
            let Some(failure) = failure else { break };
            if failure.kind == ErrorKind::SessionGone {
                drop(self.replace_session(session).await);
            }
            self.metrics.retries.inc();
            match attempts.handle_failure(failure, Instant::now()) {
                Ok(pause) => tokio::time::sleep(pause).await,
                Err(failure) => {
                    return answers
                        .into_iter()
                        .map(|answer| answer.unwrap_or_else(|| Err(failure.clone())))
                        .collect();
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Takes over what became of the files that were open; returns why some still are.
    fn take_published(
        &self,
        answers: &mut Answers,
        files: &[NewFile],
        open: &[usize],
        published: Vec<PublishedFile>,
    ) -> Option<Failure> {
        if published.len() != open.len() {
            let text = "the answer is about other files than the question";
            return Some(Failure::new(ErrorKind::Protocol, text));
        }
        let mut again = None;
        for (&nth, published) in open.iter().zip(published) {
            answers[nth] = match published {
                PublishedFile::Made(made) => {
                    let logged = self.handle_index(made.index());
                    Some(Ok((*made, logged)))
                }
                PublishedFile::MadeInline(mut made) => {
                    let logged = self.handle_index(made.index());
                    made.reply.inline.clone_from(&files[nth].inline);
                    Some(Ok((*made, logged)))
                }
                PublishedFile::Refused(failure) if failure.kind.is_transient() => {
                    again = Some(failure);
                    None
                }
                PublishedFile::Refused(failure) => Some(Err(failure)),
            };
        }
        again
    }
}
