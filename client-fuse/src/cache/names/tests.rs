use millrace_protocol::metadata::FileKind;
use millrace_types::{ChangeCount, Timestamp};

use super::*;

const DIRECTORY: InodeId = InodeId(7);
const FILE: InodeId = InodeId(8);
const SESSION: SessionId = SessionId(3);

fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).expect("a name")
}

fn attributes(inode: InodeId, kind: FileKind) -> Attributes {
    Attributes {
        inode,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        links: 1,
        device: 0,
        size: 5,
        accessed: Timestamp(1),
        modified: Timestamp(1),
        changed: Timestamp(1),
        born: Timestamp(1),
        change_count: ChangeCount(1),
    }
}

/// A cache that knows one file.
fn names() -> Names {
    let names = Names::new(1 << 20, false);
    names.begin(SESSION);
    keep(&names, names.note());
    names
}

fn keep(names: &Names, note: Note) {
    names.keep_name((DIRECTORY, name("f")), Some(FILE), Some(note));
    names.keep_attributes(attributes(FILE, FileKind::Regular), Lease::of(DIRECTORY, note));
}

/// A change from here that has ended.
fn change(names: &Names, text: &str) {
    drop(names.changing(&[(DIRECTORY, &name(text))], None));
}

fn knows(names: &Names) -> (bool, bool) {
    (names.find(DIRECTORY, &name("f")).is_some(), shown(names, FILE).is_some())
}

/// What is known of the attributes of an inode.
fn shown(names: &Names, inode: InodeId) -> Option<Attributes> {
    names.attributes(inode).map(|(attributes, _)| attributes)
}

#[test]
fn each_recall_takes_back_what_it_names_and_no_more() {
    let recalls = [
        (Recall::Name(DIRECTORY, name("f")), (false, true)),
        (Recall::Name(DIRECTORY, name("other")), (true, true)),
        (Recall::Attributes(FILE), (true, false)),
        (Recall::Attributes(DIRECTORY), (true, true)),
        (Recall::Lease(DIRECTORY), (false, false)),
        (Recall::Lease(FILE), (true, true)),
        (Recall::Everything, (false, false)),
    ];
    for (recall, left) in recalls {
        let names = names();
        assert_eq!(knows(&names), (true, true));
        names.forget(&recall);
        assert_eq!(knows(&names), left, "{recall:?}");
        keep(&names, names.note());
        assert_eq!(knows(&names), (true, true), "what is asked for again counts");
    }
}

#[test]
fn an_answer_that_a_recall_overtook_does_not_count() {
    let recalls =
        [Recall::Name(DIRECTORY, name("f")), Recall::Attributes(FILE), Recall::Everything];
    for recall in recalls {
        let names = names();
        let note = names.note();
        names.forget(&recall);
        keep(&names, note);
        assert_ne!(knows(&names), (true, true), "{recall:?}");
    }
}

#[test]
fn a_name_changed_from_here_takes_along_what_it_led_to() {
    let names = names();
    names.keep_attributes(
        attributes(DIRECTORY, FileKind::Directory),
        Lease::of(DIRECTORY, names.note()),
    );
    change(&names, "f");
    assert_eq!(knows(&names), (false, false));
    assert_eq!(shown(&names, DIRECTORY), None);
}

#[test]
fn what_is_asked_for_while_it_changes_from_here_does_not_count() {
    let names = names();
    let other = InodeId(9);
    let name = name("f");
    let changed = [(DIRECTORY, &name)];
    let changing = names.changing(&changed, None);
    let second = names.changing(&changed, Some(other));
    assert_eq!(knows(&names), (false, false), "the change may have taken place already");
    keep(&names, names.note());
    assert_eq!(knows(&names), (false, false), "the answer may be from before the change");
    drop(changing);
    keep(&names, names.note());
    assert_eq!(knows(&names), (false, false), "the other change is under way");
    names.keep_name((DIRECTORY, name.clone()), Some(other), Some(names.note()));
    names.keep_attributes(attributes(other, FileKind::Regular), Lease::of(DIRECTORY, names.note()));
    let note = names.note();
    drop(second);
    assert_eq!(shown(&names, other), None, "the name led to it when it changed");
    keep(&names, note);
    assert_eq!(knows(&names), (false, false));
    keep(&names, names.note());
    assert_eq!(knows(&names), (true, true));
}

