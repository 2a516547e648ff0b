//! Processes that share files of the mount as memory, as locks and as queues.

use std::{env, fs};

use anyhow::{Context, Result};
use millrace_tests::{
    cluster::{Cluster, Wish},
    program::run,
};

/// Four processes count in one array that lies in a file of the mount, under a lock of the mount,
/// and hand their results back through a queue; then each writes its part of one file.
const SHARE: &str = r#"
import fcntl, mmap, multiprocessing, os, sys, tempfile
from multiprocessing import heap

folder = sys.argv[1]
tempfile.tempdir = folder
heap.Arena._dir_candidates = []
ROUNDS, WORKERS, PART = 300, 4, 1 << 18

def count(array, number, done):
    for _ in range(ROUNDS):
        with array.get_lock():
            array[0] += 1
        with open(os.path.join(folder, "counter"), "r+") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            value = int(file.read())
            file.seek(0)
            file.write(str(value + 1))
            file.flush()
            fcntl.lockf(file, fcntl.LOCK_UN)
    with open(os.path.join(folder, "parts"), "r+b") as file:
        with mmap.mmap(file.fileno(), WORKERS * PART) as memory:
            memory[number * PART:(number + 1) * PART] = bytes([number + 1]) * PART
            memory.flush()
    done.put(number)

if __name__ == "__main__":
    with open(os.path.join(folder, "counter"), "w") as file:
        file.write("0")
    with open(os.path.join(folder, "parts"), "wb") as file:
        file.truncate(WORKERS * PART)
    context = multiprocessing.get_context("fork")
    array, done = context.Array("q", 100000), context.Queue()
    # Named while it is open, its file had a name in the folder only until it was mapped.
    where = array.get_obj()._wrapper._state[0][0].fd
    assert os.readlink(f"/proc/self/fd/{where}").startswith(folder), "the array lies elsewhere"
    workers = [context.Process(target=count, args=(array, n, done)) for n in range(WORKERS)]
    for worker in workers:
        worker.start()
    assert sorted(done.get() for _ in workers) == list(range(WORKERS))
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert array[0] == ROUNDS * WORKERS, array[0]
    with open(os.path.join(folder, "counter")) as file:
        assert int(file.read()) == ROUNDS * WORKERS
    with open(os.path.join(folder, "parts"), "rb") as file:
        for number in range(WORKERS):
            assert file.read(PART) == bytes([number + 1]) * PART
    print("shared")
"#;

#[test]
fn processes_of_python_share_an_array_locks_and_a_mapped_file() -> Result<()> {
    let cluster = Cluster::start(Wish::default())?;
    let script = cluster.scratch()?.join("share.py");
    fs::write(&script, SHARE)?;
    let python = env::var("MILLRACE_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let said = run(&python, &[&script, &cluster.mount()])?.ok().context("the processes")?;
    assert_eq!(said, "shared\n");
    Ok(())
}
