//! What an open file believes, whatever arrives in whatever order.

use millrace_protocol::{
    capability::{Capability, Content, Origin, Rights, Signed},
    codec,
    metadata::{Attributes, Coverage, FileKind, InodeReply, OpenMode},
    storage::TRANSFER_LEN_MAX,
};
use millrace_types::{
    ChangeCount, ChunkSize, ErrorKind, KeyId, Layout, LinkId, LogIndex, PoolId, SessionId,
};

use super::{resize::Resized, *};
use crate::{
    cache::names::stamps::Stamps,
    fs::handle::{FileHandle, HandleOptions, Known},
};

const TARGET: TargetId = TargetId([1; 8]);
const OTHER: TargetId = TargetId([2; 8]);
const SESSION: SessionId = SessionId(1);

fn note() -> Note {
    Stamps::default().note()
}

/// A file with this id that was just opened.
pub(crate) fn file(inode: u64) -> Arc<File> {
    let mut reply = reply(1, 0, 1, Rights::ReadWrite);
    reply.attributes.inode = InodeId(inode);
    Arc::new(File::new(reply, note()).expect("a regular file"))
}

/// An answer of the server: the file at change `count`, of `size` bytes, in write epoch `epoch`.
pub(crate) fn reply(count: u64, size: u64, epoch: u32, rights: Rights) -> InodeReply {
    let content = Content {
        inode: InodeId(7),
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(epoch),
        layout: Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).expect("sound"),
        origin: None,
        origin_length: 0,
        sparse: false,
    };
    let capability = Capability { rights, session: SESSION, content: content.clone() };
    let body = codec::encode(&capability).to_vec();
    InodeReply {
        attributes: Attributes {
            inode: InodeId(7),
            kind: FileKind::Regular,
            mode: 0o644,
            uid: 0,
            gid: 0,
            links: 1,
            device: 0,
            size,
            accessed: Timestamp(0),
            modified: Timestamp(10),
            changed: Timestamp(10),
            born: Timestamp(0),
            change_count: ChangeCount(count),
        },
        content: Some(content),
        capability: Some(Signed { key: KeyId(1), body, mac: [0; 32] }),
        symlink: None,
        inline: None,
        coverage: Coverage::None,
        index: LogIndex(count),
    }
}

pub(crate) fn opened(rights: Rights) -> File {
    let file = File::new(reply(5, 100, 1, rights), note()).expect("a file");
    file.state().write_opens = u32::from(rights == Rights::ReadWrite);
    file
}

#[test]
fn an_answer_that_was_overtaken_changes_nothing() {
    let file = opened(Rights::Read);
    file.state().accept(reply(7, 300, 1, Rights::Read)).expect("sound");
    file.state().accept(reply(6, 200, 1, Rights::Read)).expect("sound");
    assert_eq!(file.state().attributes.size, 300);
    assert_eq!(file.state().attributes.change_count, ChangeCount(7));
}

#[test]
fn ones_own_writes_show_until_the_server_knows_of_them() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    state.record_write(&(100..500), Timestamp(20));
    assert_eq!((state.attributes.size, state.attributes.modified), (500, Timestamp(20)));
    state.accept(reply(6, 200, 1, Rights::ReadWrite)).expect("sound");
    assert_eq!(state.attributes.size, 500, "a stat by somebody else does not shrink the view");
    assert!(!state.needs_commit(), "nothing is stored yet");

    let access = state.access.clone().expect("given");
    state.record_stored(&(100..500), &access, TARGET, 3);
    assert!(state.needs_commit());
    let told = state.stored.acknowledgements;
    state.record_stored(&(500..600), &access, TARGET, 4);
    state.record_commit(told);
    assert!(state.needs_commit(), "the second write came after the commit was sent");
    assert_eq!(state.stored.end, 600);
    let unsynced = state.durable.begin_sync();
    assert_eq!(unsynced.get(&TARGET), Some(&3), "the first loss count is the one to compare");

    let told = state.stored.acknowledgements;
    state.record_commit(told);
    state.accept(reply(8, 600, 1, Rights::ReadWrite)).expect("sound");
    assert!(!state.is_dirty());
    state.accept(reply(9, 50, 2, Rights::ReadWrite)).expect("sound");
    assert_eq!(state.attributes.size, 50, "now another mount's truncation counts");
}

