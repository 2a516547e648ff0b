//! Random system calls on the mount and on a `tmpfs`: what a program sees is the same on both.
//!
//! The kernel's own file system in memory is the model: every answer and every errno is compared,
//! then all that is there in the end. A case that fails is made as short as it will be.
//! Seeds are others each time: `MILLRACE_TEST_SEED` chooses one. `MILLRACE_TEST_LENGTH` makes the
//! run so many times as long.

#[path = "twin/operation.rs"]
mod operation;
#[path = "twin/side.rs"]
mod side;

use std::{
    cell::Cell,
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Result, ensure};
use millrace_tests::cluster::{Cluster, Wish};
use proptest::{
    collection::vec,
    prelude::Strategy,
    test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner},
};
use rustix::mount::{MountFlags, mount};

use self::{operation::Step, side::Side};

const CASES: u32 = 30;
const STEPS: usize = 200;
/// Shrinking runs cases again; this many are enough to read what is left.
const SHRINKS_MAX: u32 = 400;

#[test]
fn programs_see_on_a_mount_what_they_see_on_a_local_file_system() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    compare(&cluster, &[cluster.mount()], operation::steps())
}

#[test]
fn programs_on_two_mounts_see_what_they_see_on_one_local_file_system() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let second = cluster.mount_named("second");
    cluster.mount_also(&second)?;
    compare(&cluster, &[cluster.mount(), second], operation::steps_on_paths(2))
}

#[expect(clippy::print_stdout, reason = "the seed, for whoever runs a failure again")]
fn compare(
    cluster: &Cluster,
    mounts: &[PathBuf],
    steps: impl Strategy<Value = Step>,
) -> Result<()> {
    let local = cluster.scratch()?.join("local");
    fs::create_dir_all(&local)?;
    // The cluster unmounts what lies in its directory, also when this fails.
    mount("tmpfs", &local, "tmpfs", MountFlags::empty(), Some(c"size=1g,mode=755"))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = number("MILLRACE_TEST_SEED", u64::from(now.subsec_nanos()))?;
    let length = u32::try_from(number("MILLRACE_TEST_LENGTH", 1)?)?;
    println!("MILLRACE_TEST_SEED={seed}, {} cases of up to {STEPS} steps", CASES * length);
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: CASES * length,
        max_shrink_iters: SHRINKS_MAX,
        failure_persistence: None,
        ..Config::default()
    };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let (number, tried, succeeded) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let run = |steps: Vec<Step>| {
        number.set(number.get() + 1);
        // A link to `.` makes `..` lead out of the root; what is above it holds nothing else then.
        let root = |top: &Path| top.join(format!("case-{}/root", number.get()));
        let roots = mounts.iter().map(|mount| root(mount)).collect();
        case(&root(&local), roots, &steps)
            .map(|count| {
                tried.set(tried.get() + steps.len());
                succeeded.set(succeeded.get() + count);
            })
            .map_err(|error| TestCaseError::fail(format!("{error:#}")))
    };
    TestRunner::new_with_rng(config, random)
        .run(&vec(steps, 1..STEPS), run)
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    // Errors are compared too, but a run of nothing else would compare little.
    let (tried, succeeded) = (tried.get(), succeeded.get());
    println!("{succeeded} of {tried} steps succeeded");
    ensure!(succeeded * 4 >= tried, "{succeeded} of {tried} steps succeeded");
    Ok(())
}

fn number(name: &str, default: u64) -> Result<u64> {
    env::var(name)
        .map_or(Ok(default), |text| text.parse().with_context(|| format!("{name}={text}")))
}

/// Runs the same steps on both sides; both begin with an empty directory that everybody may change.
/// Tells how many succeeded.
fn case(local: &Path, roots: Vec<PathBuf>, steps: &[Step]) -> Result<usize> {
    for root in [local, &roots[0]] {
        fs::create_dir_all(root)?;
        fs::set_permissions(root, Permissions::from_mode(0o777))?;
    }
    let paths = roots.len();
    let (mut model, mut subject) = (Side::new(vec![local.to_owned()]), Side::new(roots));
    let mut succeeded = 0;
    for (at, step) in operation::first_steps().iter().chain(steps).enumerate() {
        let (expected, seen) = (model.perform(step), subject.perform(step));
        succeeded += usize::from(expected.is_ok());
        ensure!(
            expected == seen,
            "step {at}, {step:?}: a local file system gives {expected:?}, the mount {seen:?}"
        );
    }
    let expected = vec![model.everything()?.remove(0); paths];
    let seen = subject.everything()?;
    ensure!(
        expected == seen,
        "in the end a local file system has {expected:#?}, the mount {seen:#?}"
    );
    fs::remove_dir_all(local)?;
    Ok(succeeded)
}
