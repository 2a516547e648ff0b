//! Idle processors are kept from halting while the daemon is busy, where halting costs much.
//!
//! A processor of a virtual machine that has halted is woken through the hypervisor, which takes
//! some 20 us, and each request of a program that waits for its answer wakes several threads one
//! after the other. Linux therefore has guests wait up to 200 us before they halt, where its
//! governor `haltpoll` is in charge, and whoever runs the machine may have set that to nothing.
//!
//! The kernel takes requests from programs about how long it may take until a processor is awake
//! (PM QoS, `/dev/cpu_dma_latency`), each for as long as the file is open. A thread looks four
//! times a second how often the threads of this process have gone to sleep, and holds such a
//! request while that is often: each of these sleeps ends with a processor that may have to be
//! woken.
//!
//! ```text
//! switches a second:   ..... >= 1,000 ─▶ file open ...... < 1,000 for a second ─▶ file closed
//! ```

use std::{
    fs::{self, File},
    io::{self, Write as _},
    num::NonZero,
    thread,
    time::Duration,
};

use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

/// The table `[processors]` of every daemon's settings.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq, Default)]
#[serde(deny_unknown_fields, default)]
pub struct ProcessorSettings {
    /// Whether idle processors of this machine wait for work, and do not sleep, while the daemon is
    /// busy. Default `auto`. Costs what they take from others meanwhile: power, and in a virtual
    /// machine time that its host could give to another one.
    pub keep_awake: KeepAwake,
}

/// Where idle processors are kept awake.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub enum KeepAwake {
    /// In virtual machines of up to 16 processors, which were told to halt at once.
    #[default]
    Auto,
    /// On any machine: at best in their shallowest sleep where they are not a virtual machine's.
    Always,
    /// Nowhere.
    Never,
}

/// Begins to look how busy this process is, for as long as it runs, where the settings ask for it
/// and the machine has something to gain. Call it once. Says what it does in the log.
pub(crate) fn watch(settings: &ProcessorSettings) {
    let (keep, machine) = (settings.keep_awake, Machine::read());
    let halts = machine.halts_at_once();
    let Some(latency) = keep.latency(machine) else {
        if halts {
            tracing::info!("{HALTS}, so that each answer takes longer than it has to: {ADVICE}");
        }
        return;
    };
    // Whether it may be had is known once it is.
    let watched = Request::hold(latency).and_then(|request| {
        drop(request);
        let sleeps = sleeps()?;
        let look = move || look(keep, sleeps);
        thread::Builder::new().name("processors".to_owned()).spawn(look)
    });
    match watched {
        Ok(_) if halts => tracing::info!("{HALTS}: they wait while this daemon is busy"),
        Ok(_) => tracing::info!("idle processors are kept awake while this daemon is busy"),
        Err(error) if keep == KeepAwake::Always => {
            tracing::warn!(%error, "idle processors cannot be kept awake ({REQUESTS}): {ADVICE}");
        }
        Err(error) => {
            tracing::info!(%error, "{HALTS}, and cannot be kept awake ({REQUESTS}): {ADVICE}");
        }
    }
}

/// What idle processors of a machine do, as far as its settings say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Machine {
    /// A guest whose so many processors halt as soon as they are idle.
    HaltsAtOnce(usize),
    /// A guest whose processors wait for a moment first.
    Waits,
    /// One of which nothing is known.
    Other,
}

impl Machine {
    fn read() -> Self {
        match (fs::read_to_string(GOVERNOR), fs::read_to_string(WAITS)) {
            (Ok(governor), Ok(waits)) => {
                let processors = thread::available_parallelism().map_or(1, NonZero::get);
                Self::of(&governor, &waits, processors)
            }
            _ => Self::Other,
        }
    }

    fn of(governor: &str, waits: &str, processors: usize) -> Self {
        match (governor.trim(), waits.trim()) {
            ("haltpoll", "0") => Self::HaltsAtOnce(processors),
            ("haltpoll", _) => Self::Waits,
            _ => Self::Other,
        }
    }

    fn halts_at_once(self) -> bool {
        matches!(self, Self::HaltsAtOnce(_))
    }
}

impl KeepAwake {
    /// How long it may take until an idle processor is awake, in microseconds, if anything is asked
    /// for.
    fn latency(self, machine: Machine) -> Option<i32> {
        match (self, machine) {
            (Self::Auto, Machine::HaltsAtOnce(processors)) => {
                (processors <= AUTO_PROCESSORS_MAX).then_some(POLL)
            }
            (Self::Never, _) | (Self::Auto, Machine::Waits | Machine::Other) => None,
            // The governor has no other way than to wait or to halt.
            (Self::Always, Machine::HaltsAtOnce(_) | Machine::Waits) => Some(POLL),
            (Self::Always, Machine::Other) => Some(SHALLOW),
        }
    }
}