#[test]
fn writes_under_a_new_epoch_are_committed_under_it_and_the_old_ones_forgotten() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    let old = state.access.clone().expect("given");
    state.record_stored(&(0..900), &old, TARGET, 0);
    state.accept(reply(6, 50, 2, Rights::ReadWrite)).expect("sound");
    let new = state.access.clone().expect("given");
    state.record_stored(&(50..60), &new, TARGET, 0);
    assert_eq!(state.stored.version, (ContentGeneration(1), WriteEpoch(2)));
    assert_eq!(state.stored.end, 60);
}

#[test]
fn an_open_for_reading_does_not_take_the_right_to_write_away() {
    let file = opened(Rights::ReadWrite);
    file.state().accept(reply(5, 100, 1, Rights::Read)).expect("sound");
    assert_eq!(file.access().expect("given").rights, Rights::ReadWrite);
    file.state().write_opens = 0;
    file.state().accept(reply(6, 100, 1, Rights::Read)).expect("sound");
    assert_eq!(file.access().expect("given").rights, Rights::Read);
}

#[test]
fn a_change_elsewhere_drops_what_was_fetched_ahead() {
    let file = opened(Rights::Read);
    let mut state = file.state();
    drop(state.pieces.begin(0..10, true, None, std::time::Instant::now()));
    state.accept(reply(5, 100, 1, Rights::Read)).expect("sound");
    assert!(!state.pieces.is_empty(), "nothing has changed");
    state.accept(reply(6, 100, 1, Rights::Read)).expect("sound");
    assert!(state.pieces.is_empty());
}

#[test]
fn impossible_answers_are_refused() {
    let mut directory = reply(1, 0, 1, Rights::Read);
    directory.content = None;
    directory.attributes.kind = FileKind::Directory;
    let kind = |outcome: Result<File, Failure>| outcome.map(drop).map_err(|f| f.kind);
    assert_eq!(kind(File::new(directory, note())), Err(ErrorKind::IsDirectory));
    let mut unreadable = reply(1, 0, 1, Rights::Read);
    let capability = unreadable.capability.as_mut().expect("given");
    capability.body = b"no capability".to_vec();
    assert_eq!(kind(File::new(unreadable, note())), Err(ErrorKind::Protocol));
}

/// The same file, imported, in content `generation` from the object version `tag`.
fn imported(count: u64, generation: u32, tag: &str) -> InodeReply {
    let mut reply = reply(count, 100, 1, Rights::Read);
    let content = reply.content.as_mut().expect("a file");
    content.generation = ContentGeneration(generation);
    content.origin_length = 100;
    content.origin = Some(Origin {
        link: LinkId(1),
        key: "key".to_owned(),
        size: 100,
        tag: tag.to_owned(),
        modified: Timestamp(0),
    });
    let (rights, session) = (Rights::Read, SESSION);
    let capability = Capability { rights, session, content: content.clone() };
    let body = codec::encode(&capability).to_vec();
    reply.capability = Some(Signed { key: KeyId(1), body, mac: [0; 32] });
    reply
}

#[test]
fn a_handle_reads_only_the_version_of_the_object_that_it_was_opened_on() {
    let file = Arc::new(File::new(imported(5, 1, "a"), note()).expect("a file"));
    let open = || {
        let options = HandleOptions::default();
        FileHandle::new(Arc::clone(&file), OpenMode::Read, Caller::ROOT, options, Known::Nobody)
    };
    let first = open();
    assert!(first.check_version(&file.state()).is_ok());
    // An export keeps the content, a truncation the object.
    file.state().accept(imported(6, 1, "b")).expect("a sound answer");
    assert!(first.check_version(&file.state()).is_ok());
    file.state().accept(imported(7, 2, "a")).expect("a sound answer");
    assert!(first.check_version(&file.state()).is_ok());
    file.state().versions = false;

    file.state().accept(imported(8, 3, "c")).expect("a sound answer");
    assert!(file.state().versions, "the kernel's pages are of an older version");
    let stale = first.check_version(&file.state()).expect_err("another version");
    assert_eq!(stale.kind, ErrorKind::Stale);
    assert!(open().check_version(&file.state()).is_ok());
}

