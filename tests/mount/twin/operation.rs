//! What a program may ask of a file system, drawn at random.

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    sample::select,
};

/// One system call, or a few that belong together, by somebody.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Who asks.
    pub(super) who: Who,
    /// Through which of the mounts, modulo their number.
    pub(super) through: usize,
    /// What is asked.
    pub(super) operation: Operation,
}

/// Users of the host that runs the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Root,
    /// User 1000 of group 1000.
    Owner,
    /// User 1001 of group 1001, and of group 1000 by the list of groups.
    Member,
    /// User 1002 of group 1002.
    Stranger,
}

/// A path below the root of the case; few names, so that they meet.
#[derive(Clone)]
pub(super) struct Place(pub(super) String);

impl std::fmt::Debug for Place {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Number of descriptors that a case has open at a time.
pub(super) const SLOTS: usize = 5;

/// Flags of an open.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) truncate: bool,
    pub(super) append: bool,
    pub(super) directory: bool,
    pub(super) no_follow: bool,
}

/// A time to set.
#[derive(Clone, Copy, Debug)]
pub(super) enum Time {
    Now,
    Kept,
    At(i64, u32),
}

/// Names are those of the system calls where they have one.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    MakeDirectory(Place, u32),
    MakeFifo(Place, u32),
    Symlink(String, Place),
    Link(Place, Place),
    Unlink(Place),
    RemoveDirectory(Place),
    /// Bit 0: refuses to replace. Bit 1: exchanges.
    Rename(Place, Place, u32),
    Stat(Place),
    ReadLink(Place),
    List(Place),
    ChangeMode(Place, u32),
    ChangeOwner(Place, Option<u32>, Option<u32>),
    SetTimes(Place, Time, Time),
    TruncatePath(Place, u64),
    /// Opens, writes at an offset and closes.
    WriteFile(Place, u64, usize, u8),
    /// Opens for appending, writes and closes.
    AppendFile(Place, usize, u8),
    ReadFile(Place),
    SetAttribute(Place, u8, usize, u8),
    GetAttribute(Place, u8),
    RemoveAttribute(Place, u8),
    ListAttributes(Place),
    Open(usize, Place, How, u32),
    Close(usize),
    WriteAt(usize, u64, usize, u8),
    Append(usize, usize, u8),
    ReadAt(usize, u64, usize),
    Truncate(usize, u64),
    Punch(usize, u64, u64),
    Sync(usize),
    StatOpen(usize),
    ChangeModeOpen(usize, u32),
}

/// What each case begins with, so that there is something to act on.
pub(super) fn first_steps() -> Vec<Step> {
    let place = |path: &str| Place(path.to_owned());
    let operations = [
        Operation::MakeDirectory(place("a"), 0o777),
        Operation::MakeDirectory(place("b"), 0o755),
        Operation::MakeDirectory(place("a/b"), 0o2775),
        Operation::ChangeMode(place("a"), 0o777),
        Operation::ChangeOwner(place("b"), Some(1000), Some(1000)),
        Operation::WriteFile(place("c"), 0, 5000, 1),
        Operation::WriteFile(place("a/c"), 70_000, 10, 2),
        Operation::WriteFile(place("b/d"), 0, 140_000, 3),
        Operation::ChangeOwner(place("c"), Some(1000), Some(1000)),
        Operation::Symlink("a/c".to_owned(), place("d")),
    ];
    let step = |operation| Step { who: Who::Root, through: 0, operation };
    operations.into_iter().map(step).collect()
}

/// Steps on paths alone: each is over when it returns, so any mount may take any of them.
pub(super) fn steps_on_paths(mounts: usize) -> impl Strategy<Value = Step> {
    step(mounts, prop_oneof![8 => names(), 5 => attributes(), 6 => contents()])
}

/// All steps, those on open files included, for one mount.
pub(super) fn steps() -> impl Strategy<Value = Step> {
    step(1, prop_oneof![6 => names(), 4 => attributes(), 3 => contents(), 9 => open_files()])
}

fn step(mounts: usize, operation: impl Strategy<Value = Operation>) -> impl Strategy<Value = Step> {
    let who = prop_oneof![
        8 => Just(Who::Root),
        3 => Just(Who::Owner),
        1 => Just(Who::Member),
        1 => Just(Who::Stranger),
    ];
    (who, 0..mounts, operation).prop_map(|(who, through, operation)| Step {
        who,
        through,
        operation,
    })
}

fn place() -> impl Strategy<Value = Place> {
    let name = prop_oneof![
        60 => select(&["a", "b", "c", "d"][..]).prop_map(str::to_owned),
        1 => Just(".".to_owned()),
        1 => Just("..".to_owned()),
        1 => Just("n".repeat(255)),
        1 => Just("n".repeat(256)),
    ];
    let ending = prop_oneof![60 => Just(""), 1 => Just("/"), 1 => Just("/.")];
    // The first component is always a name: no path leaves the case.
    let first = select(&["a", "b", "c", "d"][..]);
    let depth = select(vec![0, 0, 0, 0, 1, 1, 1, 2]);
    (first, depth.prop_flat_map(move |depth| vec(name.clone(), depth)), ending).prop_map(
        |(first, names, ending)| {
            let mut path = first.to_owned();
            let mut depth = 1;
            for name in names {
                depth += match name.as_str() {
                    "." => 0,
                    ".." => -1,
                    _ => 1,
                };
                if depth < 0 {
                    break;
                }
                path.push('/');
                path.push_str(&name);
            }
            Place(path + ending)
        },
    )
}

fn mode() -> impl Strategy<Value = u32> {
    let modes = [0o777, 0o755, 0o700, 0o644, 0o600, 0o000, 0o2775, 0o1777, 0o4755, 0o6750, 0o070];
    select(modes.to_vec())
}

