"""Two test suites of others on the examples of common/fuse, over both channels.

One has its files in memory, the other serves a directory and has the kernel read and write it.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from endure import HERE
from pjdfstest import pjdfstest

# As the example names them, and the log.
CHANNELS = {"dev": "Device", "uring": "Uring"}
EXAMPLES = ("memory", "passthrough")
PATIENCE_SECONDS = 60.0


class Mounted:
    """The example, mounted for as long as the block lasts."""

    def __init__(self, command, mount, log):
        self.mount, self.log = mount, log
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out,
                                            stdin=subprocess.DEVNULL)

    def __enter__(self):
        end = time.monotonic() + PATIENCE_SECONDS
        while not os.path.ismount(self.mount):
            assert self.process.poll() is None and time.monotonic() < end, self.said()
            time.sleep(0.05)
        return self

    def __exit__(self, kind, error, trace):
        command = ["umount", *(["-l"] if kind else []), self.mount]
        end = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run(command, check=False, timeout=PATIENCE_SECONDS).returncode != 0:
            # Somebody else looks into it for a moment, which makes it busy; or it is gone.
            if self.process.poll() is not None or time.monotonic() > end:
                break
            time.sleep(0.05)
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()

    def said(self):
        return pathlib.Path(self.log).read_text(errors="replace")


def fsx(folder, tools, operations, seed, logs):
    """Compares every read, mapped ones too, with what was written."""
    command = [tools / "fsx", "-f", HERE / "suites" / "fsx.toml", "-N", operations, "-S", seed]
    command += ["-P", logs, folder / "fsx"]
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=1800)
    assert said.returncode == 0, f"seed {seed}: {said.stdout[-4000:]}{said.stderr[-2000:]}"
    return f"fsx: {operations} operations, no difference"


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--examples", type=pathlib.Path, required=True,
                           help="where the programs memory and passthrough lie")
    arguments.add_argument("--directory", help="where to work [default: a temporary directory]")
    arguments.add_argument("--tools", type=pathlib.Path, required=True,
                           help="where the programs fsx and pjdfstest lie")
    arguments.add_argument("--operations", type=int, default=40_000, help="of fsx")
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    options = arguments.parse_args()
    print(f"seed {options.seed}", flush=True)
    cases = [(example, channel) for example in EXAMPLES for channel in CHANNELS]
    for example, channel in cases:
        with tempfile.TemporaryDirectory(prefix="fuse-", dir=options.directory) as directory:
            run(example, channel, pathlib.Path(directory), options)
    print(f"{len(cases)} passed, 0 failed")


def run(example, channel, directory, options):
    """Both suites on one example over one channel."""
    # Other users, whom pjdfstest acts for, must be able to reach the mount.
    for above in (directory, directory.parent):
        above.chmod(above.stat().st_mode | 0o011)
    mount, source = directory / "m", directory / "source"
    mount.mkdir()
    source.mkdir()
    command = [options.examples / example, mount, channel]
    if example == "passthrough":
        command.insert(1, source)
    with Mounted(command, mount, directory / "log") as mounted:
        for line in (
            pjdfstest(mount, options.tools),
            fsx(mount, options.tools, options.operations, options.seed, directory),
        ):
            print(f"{example}, {channel}: {line}", flush=True)
    said = mounted.said()
    assert mounted.process.returncode == 0, said
    assert "waiting: 0" in said and "forgotten: 0" in said, said
    if example == "passthrough" and "not passed through" in said:
        print(f"{example}, {channel}: this kernel passes nothing through", flush=True)
    if CHANNELS[channel] not in said:
        assert "not over io_uring" in said, said
        print(f"{example}, {channel}: this kernel does not offer it, that was /dev/fuse",
              flush=True)


if __name__ == "__main__":
    sys.exit(main())
