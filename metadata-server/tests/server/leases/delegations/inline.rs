//! Small files whose bytes live in their inodes: what is told of them, and what must happen before
//! they are written.

use millrace_metadata_server::{
    command::{Command, Spilled},
    store::keys,
};
use millrace_protocol::{
    lease::{ShowContents, ShownContent},
    metadata::{GetInode, INLINE_BYTES_MAX, Open, OpenMode},
};

use super::*;
use crate::hosts::confirm_spill;

const BYTES: &[u8] = b"a few bytes";

impl Maker {
    /// A file with its bytes.
    fn small(&mut self, text: &str, nth: usize) -> NewFile {
        let inline = Some(BYTES.to_vec());
        NewFile { end: BYTES.len() as u64, inline, ..self.file(text, nth) }
    }

    /// A file whose bytes live in its inode, which nobody has open.
    fn made(&mut self) -> InodeId {
        let file = self.small("small", 0);
        let made = self.publish(std::slice::from_ref(&file)).pop().unwrap().unwrap();
        let inode = made.reply.attributes.inode;
        self.close(inode);
        inode
    }

    fn close(&mut self, inode: InodeId) {
        let close = self.world.looks.host.close_write(inode);
        self.world.looks.host.run(&self.world.server, close, ops::open::close).unwrap();
    }

    fn inline(&self, inode: InodeId) -> Option<Vec<u8>> {
        self.world.server.turn(move |core| {
            let found = tree::inode(core.view(), inode).unwrap();
            tree::inline(core.view(), &found).unwrap()
        })
    }

    /// What of the bytes the store has.
    fn stored(&self, inode: InodeId) -> Option<Vec<u8>> {
        self.world.server.turn(move |core| core.view().get(&keys::contents(inode)).unwrap())
    }

    fn reclaims(&self) -> usize {
        self.world.server.turn(|core| {
            tree::scan::<millrace_metadata_server::store::records::ReclaimRecord>(
                core.view(),
                &keys::reclaims(),
                100,
            )
            .unwrap()
            .len()
        })
    }

    fn contents(&self, inode: InodeId) -> Vec<ShownContent> {
        let session = self.world.looks.host.session;
        let request = ShowContents { caller: Caller::ROOT, session, inode, entries_max: 10 };
        let shown = self.world.looks.host.run(&self.world.server, request, ops::contents::show);
        shown.unwrap().contents
    }
}

/// What an operation of the second host needs before it is done.
fn need<R: Send + 'static, T: Send + 'static>(
    maker: &Maker,
    request: R,
    operation: Run<R, T>,
) -> Option<Need> {
    let client = maker.world.changes.client.clone();
    maker.world.server.turn(move |core| {
        match core.attempt(Vec::new(), |core| operation(core, &client, &request)).unwrap() {
            Step::Done(_) => None,
            Step::Need(need) => Some(need),
        }
    })
}

/// Has the second host do something, for which the targets take the bytes and the first host gives
/// back what it has.
fn done<R, T>(maker: &mut Maker, request: R, operation: Run<R, T>) -> T
where
    R: Clone + Send + 'static,
    T: Send + 'static,
{
    let mut given_back: Vec<Wait> = Vec::new();
    loop {
        let (client, before) = (maker.world.changes.client.clone(), given_back.clone());
        let again = request.clone();
        let step = maker.world.server.turn(move |core| {
            core.attempt(before, |core| operation(core, &client, &again)).unwrap()
        });
        match step {
            Step::Done(reply) => return reply,
            Step::Need(Need::Spill { inode, .. }) => {
                maker.world.server.turn(move |core| confirm_spill(core, inode));
            }
            Step::Need(Need::Recall(wait)) => {
                while !maker.world.looks.hear(&maker.world.server).is_empty() {}
                given_back.push(wait);
            }
            Step::Need(other) => panic!("nothing else is needed: {other:?}"),
        }
    }
}

#[test]
fn a_new_file_system_says_how_large_they_may_be() {
    let world = world();
    let given = delegate(&world, &world.looks, world.directory).expect("nobody else is there");
    assert_eq!(given.inline_bytes_max, INLINE_BYTES_MAX);
}

#[test]
fn where_metadata_may_take_no_more_files_beyond_a_page_go_to_the_targets() {
    let world = world_with(|settings| settings.small_files_bytes = 0);
    let given = delegate(&world, &world.looks, world.directory).expect("nobody else is there");
    assert_eq!(given.inline_bytes_max, 4096);
}

#[test]
fn bytes_are_shown_to_who_opens_and_not_to_who_looks() {
    let mut maker = opened();
    let file = maker.small("small", 0);
    let (session, files) = (maker.world.looks.host.session, vec![file.clone()]);
    let request = PublishFiles { session, files };
    let host = &maker.world.looks.host;
    let published = host.run(&maker.world.server, request, ops::delegation::publish).unwrap();
    let [PublishedFile::MadeInline(made)] = &published.files[..] else {
        panic!("it lives in its inode: {published:?}")
    };
    assert_eq!((made.reply.inline.as_ref(), made.reply.attributes.size), (None, 11));
    let inode = made.reply.attributes.inode;
    // Another content under the same id is what its maker must hear of.
    let other = NewFile { inline: Some(b"other bytes".to_vec()), ..file };
    let made = maker.publish(std::slice::from_ref(&other)).pop().unwrap().unwrap();
    assert_eq!(made.reply.inline.as_deref(), Some(BYTES));
    maker.close(inode);

    let found = maker.world.looks.find(&maker.world.server, maker.directory, "small").found;
    let found = found.unwrap();
    assert_eq!((found.inline, found.capability, found.attributes.size), (None, None, 11));
    let shown = maker.contents(inode);
    assert_eq!(shown[0].inline.as_deref(), Some(BYTES));
    let open = maker.world.changes.open_write(inode, false);
    let open = Open { mode: OpenMode::Read, ..open };
    let opened = maker.world.changes.run(&maker.world.server, open, ops::open::open).unwrap();
    assert_eq!(opened.inline.as_deref(), Some(BYTES));
}

