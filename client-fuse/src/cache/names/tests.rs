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
fn that_an_inode_has_no_extended_attributes_counts_as_long_as_what_it_shows() {
    let file = || attributes(FILE, FileKind::Regular);
    let listed = |is_bare| {
        let names = names();
        names.keep_listed(file(), Lease::of(DIRECTORY, names.note()), is_bare);
        names
    };
    assert!(!names().is_bare(FILE), "nobody has said so");
    assert!(!listed(false).is_bare(FILE) && listed(true).is_bare(FILE));
    let again = listed(true);
    keep(&again, again.note());
    assert!(again.is_bare(FILE), "what shows it again does not say otherwise");
    again.keep_listed(file(), Lease::of(DIRECTORY, again.note()), false);
    assert!(!again.is_bare(FILE));
    for recall in [Recall::Attributes(FILE), Recall::Lease(DIRECTORY), Recall::Everything] {
        let names = listed(true);
        names.forget(&recall);
        assert!(!names.is_bare(FILE), "{recall:?}");
        keep(&names, names.note());
        assert!(shown(&names, FILE).is_some() && !names.is_bare(FILE), "{recall:?}, and again");
    }
    let changed = listed(true);
    let note = changed.note();
    let changing = changed.changing(&[], Some(FILE));
    keep(&changed, changed.note());
    assert!(!changed.is_bare(FILE), "it may have one at any moment");
    drop(changing);
    changed.keep_listed(file(), Lease::of(DIRECTORY, note), true);
    assert!(!changed.is_bare(FILE), "that was asked for before the change");
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
fn of_two_changes_of_one_directory_at_a_time_the_newer_answer_counts() {
    let (first, second) = (name("first"), name("second"));
    for counts in [[2, 3], [3, 2]] {
        let names = names();
        let at = counts.map(|count| Attributes { change_count: ChangeCount(count), ..directory() });
        for new in [&first, &second] {
            names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
        }
        let (one, two) = ([(DIRECTORY, &first)], [(DIRECTORY, &second)]);
        let (one, two) = (names.changing(&one, None), names.changing(&two, None));
        one.end_known((DIRECTORY, first.clone()), Some(FILE), Some(at[0].clone()));
        assert_eq!(shown(&names, DIRECTORY), None, "the other is under way");
        two.end_known((DIRECTORY, second.clone()), Some(FILE), Some(at[1].clone()));
        let newest = shown(&names, DIRECTORY).map(|shown| shown.change_count);
        assert_eq!(newest, Some(ChangeCount(3)));
        assert_eq!(names.find(DIRECTORY, &first), Some(Some(FILE)));
        assert_eq!(names.find(DIRECTORY, &second), Some(Some(FILE)));
    }
}

#[test]
fn an_empty_directory_has_no_name_until_somebody_makes_it() {
    let (own, foreign, never) = (name("own"), name("foreign"), name("never"));
    let names = names();
    let new = InodeId(20);
    names.keep_whole(new, [], names.note());
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

#[test]
fn of_a_directory_that_is_known_as_a_whole_other_names_are_absent_until_they_change() {
    let names = names();
    let there = [name("a"), name("b")];
    names.keep_whole(DIRECTORY, &there, names.note());
    assert_eq!(names.find(DIRECTORY, &name("c")), Some(None));
    assert_eq!(names.find(DIRECTORY, &name("a")), None, "it is there, and leads somewhere");
    names.forget(&Recall::Name(DIRECTORY, name("c")));
    assert_eq!(names.find(DIRECTORY, &name("c")), None);
    assert_eq!(names.find(DIRECTORY, &name("d")), Some(None));
    change(&names, "d");
    assert_eq!(names.find(DIRECTORY, &name("d")), None);
    assert_eq!(names.find(DIRECTORY, &name("e")), Some(None));
    names.forget(&Recall::Lease(DIRECTORY));
    assert_eq!(names.find(DIRECTORY, &name("e")), None);
}

mod shown_directories {
    //! What a directory shows, while this mount and another one change it, against a server that is
    //! a number.

    use std::{
        sync::atomic::{AtomicBool, Ordering::SeqCst},
        thread,
    };

    use proptest::prelude::*;

    use super::*;
    use crate::cache::names::stamps::Note;

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Another host makes a name: it is answered when that was heard of.
        OtherChanges,
        /// The server answers who listens.
        Poll,
        /// The answer comes.
        Hear,
        OwnBegins,
        OwnIsMade,
        OwnEnds,
        Ask,
        IsAnswered,
        AnswerComes,
        /// The cache has no room for it.
        Evict,
        /// Another host changes its mode: what is known is taken back before.
        TakenBack,
        /// Everything is taken back.
        ForgetAll,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        use Step::*;
        let step = prop::sample::select(vec![
            OtherChanges,
            OtherChanges,
            Poll,
            Hear,
            OwnBegins,
            OwnIsMade,
            OwnEnds,
            Ask,
            IsAnswered,
            AnswerComes,
            Evict,
            TakenBack,
            ForgetAll,
        ]);
        prop::collection::vec(step, 1..80)
    }

    fn at(version: u64) -> Attributes {
        let change_count = ChangeCount(version);
        Attributes { change_count, ..attributes(DIRECTORY, FileKind::Directory) }
    }

    /// Something that was asked for at a moment, and what the server said.
    type Question = (Note, Option<u64>);

    fn check(steps: &[Step]) {
        let (names, new) = (Names::new(1 << 20, false), name("new"));
        let changed = [(DIRECTORY, &new)];
        names.begin(SESSION);
        // What the server has; what everybody must see who asks now; what is told.
        let (mut version, mut settled, mut untold) = (1, 1, false);
        let mut listening: Question = (names.note(), None);
        let (mut own, mut asked) = (None, None::<Question>);
        let mut own_made = None;
        for &step in steps {
            match step {
                Step::OtherChanges => (version, untold) = (version + 1, true),
                Step::Poll if untold && listening.1.is_none() => {
                    (listening.1, untold) = (Some(version), false);
                }
                Step::Hear => {
                    if let (asked, Some(told)) = listening {
                        names.show(at(told), asked);
                        settled = settled.max(told);
                        listening = (names.note(), None);
                    }
                }
                Step::OwnBegins if own.is_none() => {
                    names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
                    own = Some(names.changing(&changed, None));
                }
                Step::OwnIsMade if own.is_some() && own_made.is_none() => {
                    version += 1;
                    own_made = Some(version);
                }
                Step::OwnEnds if own_made.is_some() => {
                    let (own, made) = (own.take().unwrap(), own_made.take().unwrap());
                    own.end_known((DIRECTORY, new.clone()), Some(FILE), Some(at(made)));
                    settled = settled.max(made);
                }
                Step::Ask => asked = Some((names.note(), None)),
                Step::IsAnswered => {
                    if let Some((_, answer @ None)) = &mut asked {
                        *answer = Some(version);
                    }
                }
                Step::AnswerComes => {
                    if let Some((note, Some(answer))) = asked.take() {
                        names.keep_attributes(at(answer), Lease::of(DIRECTORY, note));
                    }
                }
                Step::Evict => drop(names.attributes.remove(&DIRECTORY)),
                Step::TakenBack => {
                    names.forget(&Recall::Attributes(DIRECTORY));
                    version += 1;
                    settled = version;
                    // It is not shown to who does not hold it any more, nor what was under way.
                    (listening.1, untold) = (None, false);
                }
                Step::ForgetAll => names.forget_all(),
                _ => {}
            }
            if let Some(shown) = shown(&names, DIRECTORY) {
                let shown = shown.change_count.0;
                assert!(own.is_none(), "nothing is known while it changes");
                assert!((settled..=version).contains(&shown), "{shown} after {settled}");
            }
        }
    }

    proptest! {
        #[test]
        fn nobody_is_shown_less_than_what_is_settled(steps in steps()) {
            check(&steps);
        }
    }

    /// A thread changes the directory, another takes back what is known of it for a change of the
    /// server: what was known before that is never shown again.
    #[test]
    fn what_is_taken_back_while_a_change_ends_stays_so() {
        let names = Names::new(1 << 20, false);
        names.begin(SESSION);
        // The server: one thing at a time.
        let (version, is_over) = (Mutex::new(1_u64), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let new = name("new");
                let changed = [(DIRECTORY, &new)];
                while !is_over.load(SeqCst) {
                    names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
                    let (asked, told) = {
                        let version = version.lock().unwrap();
                        (names.note(), *version)
                    };
                    let changing = names.changing(&changed, None);
                    names.show(at(told), asked);
                    let made = {
                        let mut version = version.lock().unwrap();
                        *version += 1;
                        *version
                    };
                    changing.end_known((DIRECTORY, new.clone()), Some(FILE), Some(at(made)));
                }
            });
            for _ in 0..20_000 {
                let changed = {
                    let mut version = version.lock().unwrap();
                    names.forget(&Recall::Attributes(DIRECTORY));
                    *version += 1;
                    *version
                };
                for _ in 0..3 {
                    if let Some(shown) = shown(&names, DIRECTORY) {
                        let shown = shown.change_count.0;
                        if shown < changed {
                            is_over.store(true, SeqCst);
                            panic!("{shown} after {changed}");
                        }
                    }
                }
            }
            is_over.store(true, SeqCst);
        });
    }

    #[test]
    fn what_is_shown_meanwhile_counts_after_a_change_from_here() {
        let names = names();
        names.keep_attributes(at(1), Lease::of(DIRECTORY, names.note()));
        let (new, asked) = (name("new"), names.note());
        let changed = [(DIRECTORY, &new)];
        for (own, other, newest) in [(2, 3, 3), (5, 4, 5)] {
            names.keep_name((DIRECTORY, new.clone()), None, Some(names.note()));
            let changing = names.changing(&changed, None);
            let begun = names.note();
            assert!(names.is_changing(DIRECTORY));
            names.show(at(other), asked);
            assert_eq!(shown(&names, DIRECTORY), None);
            changing.end_known((DIRECTORY, new.clone()), Some(FILE), Some(at(own)));
            assert_eq!(shown(&names, DIRECTORY), Some(at(newest)));
            assert_eq!(names.shown_since(DIRECTORY, begun), Some(at(newest)));
        }
        let late = names.note();
        assert_eq!(names.shown_since(DIRECTORY, late), None);
        names.forget(&Recall::Attributes(DIRECTORY));
        assert_eq!(shown(&names, DIRECTORY), None);
    }
}
