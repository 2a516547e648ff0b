"""Long runs: a restart with 100,000 files, two test suites of others, crashes under load.

Writes what it saw into a document between two marks, so that the figures there come from a run.
The sequence of crashes follows from the seed.
"""

import argparse
import concurrent.futures
import datetime
import itertools
import os
import pathlib
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

from cluster import Cluster
from pjdfstest import pjdfstest
from train import SyncedWriter

BEGIN = "<!-- begin of the last long run -->"
END = "<!-- end of the last long run -->"
HERE = pathlib.Path(__file__).parent
RESTART_SECONDS_MAX = 2.0
REQUEST_SECONDS_MAX = 1.0
SERVERS = ("metadata", "target-0", "target-1")


# What each writer leaves there: 240 MB. All that four of them write in ten minutes, with its copies
# in the log and two snapshots, is more than a small disk has.
FILES_KEPT = 5_000


def crashes(cluster, mount, minutes, seed):
    """Kills a server every few seconds under writers that sync; everything synced must be there."""
    generator = random.Random(seed)
    folders = [mount / f"writer-{index}" for index in range(4)]
    writers = []
    for folder in folders:
        folder.mkdir()
        writers.append(SyncedWriter(folder, kept=FILES_KEPT))
        writers[-1].start()
    kills = 0
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        time.sleep(generator.uniform(0.2, 3.0))
        for name in generator.sample(SERVERS, generator.choice([1, 1, 1, 2, 3])):
            cluster.kill(name)
            kills += 1
        cluster.up()
    errors = [error for writer in writers for error in writer.finish()]
    assert not errors, errors
    for writer, folder in zip(writers, folders):
        writer.verify(folder)
    files = sum(len(writer.synced) for writer in writers)
    removed = sum(len(writer.removed) for writer in writers)
    return f"{kills} kills of servers in {minutes:g} min under 4 writers: {files} files synced, " \
        f"{removed} of them removed later, all whole, no error seen by a writer"


# Operations of one process: the program loses mappings as it goes on, and after some 400,000 small
# operations it has the 65,530 that Linux gives it (`vm.max_map_count`).
FSX_PART = 250_000


def fsx(cluster, mount, tools, operations, seed, settings="fsx.toml", files=4, killing=True):
    """Exercisers side by side, each with a file and a seed of its own, while servers are killed.

    Each compares every read, mapped ones too, with what it has written.
    """
    folder = mount / settings.removesuffix(".toml")
    folder.mkdir()
    cluster.cli("stripe", "set", "--chunk-size", "64KiB", folder)
    each, kills, generator = operations // files, 0, random.Random(seed)
    for done in range(0, each, FSX_PART):
        part = min(FSX_PART, each - done)
        command = [tools / "fsx", "-f", HERE / "suites" / settings, "-N", part]
        kills += fsx_part(cluster, folder, command, seed + done, files, killing and generator)
    return f"fsx: {each} operations on each of {files} files (mapped reads and " \
        "writes, truncate, fallocate, holes and copy_file_range too), " \
        f"{kills or 'no'} kills of servers: no difference"


def fsx_part(cluster, folder, command, seed, files, killing):
    """Runs one process for each file to its end, and says how many servers it has killed."""
    logs = tempfile.TemporaryDirectory(prefix="fsx-", dir=cluster.directory.parent)
    running, kills = [], 0
    try:
        for index in range(files):
            own = ["-S", seed + index, "-P", logs.name, folder / str(index)]
            with open(pathlib.Path(logs.name) / f"{index}.log", "w", encoding="utf-8") as log:
                running.append(subprocess.Popen([str(word) for word in command + own], stdout=log,
                                                stderr=log, stdin=subprocess.DEVNULL))
        while any(process.poll() is None for process in running):
            time.sleep(killing.uniform(0.5, 4.0) if killing else 1.0)
            if killing:
                cluster.kill(killing.choice(SERVERS))
                cluster.up()
                kills += 1
        for index, process in enumerate(running):
            said = (pathlib.Path(logs.name) / f"{index}.log").read_text(errors="replace")
            assert process.returncode == 0, f"seed {seed + index}: {said[-4000:]}"
    finally:
        for process in running:
            process.kill()
            process.wait()
        logs.cleanup()
    return kills


def with_lists(cluster, directory):
    """Another mount, which checks access control lists."""
    mount = directory / "a"
    cluster.cli("dev", "up", "--mount", mount, "--mount-options", "acl")
    return mount


def fill(root, count):
    """Makes `count` files in 100 directories; returns how many in a second."""

    def fill_one(index):
        folder = root / f"dir-{index:03}"
        folder.mkdir()
        for number in range(count // 100):
            os.close(os.open(folder / f"file-{number:05}", os.O_CREAT | os.O_WRONLY))

    root.mkdir()
    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(fill_one, range(100)))
    return count / (time.monotonic() - begun)


