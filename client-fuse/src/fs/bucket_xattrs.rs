//! How a file stands against its bucket, as extended attributes that nobody stores.
//!
//! They are answered when somebody asks for them by name, and appear in no list: programs that
//! copy all attributes of a file (`rsync -X`, `tar --xattrs`) would carry them to where they say
//! nothing.

use millrace_protocol::{
    bucket::{FileReply, ShowFile},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use crate::fs::FileSystem;

/// What they are called. Every other name is an attribute like any.
const NAMES: [&[u8]; 4] = [
    b"user.millrace.state",
    b"user.millrace.hydrated",
    b"user.millrace.origin",
    b"user.millrace.etag",
];

/// Whether an attribute is one of these.
pub(super) fn is_of_bucket(name: &[u8]) -> bool {
    NAMES.contains(&name)
}

/// Refuses to set or remove one.
///
/// # Errors
/// [`ErrorKind::NotPermitted`].
pub(super) fn check_change(name: &[u8]) -> Result<(), Failure> {
    if is_of_bucket(name) { Err(ErrorKind::NotPermitted.into()) } else { Ok(()) }
}

impl FileSystem {
    /// Reads one of them.
    ///
    /// # Errors
    /// [`ErrorKind::NoData`] for what is no file, and where there is no object;
    /// [`ErrorKind::Internal`] when a target that holds some of it is away; what the server
    /// answers.
    pub(super) async fn bucket_xattr(
        &self,
        caller: Caller,
        inode: InodeId,
        name: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        let counted = NAMES[..2].contains(&name);
        // What was written a moment ago is not told to the server before it has to.
        if counted && let Some(file) = self.files.find(inode) {
            self.flush_file(&file).await;
            self.commit(&file, false).await?;
        }
        match self.cluster.ask(&ShowFile { caller, inode, counted }).await {
            Ok(reply) => value(name, reply).ok_or_else(|| ErrorKind::NoData.into()),
            // A directory, or a server that does not know the request.
            Err(failure)
                if matches!(failure.kind, ErrorKind::InvalidArgument | ErrorKind::NotSupported) =>
            {
                Err(ErrorKind::NoData.into())
            }
            Err(failure) => Err(failure),
        }
    }
}

fn value(name: &[u8], reply: FileReply) -> Option<Vec<u8>> {
    match name {
        b"user.millrace.state" => Some(reply.state.name().as_bytes().to_vec()),
        b"user.millrace.origin" => reply.origin.map(|(url, _)| url.into_bytes()),
        b"user.millrace.etag" => reply.origin.map(|(_, tag)| tag.into_bytes()),
        b"user.millrace.hydrated" => Some(reply.hydrated.0.to_string().into_bytes()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::admin::FileState;
    use millrace_types::ByteLen;

    use super::*;

    #[test]
    fn each_name_has_its_value_and_an_object_that_is_not_there_none() {
        let origin = Some(("s3://b/a".to_owned(), "\"t\"".to_owned()));
        let (size, hydrated) = (ByteLen(9), ByteLen(5));
        let reply = FileReply { state: FileState::Partial, size, hydrated, origin };
        let values = NAMES.map(|name| value(name, reply.clone()).unwrap());
        assert_eq!(values, [&b"partial"[..], b"5", b"s3://b/a", b"\"t\""]);
        let local = FileReply { state: FileState::Dirty, origin: None, ..reply };
        let values = NAMES.map(|name| value(name, local.clone()));
        assert_eq!(values, [Some(b"dirty".to_vec()), Some(b"5".to_vec()), None, None]);
    }

    #[test]
    fn nobody_sets_one() {
        assert_eq!(check_change(b"user.millrace.state"), Err(ErrorKind::NotPermitted.into()));
        // Where a bucket is a directory, its objects' attributes have such names.
        assert_eq!(check_change(b"user.millrace.file-owner"), Ok(()));
    }
}