#[test]
fn a_name_that_nobody_vouches_for_may_lead_to_any_file_of_its_directory() {
    let names = names();
    names.forget(&Recall::Name(DIRECTORY, name("f")));
    let another = InodeId(10);
    names.keep_attributes(
        attributes(another, FileKind::Regular),
        Lease::of(DIRECTORY, names.note()),
    );
    names
        .keep_attributes(attributes(InodeId(11), FileKind::Regular), Lease::of(FILE, names.note()));
    change(&names, "f");
    assert_eq!(shown(&names, another), None);
    assert!(shown(&names, InodeId(11)).is_some(), "it is of another directory");
}

#[test]
fn a_hint_answers_nobody_and_tells_what_a_change_concerns() {
    let names = names();
    let other = InodeId(9);
    names.keep_name((DIRECTORY, name("g")), Some(other), None);
    names.keep_attributes(attributes(other, FileKind::Regular), Lease::of(DIRECTORY, names.note()));
    assert_eq!(names.find(DIRECTORY, &name("g")), None);
    assert_eq!(names.hint(DIRECTORY, &name("g")), Some(other));
    change(&names, "g");
    assert_eq!(shown(&names, other), None);
    keep(&names, names.note());
    change(&names, "never seen");
    assert_eq!(knows(&names), (false, false), "it may have led to anything");
}

#[test]
fn what_a_file_with_several_names_shows_is_not_kept() {
    let names = names();
    names.forget(&Recall::Attributes(FILE));
    names.keep_attributes(attributes(FILE, FileKind::Regular), Lease::of(FILE, names.note()));
    assert_eq!(shown(&names, FILE), None);
}

#[test]
fn a_content_stands_until_the_server_speaks_of_its_inode_or_of_everything() {
    let names = names();
    let note = names.note();
    change(&names, "f");
    names.forget(&Recall::Name(DIRECTORY, name("f")));
    names.forget(&Recall::Lease(DIRECTORY));
    assert!(names.content_stands(FILE, note), "what this mount changes it knows");
    names.forget(&Recall::Attributes(FILE));
    assert!(!names.content_stands(FILE, note) && names.content_stands(FILE, names.note()));
    let note = names.note();
    names.forget_all();
    assert!(!names.content_stands(FILE, note));
}

#[test]
fn only_the_present_session_counts_and_a_squashed_root_is_not_answered() {
    let names = names();
    assert!(names.is_usable(SESSION, 0));
    assert!(!names.is_usable(SessionId(4), 0));
    names.suspend();
    assert!(!names.is_usable(SESSION, 0));
    assert_eq!(knows(&names), (false, false));
    let squashed = Names::new(1 << 20, true);
    squashed.begin(SESSION);
    assert!(!squashed.is_usable(SESSION, 0) && squashed.is_usable(SESSION, 1000));
}

#[test]
fn what_is_kept_is_bounded_by_bytes() {
    let names = Names::new(100_000, false);
    names.begin(SESSION);
    for number in 0..10_000 {
        let (inode, note) = (InodeId(100 + number), names.note());
        names.keep_name((DIRECTORY, name(&format!("f{number}"))), Some(inode), Some(note));
        names.keep_attributes(attributes(inode, FileKind::Regular), Lease::of(DIRECTORY, note));
    }
    assert!(names.names.weight() + names.attributes.weight() <= 100_000);
    assert!(names.names.len() > 100 && names.attributes.len() > 50);
}

fn directory() -> Attributes {
    attributes(DIRECTORY, FileKind::Directory)
}

#[test]
fn what_the_answer_to_a_change_from_here_shows_is_kept() {
    let names = names();
    let new = name("new");
    let file = InodeId(9);
    let changed = [(DIRECTORY, &new)];
    names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
    let changing = names.changing(&changed, None);
    assert_eq!(names.find(DIRECTORY, &new), None, "it may be there already");
    changing.end_known((DIRECTORY, new.clone()), Some(file), Some(directory()));
    assert_eq!(names.find(DIRECTORY, &new), Some(Some(file)));
    assert_eq!(shown(&names, DIRECTORY), Some(directory()));
    assert_eq!(knows(&names), (true, true), "the other file has not changed");
    names.changing(&changed, None).end_known((DIRECTORY, new.clone()), None, Some(directory()));
    assert_eq!(names.find(DIRECTORY, &new), None, "others may make it again unheard");
    assert_eq!(shown(&names, DIRECTORY), Some(directory()));
    names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
    for recall in [Recall::Attributes(DIRECTORY), Recall::Lease(DIRECTORY), Recall::Everything] {
        names.changing(&changed, None).end_known((DIRECTORY, new.clone()), None, Some(directory()));
        assert_eq!(shown(&names, DIRECTORY), Some(directory()));
        names.forget(&recall);
        assert_eq!(shown(&names, DIRECTORY), None, "{recall:?}");
        names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
    }
}