fn names() -> impl Strategy<Value = Operation> {
    let target = select(&["a", "b/a", "../a", "c", ".", "nowhere", "d"][..]);
    prop_oneof![
        6 => (place(), mode()).prop_map(|(place, mode)| Operation::MakeDirectory(place, mode)),
        1 => (place(), mode()).prop_map(|(place, mode)| Operation::MakeFifo(place, mode)),
        2 => (target, place()).prop_map(|(target, at)| Operation::Symlink(target.to_owned(), at)),
        3 => (place(), place()).prop_map(|(old, new)| Operation::Link(old, new)),
        3 => place().prop_map(Operation::Unlink),
        2 => place().prop_map(Operation::RemoveDirectory),
        4 => (place(), place(), select(vec![0, 0, 0, 1, 2, 3]))
            .prop_map(|(old, new, flags)| Operation::Rename(old, new, flags)),
        1 => place().prop_map(Operation::ReadLink),
        3 => place().prop_map(Operation::List),
    ]
}

fn attributes() -> impl Strategy<Value = Operation> {
    // At least one of them: FUSE does not tell a chown to nobody from nothing at all.
    let ids = prop_oneof![
        (select(vec![0, 1000, 1001]), select(vec![0, 1000, 1001]))
            .prop_map(|(user, group)| (Some(user), Some(group))),
        select(vec![0, 1000, 1001]).prop_map(|user| (Some(user), None)),
        select(vec![0, 1000, 1001]).prop_map(|group| (None, Some(group))),
    ];
    let time = || {
        prop_oneof![
            Just(Time::Now),
            Just(Time::Kept),
            (-5_000_000_000_i64..5_000_000_000, 0..1_000_000_000_u32)
                .prop_map(|(seconds, nanoseconds)| Time::At(seconds, nanoseconds)),
        ]
    };
    let length = select(vec![0_usize, 1, 300, 4000]);
    prop_oneof![
        5 => place().prop_map(Operation::Stat),
        4 => (place(), mode()).prop_map(|(place, mode)| Operation::ChangeMode(place, mode)),
        3 => (place(), ids)
            .prop_map(|(place, (user, group))| Operation::ChangeOwner(place, user, group)),
        2 => (place(), time(), time())
            .prop_map(|(place, read, written)| Operation::SetTimes(place, read, written)),
        2 => (place(), 0..3_u8, length, 0..3_u8)
            .prop_map(|(place, name, length, mode)| {
                Operation::SetAttribute(place, name, length, mode)
            }),
        1 => (place(), 0..3_u8).prop_map(|(place, name)| Operation::GetAttribute(place, name)),
        1 => (place(), 0..3_u8).prop_map(|(place, name)| Operation::RemoveAttribute(place, name)),
        1 => place().prop_map(Operation::ListAttributes),
    ]
}

fn offset() -> impl Strategy<Value = u64> {
    select(vec![0, 1, 100, 4095, 4096, 8191, 70_000, 131_072, (1 << 20) - 1, 1 << 20])
}

fn length() -> impl Strategy<Value = usize> {
    select(vec![0, 1, 10, 4096, 5000, 65_536, 140_000])
}

fn contents() -> impl Strategy<Value = Operation> {
    let byte = || any::<u8>();
    prop_oneof![
        4 => (place(), offset(), length(), byte())
            .prop_map(|(place, at, length, byte)| Operation::WriteFile(place, at, length, byte)),
        2 => (place(), length(), byte())
            .prop_map(|(place, length, byte)| Operation::AppendFile(place, length, byte)),
        3 => place().prop_map(Operation::ReadFile),
        2 => (place(), offset()).prop_map(|(place, size)| Operation::TruncatePath(place, size)),
    ]
}

fn how() -> impl Strategy<Value = How> {
    let access = select(vec![(true, false), (false, true), (true, true), (true, true)]);
    let rarely = || prop_oneof![5 => Just(false), 1 => Just(true)];
    (access, any::<bool>(), rarely(), rarely(), rarely(), rarely(), rarely()).prop_map(
        |((read, write), create, exclusive, truncate, append, directory, no_follow)| How {
            read,
            write,
            create,
            exclusive: create && exclusive,
            truncate: write && truncate,
            append: write && append,
            // Both together mean something else on each version of Linux.
            directory: directory && !create,
            no_follow,
        },
    )
}

fn open_files() -> impl Strategy<Value = Operation> {
    let slot = || 0..SLOTS;
    prop_oneof![
        8 => (slot(), place(), how(), mode())
            .prop_map(|(slot, place, how, mode)| Operation::Open(slot, place, how, mode)),
        3 => slot().prop_map(Operation::Close),
        6 => (slot(), offset(), length(), any::<u8>())
            .prop_map(|(slot, at, length, byte)| Operation::WriteAt(slot, at, length, byte)),
        2 => (slot(), length(), any::<u8>())
            .prop_map(|(slot, length, byte)| Operation::Append(slot, length, byte)),
        5 => (slot(), offset(), length())
            .prop_map(|(slot, at, length)| Operation::ReadAt(slot, at, length)),
        2 => (slot(), offset()).prop_map(|(slot, size)| Operation::Truncate(slot, size)),
        2 => (slot(), offset(), offset())
            .prop_map(|(slot, at, length)| Operation::Punch(slot, at, length)),
        1 => slot().prop_map(Operation::Sync),
        3 => slot().prop_map(Operation::StatOpen),
        1 => (slot(), mode()).prop_map(|(slot, mode)| Operation::ChangeModeOpen(slot, mode)),
    ]
}