#[test]
fn who_writes_waits_until_the_targets_have_them_and_writes_under_another_epoch() {
    let mut maker = opened();
    let inode = maker.made();
    let spill = Some(Need::Spill { inode, by: maker.world.changes.session });
    let open = maker.world.changes.open_write(inode, false);
    assert_eq!(need(&maker, open.clone(), ops::open::open), spill);
    let grow = SetAttributes { size: Some(100), mode: None, ..maker.world.set(inode) };
    assert_eq!(need(&maker, grow, ops::set_attributes::set), spill);
    let cut = SetAttributes { size: Some(3), mode: None, ..maker.world.set(inode) };
    assert_eq!(need(&maker, cut, ops::set_attributes::set), spill);
    let mark = SetAttributes { make_sparse: true, mode: None, ..maker.world.set(inode) };
    assert_eq!(need(&maker, mark, ops::set_attributes::set), spill);
    let create = Create {
        open: true,
        exclusive: false,
        ..maker.world.changes.create(maker.directory, "small", NewNode::Regular)
    };
    assert_eq!(need(&maker, create, ops::create::create), spill);
    assert_eq!(maker.inline(inode).as_deref(), Some(BYTES), "nothing has happened");
    assert_eq!(maker.stored(inode).as_deref(), Some(BYTES), "beside the inode");

    let opened = done(&mut maker, open, ops::open::open);
    let content = opened.content.unwrap();
    assert_eq!((opened.inline, content.generation.0, content.write_epoch.0), (None, 1, 3));
    assert_eq!(opened.attributes.size, 11);
    assert_eq!((maker.inline(inode), maker.stored(inode)), (None, None));
}

#[test]
fn its_maker_writes_on_behind_the_targets_having_them() {
    let mut maker = opened();
    let file = maker.small("small", 0);
    let made = maker.publish(std::slice::from_ref(&file)).pop().unwrap().unwrap();
    let inode = made.reply.attributes.inode;
    // What it proposes of bytes that it cannot have written is refused.
    let commit = Commit {
        operation: maker.world.looks.host.operation(),
        inode,
        generation: ContentGeneration(1),
        write_epoch: WriteEpoch(1),
        end: 20_000,
        written_at: None,
        durable: false,
    };
    let host = &maker.world.looks.host;
    let refused = host.run(&maker.world.server, commit, ops::commit::commit).unwrap_err();
    assert_eq!(refused, ErrorKind::Busy);
    let session = Some(host.session);
    let look = GetInode { caller: Caller::ROOT, session, inode };
    let shown = host.run(&maker.world.server, look, ops::lookup::inode).unwrap();
    assert_eq!((shown.inline, shown.content.unwrap().write_epoch.0), (None, 3));
}

#[test]
fn what_is_emptied_or_removed_has_nothing_at_the_targets_to_be_freed() {
    let mut maker = opened();
    let inode = maker.made();
    let empty = maker.world.changes.open_write(inode, true);
    let opened = done(&mut maker, empty, ops::open::open);
    let content = opened.content.unwrap();
    assert_eq!((opened.attributes.size, content.generation.0), (0, 2), "it is another content");
    assert_eq!((maker.inline(inode), maker.stored(inode), maker.reclaims()), (None, None, 0));

    let mut maker = self::opened();
    let inode = maker.made();
    let remove = maker.world.changes.remove(maker.directory, "small", false);
    done(&mut maker, remove, ops::remove::remove);
    assert_eq!((maker.stored(inode), maker.reclaims()), (None, 0));
}

#[test]
fn a_late_word_that_the_targets_have_them_changes_nothing() {
    let mut maker = opened();
    let inode = maker.made();
    let spilled = |generation, write_epoch| {
        let (generation, write_epoch) = (ContentGeneration(generation), WriteEpoch(write_epoch));
        let spilled = Spilled { inode, generation, write_epoch };
        maker.world.server.turn(move |core| {
            core.execute(None, Command::Spilled(spilled)).unwrap();
            tree::inode(core.view(), inode).unwrap().content().unwrap().write_epoch.0
        })
    };
    assert_eq!((spilled(1, 7), spilled(2, 1)), (1, 1), "of another content");
    assert_eq!((spilled(1, 1), spilled(1, 1)), (3, 3), "once");
}

#[test]
fn what_no_inode_holds_is_refused() {
    let mut maker = opened();
    let most = usize::try_from(INLINE_BYTES_MAX).unwrap();
    let of = |len: usize, end: u64, file: NewFile| {
        let inline = Some(vec![1; len]);
        NewFile { inline, end, ..file }
    };
    let largest = of(most, most as u64, maker.file("largest", 0));
    assert!(maker.publish(std::slice::from_ref(&largest))[0].is_ok());
    for (len, end) in [(most + 1, most as u64 + 1), (5, 6), (0, 0)] {
        let file = of(len, end, maker.file("refused", 1));
        let refused = maker.publish(std::slice::from_ref(&file)).pop().unwrap().map(drop);
        assert_eq!(refused, Err(ErrorKind::InvalidArgument), "{len} bytes, {end} in all");
    }
}