#[test]
fn an_open_that_is_told_again_may_be_the_first_to_show_another_version() {
    let file = File::new(imported(5, 1, "a"), note()).expect("a file");
    let mut state = file.state();
    state.accept_reopened(imported(5, 1, "a"), note(), SESSION).expect("a sound answer");
    assert!(!state.versions);
    state.accept_reopened(imported(6, 1, "b"), note(), SESSION).expect("a sound answer");
    assert!(!state.versions, "an export keeps the content");
    state.accept_reopened(imported(7, 2, "c"), note(), SESSION).expect("a sound answer");
    assert!(state.versions, "the kernel's pages are of an older version");

    // Also where the caller has lost the right to the content meanwhile.
    let other = File::new(imported(5, 1, "a"), note()).expect("a file");
    let mut reply = imported(6, 2, "b");
    reply.capability = None;
    other.state().accept_reopened(reply, note(), SESSION).expect("a sound answer");
    assert!(other.state().versions);
}

#[test]
fn an_open_that_is_told_again_does_not_take_the_place_of_what_was_asked_for_later() {
    let stamps = Stamps::default();
    let early = stamps.note();
    stamps.raise_all();
    let late = stamps.note();
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    state.accept_viewed(reply(9, 50, 2, Rights::ReadWrite), late).expect("sound");
    state.accept_reopened(reply(6, 100, 1, Rights::Read), early, SESSION).expect("sound");
    assert_eq!((state.attributes.change_count, state.attributes.size), (ChangeCount(9), 50));
    let access = state.access.clone().expect("given");
    let version = (ContentGeneration(1), WriteEpoch(2));
    assert_eq!((access.version(), access.rights), (version, Rights::ReadWrite));
    assert!(!state.is_access_old());

    // The metadata of an older day was put back.
    state.accept_reopened(reply(7, 70, 1, Rights::ReadWrite), late, SESSION).expect("sound");
    assert_eq!((state.attributes.change_count, state.attributes.size), (ChangeCount(7), 70));
}

#[test]
fn an_open_that_is_told_again_in_another_session_counts_whatever_was_asked_for_later() {
    let stamps = Stamps::default();
    let early = stamps.note();
    stamps.raise_all();
    let late = stamps.note();
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    state.accept(reply(9, 500, 1, Rights::ReadWrite)).expect("sound");
    let next = |count| {
        let mut next = reply(count, 70, 1, Rights::ReadWrite);
        let (rights, session) = (Rights::ReadWrite, SessionId(2));
        let content = next.content.clone().expect("a file");
        let body = codec::encode(&Capability { rights, session, content }).to_vec();
        next.capability = Some(Signed { key: KeyId(1), body, mac: [0; 32] });
        next
    };
    // Metadata of an older day was put back, and this is no newer than what the old session saw.
    state.accept_viewed(next(6), late).expect("sound");
    assert_eq!((state.attributes.change_count, state.session()), (ChangeCount(9), Some(SESSION)));
    state.accept_reopened(next(5), early, SessionId(2)).expect("sound");
    let shown = (state.attributes.change_count, state.attributes.size, state.session());
    assert_eq!(shown, (ChangeCount(5), 70, Some(SessionId(2))));
    // What was overtaken in the same session stays out.
    state.accept_viewed(next(6), late).expect("sound");
    state.accept_reopened(next(5), early, SessionId(2)).expect("sound");
    assert_eq!(state.attributes.change_count, ChangeCount(6));
}

#[test]
fn who_reads_and_is_told_of_again_does_not_take_the_right_to_write_away() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    let rights = |state: &State| state.access.as_ref().map(|access| access.rights);
    state.accept_reopened(reply(6, 100, 1, Rights::Read), note(), SESSION).expect("sound");
    assert_eq!(rights(&state), Some(Rights::ReadWrite));
    // That of a session that has ended is worth nothing.
    let mut next = reply(6, 100, 1, Rights::Read);
    let content = next.content.clone().expect("a file");
    let capability = Capability { rights: Rights::Read, session: SessionId(2), content };
    let body = codec::encode(&capability).to_vec();
    next.capability = Some(Signed { key: KeyId(1), body, mac: [0; 32] });
    state.accept_reopened(next, note(), SessionId(2)).expect("sound");
    assert_eq!(rights(&state), Some(Rights::Read));
}

#[test]
fn the_end_of_a_newer_version_is_not_that_of_the_one_that_is_read() {
    let file = Arc::new(File::new(imported(5, 1, "a"), note()).expect("a file"));
    let options = HandleOptions::default();
    let handle =
        FileHandle::new(Arc::clone(&file), OpenMode::Read, Caller::ROOT, options, Known::Nobody);
    // As a stat by anybody is answered: without a capability.
    let mut stat = imported(6, 2, "b");
    stat.attributes.size = 10;
    stat.capability = None;
    file.state().accept(stat).expect("a sound answer");
    assert_eq!(file.state().attributes.size, 10);
    let stale = handle.check_version(&file.state()).expect_err("another version");
    assert_eq!(stale.kind, ErrorKind::Stale);
}

