//! What a run consists of, and how one that fails gets shorter.

use proptest::{
    collection::vec,
    prelude::{Just, Strategy, any, prop_oneof},
    strategy::{NewTree, ValueTree},
    test_runner::{Config, TestRunner},
};

/// One operation. What it acts on is chosen from what there is by then, so that any step can be
/// left out before it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) operation: Operation,
    /// Of the choices in it.
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Operation {
    Create,
    CreateUnnamed,
    MakeLink,
    Remove,
    Rename,
    SetAttributes,
    Open,
    Close,
    Commit,
    Lookup,
    Show,
    ReadDirectory,
    SetXattr,
    RemoveXattr,
    ReadXattr,
    Free,
    EndSession,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        18 => Just(Operation::Create),
        2 => Just(Operation::CreateUnnamed),
        6 => Just(Operation::MakeLink),
        14 => Just(Operation::Remove),
        12 => Just(Operation::Rename),
        10 => Just(Operation::SetAttributes),
        8 => Just(Operation::Open),
        9 => Just(Operation::Close),
        8 => Just(Operation::Commit),
        4 => Just(Operation::Lookup),
        4 => Just(Operation::Show),
        4 => Just(Operation::ReadDirectory),
        7 => Just(Operation::SetXattr),
        3 => Just(Operation::RemoveXattr),
        3 => Just(Operation::ReadXattr),
        1 => Just(Operation::Free),
        1 => Just(Operation::EndSession),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    (operation(), any::<u64>()).prop_map(|(operation, seed)| Step { operation, seed })
}

/// So many steps.
#[derive(Debug)]
pub(super) struct Steps(pub(super) usize);

impl Strategy for Steps {
    type Tree = Stretches;
    type Value = Vec<Step>;

    fn new_tree(&self, runner: &mut TestRunner) -> NewTree<Self> {
        let steps = vec(step(), self.0).new_tree(runner)?.current();
        let (end, length) = (steps.len(), steps.len().div_ceil(2));
        Ok(Stretches { steps, end, length, left_out: Vec::new() })
    }
}

/// Leaves out halves first and then ever shorter stretches, each time from the end on, where
/// nothing hangs on them. proptest's own list tries one step after the other, and each try makes a
/// file system.
#[derive(Debug)]
pub(super) struct Stretches {
    steps: Vec<Step>,
    /// What is tried next ends here, and is so long.
    end: usize,
    length: usize,
    /// What was taken from here in the last try.
    left_out: Vec<Step>,
}

impl Stretches {
    fn leave_out(&mut self) -> bool {
        while self.end == 0 && self.length > 0 {
            (self.end, self.length) = (self.steps.len(), self.length / 2);
        }
        if self.length == 0 {
            return false;
        }
        let start = self.end.saturating_sub(self.length);
        self.left_out = self.steps.drain(start..self.end).collect();
        self.end = start;
        true
    }
}

impl ValueTree for Stretches {
    type Value = Vec<Step>;

    fn current(&self) -> Vec<Step> {
        self.steps.clone()
    }

    fn simplify(&mut self) -> bool {
        self.left_out.clear();
        self.leave_out()
    }

    fn complicate(&mut self) -> bool {
        self.steps.splice(self.end..self.end, self.left_out.drain(..));
        self.leave_out()
    }
}

#[test]
fn steps_that_do_not_matter_are_left_out() {
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::default() });
    let mut steps = Steps(300).new_tree(&mut runner).unwrap();
    // Fails with a step of the first half and one of the second, in this order.
    let [first, second] = [&steps.steps[70], &steps.steps[200]].map(|step| step.seed);
    let fails = |steps: Vec<Step>| {
        let is_there = |seed| steps.iter().any(|step| step.seed == seed);
        is_there(first) && is_there(second)
    };
    let mut tries = 0;
    let mut goes_on = steps.simplify();
    while goes_on {
        tries += 1;
        goes_on = if fails(steps.current()) { steps.simplify() } else { steps.complicate() };
    }
    let left: Vec<_> = steps.current().iter().map(|step| step.seed).collect();
    assert_eq!(left, [first, second]);
    assert!(tries < 100, "{tries} tries");
}