/// Asks the kernel for as long as it is held.
#[derive(Debug)]
struct Request(#[expect(dead_code, reason = "open is all that it has to be")] File);

impl Request {
    fn hold(latency: i32) -> io::Result<Self> {
        let mut file = File::options().write(true).open(REQUESTS)?;
        file.write_all(&latency.to_ne_bytes())?;
        Ok(Self(file))
    }
}

/// How often threads of this process have gone to sleep.
fn sleeps() -> io::Result<i64> {
    Ok(getrusage(UsageWho::RUSAGE_SELF)?.voluntary_context_switches())
}

/// Holds a request while the process is busy. What is asked for is decided anew each time: the
/// operator may have changed what the machine does.
fn look(keep: KeepAwake, mut before: i64) {
    let mut busy = Busy::default();
    let mut request = None;
    let mut has_failed = false;
    loop {
        thread::sleep(LOOK);
        // It was had a moment ago, and its arguments are the same.
        let now = sleeps().unwrap_or(before);
        let is_busy = busy.observe(now - before);
        before = now;
        if !is_busy {
            request = None;
        } else if request.is_none()
            && let Some(latency) = keep.latency(Machine::read())
        {
            request = Request::hold(latency).map_or_else(
                |error| {
                    if !has_failed {
                        tracing::warn!(%error, "idle processors cannot be kept awake any more");
                    }
                    has_failed = true;
                    None
                },
                Some,
            );
        }
    }
}

/// Whether the process counts as busy.
#[derive(Debug, Default)]
struct Busy {
    /// Looks that it still does, however little goes on.
    left: u32,
}

impl Busy {
    /// So many sleeps were begun since the last look.
    fn observe(&mut self, sleeps: i64) -> bool {
        self.left = match sleeps >= BUSY_SLEEPS {
            true => QUIET_LOOKS,
            false => self.left.saturating_sub(1),
        };
        self.left > 0
    }
}

/// Four times a second: a burst of a second has most of it, and an idle daemon hardly wakes.
const LOOK: Duration = Duration::from_millis(250);

/// 1,000 a second. An idle daemon has some tens; a program that makes files one after the other
/// gives each of the daemons that it waits for several thousand, one that reads a checkpoint in
/// transfers of 1 MiB some hundred.
const BUSY_SLEEPS: i64 = 250;

/// A second: a program that computes for a moment between two bursts finds them awake.
const QUIET_LOOKS: u32 = 4;

/// Each idle processor of such a guest takes the time of one of its host, whoever made it busy:
/// with more of them than this, as on hosts of several GPUs, an operator decides whether that is
/// right.
const AUTO_PROCESSORS_MAX: usize = 16;

/// In microseconds: idle processors look for work all the time.
const POLL: i32 = 0;

/// In microseconds: the shallowest sleep of processors that are no virtual machine's takes 1 or 2
/// to wake from (`latency` of state 1 in `/sys/devices/system/cpu/cpu0/cpuidle`), the next 10 and
/// more.
const SHALLOW: i32 = 2;

const REQUESTS: &str = "/dev/cpu_dma_latency";

const GOVERNOR: &str = "/sys/devices/system/cpu/cpuidle/current_governor";

/// For how long, in nanoseconds.
const WAITS: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

const HALTS: &str =
    "idle processors of this virtual machine halt at once (guest_halt_poll_ns is 0)";

const ADVICE: &str = "see \"Virtual machines\" in docs/operations.md";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_guest_that_was_told_not_to_wait_is_kept_awake_unasked() {
        let (few, many) = (AUTO_PROCESSORS_MAX, AUTO_PROCESSORS_MAX + 1);
        for (governor, waits, processors, auto, always) in [
            ("haltpoll\n", "0\n", few, Some(POLL), Some(POLL)),
            ("haltpoll\n", "0\n", many, None, Some(POLL)),
            ("haltpoll\n", "200000\n", few, None, Some(POLL)),
            ("menu\n", "0\n", few, None, Some(SHALLOW)),
            ("", "", few, None, Some(SHALLOW)),
        ] {
            let machine = Machine::of(governor, waits, processors);
            assert_eq!(KeepAwake::Auto.latency(machine), auto, "{machine:?}");
            assert_eq!(KeepAwake::Always.latency(machine), always, "{machine:?}");
            assert_eq!(KeepAwake::Never.latency(machine), None, "{machine:?}");
        }
    }

    #[test]
    fn a_daemon_is_busy_for_a_second_after_it_was() {
        let mut busy = Busy::default();
        assert!(!busy.observe(BUSY_SLEEPS - 1));
        assert!(busy.observe(BUSY_SLEEPS));
        let looks: Vec<_> = (0..5).map(|_| busy.observe(3)).collect();
        assert_eq!(looks, [true, true, true, false, false]);
        assert!(busy.observe(10 * BUSY_SLEEPS));
    }

    #[test]
    fn who_sleeps_is_counted() {
        let before = sleeps().expect("Linux tells it");
        let slept: Vec<_> = (0..20).map(|_| thread::spawn(|| thread::sleep(LOOK / 250))).collect();
        for thread in slept {
            thread.join().expect("a thread that sleeps does not panic");
        }
        assert!(sleeps().expect("Linux tells it") >= before + 20);
    }
}