#[test]
fn of_a_content_that_was_cut_only_what_is_not_sent_yet_counts() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    state.record_write(&(100..500), Timestamp(20));
    let access = state.access.clone().expect("given");
    state.record_stored(&(100..500), &access, TARGET, 0);
    assert_eq!(state.attributes.size, 500);
    state.accept(reply(6, 10, 2, Rights::Read)).expect("sound");
    assert_eq!(state.attributes.size, 10, "what was stored went to the content before");
    assert!(!state.has_undeclared_hole());

    state.buffer.insert(10, b"goes on");
    state.record_write(&(10..17), Timestamp(20));
    state.accept(reply(7, 0, 3, Rights::ReadWrite)).expect("sound");
    assert_eq!(state.attributes.size, 17, "it is written yet");
    assert!(state.has_undeclared_hole(), "whoever has asked for the answer");
    let mut declared = reply(8, 0, 3, Rights::ReadWrite);
    declared.content.as_mut().expect("a file").sparse = true;
    state.accept(declared).expect("sound");
    assert!(!state.has_undeclared_hole());

    state.accept(reply(9, 10, 4, Rights::ReadWrite)).expect("sound");
    assert!(!state.has_undeclared_hole(), "it goes on at the end");
    state.record_write(&(18..20), Timestamp(20));
    assert!(state.has_undeclared_hole(), "the end was another one when this write was taken");
}

#[test]
fn the_late_answer_to_a_truncation_cuts_nothing_that_was_written_after_it() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    let cut = Resized::shown_by(&reply(7, 0, 2, Rights::ReadWrite));
    // Others here have opened it since, and written: two thirds are committed.
    state.accept(reply(8, 200, 2, Rights::ReadWrite)).expect("sound");
    state.record_write(&(200..300), Timestamp(20));
    let access = state.access.clone().expect("given");
    state.record_stored(&(200..300), &access, TARGET, 0);
    state.record_resize(cut);
    assert_eq!((state.stored.end, state.attributes.size), (300, 300));
    assert!(state.needs_commit());
    // Before any of that is committed, what was stored since is all that there is.
    state.record_resize(Resized::shown_by(&reply(8, 0, 2, Rights::ReadWrite)));
    assert_eq!((state.stored.end, state.attributes.size), (300, 300));
    // The next one cuts it.
    let next = reply(9, 50, 3, Rights::ReadWrite);
    let cut = Resized::shown_by(&next);
    state.accept(next).expect("sound");
    state.record_resize(cut);
    assert_eq!((state.stored.end, state.attributes.size), (50, 50));
}

#[test]
fn an_acknowledgement_that_comes_late_says_nothing_of_the_content_that_followed() {
    let file = opened(Rights::ReadWrite);
    let old = file.access().expect("it may be written");
    let mut state = file.state();
    state.accept(reply(9, 0, 9, Rights::ReadWrite)).expect("sound");
    let new = state.access.clone().expect("it may be written");
    assert!(old.version() < new.version(), "another host has cut it");
    state.record_stored(&(50..60), &new, OTHER, 1);
    state.record_stored(&(0..100), &old, TARGET, 7);
    assert_eq!((state.stored.version, state.stored.end), (new.version(), 60));
    assert_eq!(state.stored.acknowledgements, 2);
    assert_eq!(state.durable.begin_sync().get(&TARGET), Some(&7));
}

#[test]
fn what_could_not_be_stored_is_a_hole_before_what_was() {
    let file = opened(Rights::ReadWrite);
    let access = file.access().expect("it may be written");
    let mut state = file.state();
    let size = state.attributes.size;
    state.record_unstored(&(0..size));
    state.record_stored(&(0..size), &access, TARGET, 1);
    assert!(!state.has_unstored_hole(), "what was there before is there");
    state.record_unstored(&(size..size + 8));
    assert!(!state.has_unstored_hole(), "the file ends before it");
    state.record_stored(&(size + 8..size + 16), &access, TARGET, 1);
    assert!(state.has_unstored_hole());
    let mut declared = reply(9, size, 1, Rights::ReadWrite);
    declared.content.as_mut().expect("a file").sparse = true;
    state.accept(declared).expect("sound");
    assert!(!state.has_unstored_hole(), "the server knows");
}

