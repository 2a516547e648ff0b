//! What `link set` and `link list` share about links that are being removed.

use millrace_protocol::admin::{ListRemovals, Removal};
use millrace_types::ErrorKind;

use crate::{
    connection::Connection,
    report::{LinkReport, RemovalReport},
};

/// The links that are being removed; none of a server that does not tell.
pub(crate) async fn list(connection: &Connection) -> anyhow::Result<Vec<Removal>> {
    match connection.request(&ListRemovals {}).await {
        Ok(reply) => Ok(reply.links),
        Err(failure) if failure.kind == ErrorKind::NotSupported => Ok(Vec::new()),
        Err(failure) => Err(failure.into()),
    }
}

/// The mode of a link in a column, and that the link is being removed.
pub(crate) fn mode_column(link: &LinkReport) -> String {
    match &link.removal {
        None => link.mode.to_owned(),
        Some(RemovalReport { discard: false }) => format!("{}, being removed", link.mode),
        Some(RemovalReport { discard: true }) => {
            format!("{}, being removed with --discard", link.mode)
        }
    }
}
