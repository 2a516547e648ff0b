//! What the kernel could send is answered once, and never harms.

use std::{
    io::IoSlice,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    sync::{Mutex, PoisonError},
};

use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{
    channel::{
        Responder,
        buffer::{Buffer, Pool},
    },
    protocol::header::ReplyHeader,
};

/// Keeps the errors of all answers.
#[derive(Debug)]
struct Answers {
    errors: Mutex<Vec<i32>>,
    device: OwnedFd,
}

impl Responder for Answers {
    fn respond(&self, _: Origin, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let header = ReplyHeader::get(&parts[0]).expect("a header comes first");
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert_eq!(usize::try_from(header.len), Ok(len));
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).push(-header.error);
        Ok(())
    }

    fn release(&self, _: Origin, _: u64) {}

    fn notify(&self, _: &[IoSlice<'_>]) -> Result<(), Errno> {
        Ok(())
    }

    fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Implements nothing.
struct Nothing;

impl FileSystem for Nothing {}

/// Has bytes dispatched, and gives the errors of the answers: none but 0 or one of them.
fn answers(bytes: &[u8]) -> Vec<i32> {
    let device = std::fs::File::open("/dev/null").expect("every machine has it").into();
    let answers = Arc::new(Answers { errors: Mutex::default(), device });
    let responder: Arc<dyn Responder> = Arc::<Answers>::clone(&answers);
    let connection = Connection::new(responder);
    let layout = Layout { long_setxattr: true };
    let dispatch = Dispatch { filesystem: Arc::new(Nothing), connection, layout };
    let pool = Pool::new(8192, 1);
    let mut buffer = Buffer::new(8192);
    let len = bytes.len().min(buffer.room().len());
    buffer.room()[..len].copy_from_slice(&bytes[..len]);
    buffer.set_len(len);
    dispatch.request(Incoming::new(Origin::Descriptor(0), &mut buffer, None, &pool));
    let counts = dispatch.connection.counts();
    assert_eq!((counts.waiting, counts.forgotten), (0, 0));
    let errors = answers.errors.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(counts.read, errors.len() as u64);
    errors.clone()
}

fn expected(bytes: &[u8]) -> usize {
    let Some(header) = RequestHeader::get(bytes) else { return 0 };
    usize::from(Opcode::from_number(header.opcode).is_none_or(Opcode::is_answered))
}

/// Requests that a kernel has sent.
fn samples() -> Vec<Vec<u8>> {
    let lines = include_str!("../../golden/linux-6.18.txt").lines();
    let hex = lines.filter_map(|line| line.split_once(' ').filter(|_| !line.starts_with('#')));
    let digits = |pair: &[u8; 2]| {
        u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex")
    };
    let bytes = hex.map(|(_, hex)| hex.as_bytes().as_chunks::<2>().0.iter().map(digits).collect());
    bytes.collect()
}

#[test]
fn what_a_kernel_sends_is_answered_once() {
    for sample in samples() {
        assert_eq!(answers(&sample).len(), expected(&sample), "{sample:?}");
    }
}

#[test]
fn what_is_cut_off_or_too_long_is_eio_and_what_is_unknown_enosys() {
    let eio = Errno::IO.raw_os_error();
    for sample in samples() {
        let answered = expected(&sample);
        for len in [RequestHeader::LEN, sample.len() - 1] {
            if (RequestHeader::LEN..sample.len()).contains(&len) {
                assert_eq!(answers(&sample[..len]), vec![eio; answered], "{len} of {sample:?}");
            }
        }
        assert_eq!(answers(&sample[..RequestHeader::LEN - 1]), []);
        let longer = [&sample[..], &[0; 9]].concat();
        assert_eq!(answers(&longer), vec![eio; answered], "more than {sample:?}");
        let unknown = [&sample[..4], &4096_u32.to_ne_bytes(), &sample[8..]].concat();
        assert_eq!(answers(&unknown), [Errno::NOSYS.raw_os_error()]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_is_damaged_is_answered_once(
        sample in prop::sample::select(samples()),
        flips in vec((any::<Index>(), any::<u8>()), 1..5),
        right in any::<bool>(),
        keep in any::<Index>(),
        cut in any::<bool>(),
    ) {
        let mut bytes = sample;
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if cut {
            bytes.truncate(keep.index(bytes.len()));
        }
        if right && bytes.len() >= 4 {
            let len = u32::try_from(bytes.len()).expect("short");
            bytes[..4].copy_from_slice(&len.to_ne_bytes());
        }
        prop_assert_eq!(answers(&bytes).len(), expected(&bytes));
    }
}