#[test]
fn a_hole_is_known_also_when_a_commit_has_told_of_what_lies_behind_it_before() {
    let file = opened(Rights::ReadWrite);
    let access = file.access().expect("it may be written");
    let mut state = file.state();
    let size = state.attributes.size;
    state.buffer.insert(size, &[7; 8]);
    let slot = state.buffer.dirty_slots()[0];
    let flights = state.buffer.take_off(slot).expect("there is something to send");
    assert_eq!(flights[0].end(), size + 8);
    state.record_stored(&(size + 8..size + 16), &access, TARGET, 1);
    let told = state.stored.acknowledgements;
    state.accept(reply(9, size + 16, 1, Rights::ReadWrite)).expect("sound");
    state.record_commit(told);
    state.record_unstored(&(size..size + 8));
    state.buffer.land(slot);
    assert!(state.has_unstored_hole() && state.is_dirty(), "a commit has to say so");
}

#[test]
fn what_targets_have_of_writes_that_are_given_up_may_be_a_hole() {
    let file = opened(Rights::ReadWrite);
    let access = file.access().expect("it may be written");
    let mut state = file.state();
    state.record_stored(&(0..8), &access, TARGET, 1);
    state.record_given_up();
    state.forget_writes();
    assert!(state.has_unstored_hole() && state.is_dirty(), "a commit has to say so");
}

#[test]
fn no_size_is_told_past_bytes_on_their_way_that_nobody_has_stored_before() {
    let file = opened(Rights::ReadWrite);
    let access = file.access().expect("it may be written");
    let mut state = file.state();
    let (size, slot_len) = (state.attributes.size, u64::from(TRANSFER_LEN_MAX));
    let write = |state: &mut State, range: Range<u64>| {
        let len = usize::try_from(range.end - range.start).expect("a few bytes");
        state.buffer.insert(range.start, &vec![7; len]);
        state.record_write(&range, Timestamp(20));
    };
    write(&mut state, size..slot_len + 10);
    let slots = state.buffer.dirty_slots();
    assert_eq!(slots.len(), 2);
    for &slot in &slots {
        assert!(state.buffer.take_off(slot).is_some());
    }
    state.record_stored(&(slot_len..slot_len + 10), &access, TARGET, 1);
    state.buffer.land(slots[1]);
    assert_eq!((state.end_to_tell(), state.stored.end), (size, slot_len + 10));
    // Over what has landed: whoever syncs that needs not wait for this.
    write(&mut state, slot_len..slot_len + 4);
    assert!(state.buffer.take_off(slots[1]).is_some());
    state.record_stored(&(size..slot_len), &access, TARGET, 1);
    state.buffer.land(slots[0]);
    assert_eq!(state.end_to_tell(), slot_len + 10);
    write(&mut state, slot_len + 8..slot_len + 20);
    state.record_stored(&(slot_len + 15..slot_len + 20), &access, TARGET, 1);
    assert_eq!(state.end_to_tell(), slot_len + 10, "the end was there");
    // Cut by another host, what waits lies behind the end of a content without holes.
    state.accept(reply(9, slot_len + 8, 2, Rights::ReadWrite)).expect("sound");
    let access = state.access.clone().expect("given");
    state.record_stored(&(slot_len + 15..slot_len + 20), &access, TARGET, 1);
    assert_eq!(state.end_to_tell(), slot_len + 8);
    let mut declared = reply(10, slot_len + 8, 2, Rights::ReadWrite);
    declared.content.as_mut().expect("a file").sparse = true;
    state.accept(declared).expect("sound");
    assert_eq!(state.end_to_tell(), slot_len + 20, "what is missing there are zeros");
}

#[test]
fn whose_bytes_a_file_has_is_known_while_only_this_mount_changes_it() {
    let file = File::new(reply(1, 0, 1, Rights::ReadWrite), note()).expect("a file");
    let mut state = file.state();
    assert!(state.others_bytes().is_none(), "it has none");
    let commit = |state: &mut State, count| {
        state.accept(reply(count, 500, 1, Rights::ReadWrite)).expect("sound");
        let whole = state.durable.whole();
        state.durable.handle_own_change(whole, ChangeCount(count));
    };
    commit(&mut state, 2);
    commit(&mut state, 3);
    assert!(state.others_bytes().is_none(), "all were written here");
    state.accept(reply(4, 500, 1, Rights::ReadWrite)).expect("sound");
    assert!(state.others_bytes().is_some_and(|(_, size, count)| (size, count.0) == (500, 4)));
    commit(&mut state, 5);
    assert!(state.others_bytes().is_some(), "somebody else has written before");
    state.durable.record_whole(ChangeCount(5));
    assert!(state.others_bytes().is_none());
    state.accept_reopened(reply(5, 500, 1, Rights::ReadWrite), note(), SESSION).expect("sound");
    assert!(state.others_bytes().is_some(), "the server may count anew");

    // Bytes that live in the inode are at no target.
    let small = InodeReply { inline: Some(b"small".to_vec()), ..reply(7, 5, 1, Rights::Read) };
    let file = File::new(small, note()).expect("a file");
    assert!(file.state().others_bytes().is_none());
}