#[test]
fn what_is_taken_back_before_the_answer_to_a_change_is_not_kept() {
    let new = name("new");
    let recalls = [
        (Recall::Name(DIRECTORY, new.clone()), (false, true)),
        (Recall::Attributes(DIRECTORY), (true, false)),
        (Recall::Lease(DIRECTORY), (false, false)),
        (Recall::Everything, (false, false)),
    ];
    for (recall, left) in recalls {
        let names = names();
        names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
        let changed = [(DIRECTORY, &new)];
        let changing = names.changing(&changed, None);
        names.forget(&recall);
        changing.end_known((DIRECTORY, new.clone()), Some(FILE), Some(directory()));
        let found = names.find(DIRECTORY, &new).is_some();
        assert_eq!((found, shown(&names, DIRECTORY).is_some()), left, "{recall:?}");
    }
}

#[test]
fn two_changes_of_one_directory_at_a_time_leave_nothing_known_of_it() {
    let names = names();
    let (first, second) = (name("first"), name("second"));
    for new in [&first, &second] {
        names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
    }
    let (one, two) = ([(DIRECTORY, &first)], [(DIRECTORY, &second)]);
    let (one, two) = (names.changing(&one, None), names.changing(&two, None));
    one.end_known((DIRECTORY, first.clone()), Some(FILE), Some(directory()));
    assert_eq!(shown(&names, DIRECTORY), None, "the other is under way");
    two.end_known((DIRECTORY, second.clone()), Some(FILE), Some(directory()));
    assert_eq!(shown(&names, DIRECTORY), None, "its answer may be the older one");
    assert_eq!(names.find(DIRECTORY, &first), Some(Some(FILE)));
    assert_eq!(names.find(DIRECTORY, &second), Some(Some(FILE)));
}

#[test]
fn an_empty_directory_has_no_name_until_somebody_makes_it() {
    let (own, foreign, never) = (name("own"), name("foreign"), name("never"));
    let names = names();
    let new = InodeId(20);
    names.keep_empty(new, names.note());
    names.keep_attributes(attributes(FILE, FileKind::Regular), Lease::of(DIRECTORY, names.note()));
    assert_eq!(names.find(new, &own), Some(None));
    let changed = [(new, &own)];
    let changing = names.changing(&changed, None);
    assert_eq!(names.find(new, &own), None);
    changing.end_known((new, own.clone()), Some(FILE), None);
    assert_eq!(names.find(new, &own), Some(Some(FILE)));
    names.forget(&Recall::Name(new, foreign.clone()));
    assert_eq!(names.find(new, &foreign), None);
    assert_eq!(names.find(new, &never), Some(None));
    assert!(shown(&names, FILE).is_some(), "a name that was nowhere led to nothing");
    names.forget(&Recall::Lease(new));
    assert_eq!(names.find(new, &never), None);
}

#[test]
fn what_the_answer_shows_of_an_inode_that_was_there_replaces_what_was_known_of_it() {
    let names = names();
    let since = names.note();
    let lease = names.changed(FILE, Some(DIRECTORY), since).unwrap();
    assert_eq!(knows(&names), (true, false), "it may have changed");
    assert!(names.stands(FILE, &lease));
    names.forget(&Recall::Attributes(FILE));
    assert!(!names.stands(FILE, &lease));
    assert!(names.changed(FILE, Some(DIRECTORY), since).is_none(), "taken back meanwhile");
    let since = names.note();
    assert!(names.changed(FILE, None, since).is_none(), "nothing covers it");
    let lease = names.changed(FILE, Some(DIRECTORY), names.note()).unwrap();
    names.forget(&Recall::Lease(DIRECTORY));
    assert!(!names.stands(FILE, &lease));
}
