//! Counts in tests what an operation looks at: that is bounded, whatever the machine.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static LOOKS: Cell<usize> = const { Cell::new(0) };
}

/// One more is looked at: a lock, a wait, an owner, or where such may be.
pub(super) fn look() {
    #[cfg(test)]
    LOOKS.with(|looks| looks.set(looks.get() + 1));
}

/// What comes of the operation, and how much it looked at.
#[cfg(test)]
pub(super) fn of<T>(operation: impl FnOnce() -> T) -> (T, usize) {
    let before = LOOKS.with(Cell::get);
    let outcome = operation();
    (outcome, LOOKS.with(Cell::get) - before)
}