#[test]
fn a_loss_is_told_to_who_waits_for_the_target_too() {
    let file = opened(Rights::ReadWrite);
    let mut state = file.state();
    let before = state.losses;
    state.record_failure(ErrorKind::NoSpace.into());
    assert!(state.lost_since(before).is_none());
    state.record_loss(ErrorKind::Lost.into());
    assert_eq!(state.lost_since(before).expect("it was lost").kind, ErrorKind::Lost);
    assert!(state.lost_since(state.losses).is_none(), "who comes later waits for nothing of it");
    assert_eq!(state.failures, 2);
}

#[test]
fn bytes_in_an_inode_are_of_one_content_and_epoch() {
    let with = |count, epoch, inline: Option<&[u8]>| {
        let inline = inline.map(<[u8]>::to_vec);
        InodeReply { inline, ..reply(count, 5, epoch, Rights::ReadWrite) }
    };
    let file = File::new(with(5, 1, Some(b"small")), note()).expect("a file");
    let mut state = file.state();
    state.write_opens = 1;
    // A stat says nothing of them.
    let stat = InodeReply { capability: None, ..with(6, 1, None) };
    state.accept(stat).expect("sound");
    let bytes = |state: &State| state.inline.as_ref().and_then(InInode::bytes).map(<[u8]>::to_vec);
    assert_eq!(bytes(&state).as_deref(), Some(&b"small"[..]));
    // An open by what was kept, of which the bytes were forgotten.
    state.accept(with(6, 1, Some(b""))).expect("sound");
    assert_eq!(bytes(&state).as_deref(), Some(&b"small"[..]));
    // Written on behind them: what is on its way fills what lies between, and leaves no hole.
    state.buffer.insert(5, b"more");
    state.record_write(&(5..9), Timestamp(20));
    let slot = state.buffer.dirty_slots()[0];
    assert!(state.buffer.take_off(slot).is_some());
    state.accept(with(7, 3, None)).expect("sound");
    assert!(state.inline.is_none(), "they are at the targets");
    assert!(!state.has_undeclared_hole());
    assert_eq!(state.attributes.size, 9);
    // What comes late shows what was.
    state.accept(with(6, 1, Some(b"small"))).expect("sound");
    assert!(state.inline.is_none());
}

#[test]
fn after_a_loss_of_the_log_a_lower_count_is_taken_over_and_what_was_told_is_told_again() {
    let file = opened(Rights::ReadWrite);
    let access = file.access().expect("it may be written");
    let mut state = file.state();
    state.record_write(&(100..500), Timestamp(20));
    state.record_stored(&(100..500), &access, TARGET, 1);
    let told = state.stored.acknowledgements;
    state.record_commit(told);
    state.accept(reply(8, 500, 1, Rights::ReadWrite)).expect("sound");
    state.durable.record_told(ChangeCount(8));
    assert!(!state.is_dirty());

    state.handle_log_loss(true);
    assert!(state.needs_commit() && state.stored.end == 500);
    state.accept(reply(7, 100, 1, Rights::ReadWrite)).expect("sound");
    let shown = &state.attributes;
    assert_eq!((shown.change_count, shown.size), (ChangeCount(7), 500), "its own bytes show");
    assert!(!state.durable.is_told(ChangeCount(8)), "the next count 8 is another one");
    state.record_commit(told);
    state.accept(reply(8, 500, 1, Rights::ReadWrite)).expect("sound");
    assert!(!state.is_dirty() && state.attributes.size == 500);

    let other = opened(Rights::Read);
    let mut state = other.state();
    state.handle_log_loss(false);
    state.accept(reply(4, 50, 1, Rights::Read)).expect("sound");
    assert_eq!(state.attributes.size, 50);
    assert!(!state.is_dirty(), "nothing was told of it");
}