def restart(cluster, probe):
    """Kills and restarts the metadata server.

    Returns the seconds until it serves, and from then until a request that waits is answered.
    """
    cluster.kill("metadata")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: (probe.stat(), time.monotonic()))
        begun = time.monotonic()
        cluster.up()
        up = time.monotonic()
        answered = asked.result(60)[1]
    return up - begun, max(0.0, answered - up)


def many_files(cluster, mount, count):
    """Makes `count` files in 100 directories, then kills and restarts the metadata server.

    Again, with as many new files, when that takes too long: a busy machine may hold a restart up.
    One of three is within the limits.
    """
    seen = []
    for attempt in range(3):
        root = mount / f"many-{attempt}"
        rate = fill(root, count)
        seen.append(restart(cluster, root / "dir-050/file-00005"))
        found = sum(len(files) for _, _, files in os.walk(root))
        assert found == count // 100 * 100, found
        serving, late = seen[-1]
        if serving < RESTART_SECONDS_MAX and late < REQUEST_SECONDS_MAX:
            break
    else:
        raise AssertionError(f"seconds until it serves, and answers then: {seen}")
    which = f" (the best of {len(seen)} times)" if len(seen) > 1 else ""
    return f"{count} files created at {rate:.0f} per second; after kill -9 the metadata server " \
        f"serves again in {serving:.2f} s{which}, a waiting request is answered {late:.2f} s later"


def commit():
    """The commit that was tested, with a word when the tree differed from it."""
    said = [
        subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout.strip()
        for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain"])
    ]
    return said[0] + (" with uncommitted changes" if said[1] else "")


def write_report(path, lines, seed):
    """Replaces what stands between the marks, or appends it."""
    text = path.read_text()
    today = datetime.date.today().isoformat()
    wrapped = (textwrap.wrap(f"- {line}", 100, subsequent_indent="  ") for line in lines)
    body = "\n".join(itertools.chain.from_iterable(wrapped))
    kernel, _, _ = platform.release().partition("-")
    machine = f"{os.cpu_count()} CPUs, kernel {kernel}"
    what = f"On {today}, commit {commit()}, seed {seed}, {machine}:"
    section = f"{BEGIN}\n\n{what}\n\n{body}\n\n{END}"
    if BEGIN in text and END in text:
        before, rest = text.split(BEGIN, 1)
        text = before + section + rest.split(END, 1)[1]
    else:
        text = text.rstrip("\n") + "\n\n## The last long run\n\n" + section + "\n"
    path.write_text(text)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--binaries", required=True)
    arguments.add_argument("--directory", help="where to work [default: a temporary directory]")
    arguments.add_argument("--minutes", type=float, default=10.0)
    arguments.add_argument("--files", type=int, default=100_000)
    arguments.add_argument("--tools", type=pathlib.Path, required=True,
                           help="where the programs fsx and pjdfstest lie")
    arguments.add_argument("--operations", type=int, default=100_000,
                           help="of fsx under kills, in all")
    arguments.add_argument("--small-operations", type=int, default=1_000_000,
                           help="of fsx without kills, on one file")
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    arguments.add_argument("--report", help="document to write the figures into")
    arguments.add_argument("--figures", type=pathlib.Path,
                           help="file with lines of other long runs, for the report")
    options = arguments.parse_args()
    directory = pathlib.Path(tempfile.mkdtemp(prefix="endure-", dir=options.directory))
    # Other users, whom pjdfstest acts for, must be able to reach the mount.
    for above in (directory, directory.parent):
        above.chmod(above.stat().st_mode | 0o011)
    mount = directory / "m"
    cluster = Cluster(options.binaries, directory / "state", {})
    print(f"seed {options.seed}", flush=True)
    others = options.figures and options.figures.exists()
    lines = options.figures.read_text().splitlines() if others else []
    before = len(lines)
    try:
        cluster.up(targets=2, mount=mount)
        for run in (
            lambda: many_files(cluster, mount, options.files),
            lambda: pjdfstest(mount, options.tools),
            lambda: "with -o acl, "
            + pjdfstest(with_lists(cluster, directory), options.tools, name="l"),
            lambda: fsx(cluster, mount, options.tools, options.small_operations, options.seed,
                        "fsx-small.toml", files=1, killing=False),
            lambda: fsx(cluster, mount, options.tools, options.operations, options.seed),
            lambda: crashes(cluster, mount, options.minutes, options.seed),
        ):
            lines.append(run())
            print(lines[-1], flush=True)
    except BaseException:
        print(cluster.log_tails(), flush=True)
        raise
    finally:
        cluster.take_down()
        shutil.rmtree(directory, ignore_errors=True)
    if options.report:
        write_report(pathlib.Path(options.report), lines, options.seed)
    print(f"{len(lines) - before} passed, 0 failed")


if __name__ == "__main__":
    sys.exit(main())
