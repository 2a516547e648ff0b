//! The offline check of a target: sound disks are sound, however they were left, and each of a
//! list of planted damages is found and named, and nothing wrong is served afterwards.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod verify {
    mod command;
    mod damage;
    mod dump;
    mod snapshot;
    mod sound;
    mod target;
}
