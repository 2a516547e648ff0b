"""The POSIX test suite of others, pjdfstest, against the list of what is expected of it."""

import contextlib
import os
import pathlib
import re
import subprocess
import tempfile
import tomllib

SUITES = pathlib.Path(__file__).parent / "suites"
# As a run prints them, and what they are here.
OUTCOMES = {"ok": "passed", "skipped": "skipped", "FAILED": "failed"}
LINE = re.compile(r"^(\S+::\S+)\s+(ok|skipped|FAILED)$")
TOTAL = re.compile(r"^Summary: .* (\d+) total$", re.MULTILINE)
# The tests that remount read-only. The others leave files open, which makes the mount busy.
REMOUNTING = "erofs"
# mount(8) would ask the mount's helper program, which cannot change a mount.
MOUNT = '#!/bin/sh\nexec /bin/mount --internal-only "$@"\n'
SECONDS_MAX = 1800


def pjdfstest(mount, tools, name="p"):
    """Runs the suite on a mount, also those tests that make it read-only for a moment, in a new
    folder of that name: a letter, because paths of sockets have at most 108 bytes."""
    folder = mount / name
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    outcomes = {}
    with tempfile.TemporaryDirectory(prefix="pjdfstest-") as local, contextlib.ExitStack() as after:
        point = next(path for path in [mount, *mount.parents] if path.is_mount())
        after.callback(subprocess.run, ["mount", "-i", "-o", "remount,rw", point], check=True)
        local = pathlib.Path(local)
        local.chmod(0o777)
        program = local / "bin/mount"
        program.parent.mkdir()
        program.write_text(MOUNT)
        program.chmod(0o755)
        for patterns in ([], [REMOUNTING]):
            outcomes.update(run(tools, folder, local, patterns))
    expected = tomllib.loads((SUITES / "pjdfstest.expected.toml").read_text())
    wrong = [
        f"{name}: {outcome}, but {wanted} is expected"
        for name, outcome in outcomes.items()
        if outcome != (wanted := wanted_of(name, expected))
    ]
    named = [name for names in expected.values() for name in names]
    wrong += [f"{name}: there is no such test" for name in named if name not in outcomes]
    assert not wrong, "\n".join(wrong)
    counts = {outcome: 0 for outcome in OUTCOMES.values()}
    for outcome in outcomes.values():
        counts[outcome] += 1
    shown = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return f"pjdfstest: {shown} of {len(outcomes)}, as expected of each"


def wanted_of(name, expected):
    return next((kind for kind, names in expected.items() if name in names), "passed")


def run(tools, folder, local, patterns):
    """One run: {test: outcome}. Without patterns all but those that remount."""
    settings = (SUITES / "pjdfstest.toml").read_text()
    if not patterns:
        settings = settings.replace("allow_remount = true", "allow_remount = false")
    config = local / "pjdfstest.toml"
    config.write_text(settings)
    command = [tools / "pjdfstest", "-c", config, "-p", folder, "-s", local, *patterns]
    path = f"{local / 'bin'}:{os.environ['PATH']}"
    said = subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=SECONDS_MAX, check=False,
                          env={**os.environ, "PATH": path})
    matches = filter(None, map(LINE.match, said.stdout.splitlines()))
    outcomes = {match[1]: OUTCOMES[match[2]] for match in matches}
    total = TOTAL.search(said.stdout)
    whole = total and int(total[1]) == len(outcomes) > 0
    assert whole, f"{len(outcomes)} outcomes: {said.stdout[-4000:]}{said.stderr[-2000:]}"
    if "failed" in outcomes.values():
        print(said.stdout[-8000:], flush=True)
    return outcomes
