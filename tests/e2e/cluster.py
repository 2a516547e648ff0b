"""A Millrace cluster on this machine, driven as a user drives it: by the `millrace` program.

Owns a directory, the daemons that `millrace dev up` starts for it and the mounts below it; takes
all of them down at the end, whatever happened.
"""

import json
import os
import pathlib
import signal
import subprocess
import time

COMMAND_SECONDS_MAX = 600


class CommandFailed(Exception):
    """A command ended with another exit code than 0; the text is what it said."""


class Cluster:
    """One cluster. `up` starts it, `take_down` ends it."""

    def __init__(self, binaries, directory, environment):
        self.binaries = pathlib.Path(binaries)
        self.directory = pathlib.Path(directory)
        self.environment = {**os.environ, **environment}
        # name -> most bytes that this daemon has had resident, over all its processes.
        self.resident_bytes_max = {}

    def cli(self, *arguments, seconds_max=COMMAND_SECONDS_MAX):
        """Runs `millrace --dir D ...` and returns what it printed."""
        command = [str(self.binaries / "millrace"), "--dir", str(self.directory)]
        command += [str(argument) for argument in arguments]
        said = subprocess.run(
            command, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=seconds_max,
        )
        if said.returncode:
            shown = " ".join(["millrace", *map(str, arguments)])
            raise CommandFailed(f"{shown}: exit {said.returncode}\n{said.stdout}{said.stderr}")
        return said.stdout

    def json(self, *arguments):
        """Runs a command that lists, and returns its JSON."""
        return json.loads(self.cli("--json", *arguments))

    def up(self, targets=None, mount=None):
        """Starts what is not running."""
        arguments = ["dev", "up"]
        arguments += ["--targets", targets] if targets else []
        arguments += ["--mount", mount] if mount else []
        self.cli(*arguments)

    def daemons(self):
        """The daemons that run: {name: process id}, found by the file that each one names."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            for word in words:
                path = pathlib.Path(os.fsdecode(word))
                if path.suffix == ".toml" and self.directory in path.parents:
                    name = path.relative_to(self.directory).parts[0]
                    if name != path.name:
                        found[name] = int(entry.name)
        return found

    def kill(self, name):
        """kill -9, and waits until the process is gone."""
        self.note_memory()
        pid = self.daemons()[name]
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while name in self.daemons():
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} (process {pid}) outlives SIGKILL")
            time.sleep(0.01)

    def note_memory(self):
        """Updates `resident_bytes_max` from the kernel's own high-water marks."""
        for name, pid in self.daemons().items():
            try:
                status = pathlib.Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            for line in status.splitlines():
                if line.startswith("VmHWM:"):
                    seen = int(line.split()[1]) * 1024
                    self.resident_bytes_max[name] = max(self.resident_bytes_max.get(name, 0), seen)

    def log_tails(self, lines=15):
        """The end of every daemon's log, for a failure's report."""
        parts = []
        for log in sorted(self.directory.glob("*/daemon.log")):
            tail = log.read_text(errors="replace").splitlines()[-lines:]
            parts.append("\n".join([f"---- {log.parent.name}", *tail]))
        return "\n".join(parts)

    def take_down(self):
        """Unmounts and stops everything; forces what does not go by itself."""
        try:
            self.cli("dev", "down", seconds_max=120)
        except (CommandFailed, subprocess.TimeoutExpired, OSError) as error:
            print(f"dev down failed, forcing: {error}", flush=True)
        for pid in self.daemons().values():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for mountpoint in mounts_below(self.directory.parent):
            subprocess.run(["umount", "--lazy", mountpoint], stdin=subprocess.DEVNULL)


def mounts_below(directory):
    """Mount points at or below a directory, innermost first."""
    table = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    points = [pathlib.Path(line.split(" ")[4]) for line in table]
    return [point for point in reversed(points) if directory in [point, *point.parents]]
