//! What is told through a descriptor, and how often.

use millrace_protocol::{capability::Rights, session::Caller};
use millrace_types::ErrorKind;

use super::*;
use crate::fs::file::tests::opened;

#[test]
fn a_failure_is_told_by_two_writes_and_by_a_close_or_sync() {
    let file = Arc::new(opened(Rights::ReadWrite));
    let handle = || {
        let options = HandleOptions::from_flags(libc::O_WRONLY);
        FileHandle::new(Arc::clone(&file), OpenMode::Write, Caller::ROOT, options, Known::Nobody)
    };
    let (one, other) = (handle(), handle());
    file.state().record_failure(ErrorKind::NoSpace.into());
    let later = handle();
    let (close, sync) = (Occasion::Close, Occasion::Sync);
    assert!(later.check_told(sync).is_ok(), "not to who came later");
    for _ in 0..2 {
        // The kernel may keep the first from the program.
        assert_eq!(one.refuse_write().unwrap_err().kind, ErrorKind::NoSpace);
    }
    assert!(one.refuse_write().is_ok(), "there may be room again");
    // Who closes or syncs and is interrupted has not heard of it.
    assert_eq!(one.check_told(sync).unwrap_err().kind, ErrorKind::NoSpace);
    assert_eq!(one.tell(sync, Ok(())).unwrap_err().kind, ErrorKind::NoSpace);
    for on in [close, sync] {
        assert!(one.refuse_write().is_ok() && one.check_told(on).is_ok(), "once");
        assert_eq!(one.tell(on, Err(ErrorKind::Busy.into())).unwrap_err().kind, ErrorKind::Busy);
    }
    file.state().record_failure(ErrorKind::NoSpace.into());
    file.state().record_failure(ErrorKind::NoSpace.into());
    assert!(one.refuse_write().is_err() && one.refuse_write().is_err());
    assert!(one.refuse_write().is_ok() && one.tell(sync, Ok(())).is_err());
    file.state().record_failure(ErrorKind::NoSpace.into());
    assert!(one.tell(close, Ok(())).is_err() && one.tell(close, Ok(())).is_ok());
    assert!(one.refuse_write().is_ok(), "it was reported");
    // The close may have been that of a copy, by who does not look.
    assert!(one.tell(sync, Ok(())).is_err() && one.tell(sync, Ok(())).is_ok());
    file.state().record_failure(ErrorKind::NoSpace.into());
    assert!(one.refuse_write().is_err() && one.refuse_write().is_err());
    assert!(one.refuse_write().is_ok());
    assert!(other.tell(close, Ok(())).is_err(), "to each of them");
}
