"""The main job, end to end, on real input: train from a bucket, checkpoint, export, find it there.

Real parts only: SeaweedFS as the bucket, boto3 as the independent client, Millrace's own daemons, a
kernel mount, PyTorch. Every check has a name, is printed with its time, and counts in the last
line. The order matters: later checks use what earlier ones have left. With `--keep DIR` the files
stay there for a look.
"""

import argparse
import concurrent.futures
import contextlib
import errno
import hashlib
import itertools
import json
import mmap
import multiprocessing
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback

from bucket_server import BucketServer, make_bucket
from cluster import Cluster
from dataset import make_pictures, make_large_file

PICTURES = 2_000
LARGE_BYTES = 1 << 30
CHECKPOINT_BYTES = 520_000_000
BUCKET = "data"
READ_BYTES = 1 << 20
# The goal. A run under other load measures 0.3, so that a limit at the goal would test the machine;
# docs/performance.md says where this stands.
RATIO_GOAL = 0.4
COLD_ROUNDS = 3
RESIDENT_BYTES_MAX = 512 << 20
# A reader may see the kill of its mount's own daemon only as one of these.
MOUNT_GONE_ERRNOS = {"ENOTCONN", "ECONNABORTED", "EIO", "ECONNREFUSED"}


class Run:
    """The state that checks hand on to each other."""

    def __init__(self, options, directory):
        self.options = options
        self.directory = pathlib.Path(directory)
        self.local = self.directory / "local"
        self.mount = self.directory / "mount"
        self.second = self.directory / "second"
        self.bucket = BucketServer(self.directory / "bucket")
        self.cluster = None
        self.facts = {}

    def start(self):
        self.bucket.start()
        environment = {
            "AWS_ACCESS_KEY_ID": self.bucket.access_key,
            "AWS_SECRET_ACCESS_KEY": self.bucket.secret_key,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.bucket.endpoint,
            "AWS_ALLOW_HTTP": "true",
        }
        self.cluster = Cluster(self.options.binaries, self.directory / "state", environment)

    def stop(self):
        if self.cluster:
            self.cluster.take_down()
        self.bucket.stop()

    def pictures(self):
        """{path below the link: md5} of every picture, from the bucket's own listing."""
        pages = self.bucket.client().get_paginator("list_objects_v2")
        listed = {}
        for page in pages.paginate(Bucket=BUCKET, Prefix="set/pictures/"):
            for item in page.get("Contents", []):
                listed[item["Key"].removeprefix("set/")] = item["ETag"].strip('"')
        return listed


# ---- the checks, in order -----------------------------------------------------------------------


def the_bucket_is_filled_by_an_independent_client(run):
    make_pictures(run.local / "pictures", run.options.pictures)
    run.facts["large_sha256"] = make_large_file(run.local / "large.bin", run.options.large_bytes)
    client = run.bucket.client()
    make_bucket(client, BUCKET)

    def put(path):
        client.put_object(
            Bucket=BUCKET, Key=f"set/{path.relative_to(run.local)}", Body=path.read_bytes()
        )

    files = sorted((run.local / "pictures").rglob("*.jpg"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(put, files))
    client.upload_file(str(run.local / "large.bin"), BUCKET, "set/large.bin")
    (run.local / "large.bin").unlink()
    sizes = [file.stat().st_size for file in files]
    assert len(files) == run.options.pictures
    assert all(50_000 <= size <= 200_000 for size in sizes), (min(sizes), max(sizes))
    return f"{len(files)} pictures, {sum(sizes) / 1e6:.0f} MB, and {run.options.large_bytes} bytes"


def a_cluster_starts_and_links_the_bucket(run):
    begun = time.monotonic()
    run.cluster.up(targets=2, mount=run.mount)
    up = time.monotonic() - begun
    run.cluster.cli("link", "add", f"s3://{BUCKET}/set", run.mount / "set", "--mode",
                    "import-export")
    links = run.cluster.json("link", "list")
    assert "s3://data/set" in json.dumps(links), links
    status = run.cluster.json("status")
    assert status["health"] == "healthy" and len(status["targets"]) == 2, status
    return f"up in {up:.1f} s"


def every_object_is_listed_with_its_size(run):
    expected = run.pictures()
    begun = time.monotonic()
    listed = {
        str(path.relative_to(run.mount / "set")): path.stat().st_size
        for path in (run.mount / "set/pictures").rglob("*.jpg")
    }
    seconds = time.monotonic() - begun
    assert set(listed) == set(expected), (len(listed), len(expected))
    for name, size in listed.items():
        assert size == (run.local / name).stat().st_size, name
    assert (run.mount / "set/large.bin").stat().st_size == run.options.large_bytes
    told = run.cluster.json("state", run.mount / "set/large.bin")
    assert told["state"] == "released" and told["hydrated_bytes"] == 0, told
    return f"{len(listed)} files in {seconds:.1f} s"


def a_cold_read_is_measured_against_the_bucket(run):
    """What a round takes depends on what else the machine does, so there are several.

    Each round reads the released file through the page cache and, released again, with O_DIRECT.
    """
    large, rounds = run.mount / "set/large.bin", []
    for _ in range(run.options.cold_rounds):
        rates, before = [], bucket_rate(run)
        for flags in (0, os.O_DIRECT):
            run.cluster.cli("release", large, "--wait")
            assert run.cluster.json("state", large)["state"] == "released"
            touch_memory()
            rates.append(read_rate(large, flags))
        raw = (before + bucket_rate(run)) / 2
        rounds.append((*rates, raw))
    again = read_rate(large)
    said = "; ".join(f"{one:.0f} and {direct:.0f} of {raw:.0f}" for one, direct, raw in rounds)
    cached = max(one / raw for one, _, raw in rounds)
    direct = max(one / raw for _, one, raw in rounds)
    said = (f"through the page cache and O_DIRECT {said} MiB/s, again {again:.0f}; "
            f"best ratios {cached:.2f} and {direct:.2f}")
    # The rate is a figure for docs/performance.md, not a test: both cores are shared with
    # everything else here. What is tested is that every read gave the whole file.
    return said if cached >= RATIO_GOAL else f"{said}: BELOW THE GOAL of {RATIO_GOAL}"


def the_large_file_is_the_buckets(run):
    digest = sha256(run.mount / "set/large.bin")
    assert digest == run.facts["large_sha256"], digest
    told = run.cluster.json("state", run.mount / "set/large.bin")
    assert told["state"] == "hydrated", told


def two_epochs_train_and_the_second_asks_the_bucket_nothing(run):
    run.cluster.up(mount=run.second)
    run.checkpoint = run.mount / "set/checkpoints/model.pt"
    run.checkpoint.parent.mkdir()
    with Training(run, epochs=2, checkpoint=run.checkpoint) as training:
        first = training.step()
        assert first["seen"] == run.options.pictures and first["classes"] == 10, first
        wait_until_hydrated(run, run.mount / "set/pictures")
        before = run.bucket.requests()
        training.go_on()
        second = training.step()
        after = run.bucket.requests()
        assert after == before, f"the second epoch asked the bucket: {before} -> {after}"
        assert second["seen"] == run.options.pictures, second
        assert second["loss"] < first["loss"], (first, second)
        training.go_on()
        saved = training.step()
        run.facts["checkpoint_seconds"] = saved["seconds"]
        training.finish()
    rates = [run.options.pictures / one["seconds"] for one in (first, second)]
    return (f"{rates[0]:.0f} then {rates[1]:.0f} pictures/s, loss {first['loss']:.2f} then "
            f"{second['loss']:.2f}, checkpoint in {saved['seconds']:.1f} s")


def the_second_mount_sees_the_checkpoint_at_once(run):
    seen = run.second / "set/checkpoints/model.pt"
    assert seen.stat().st_size == run.checkpoint.stat().st_size >= run.options.checkpoint_bytes
    run.facts["checkpoint_sha256"] = sha256(seen)
    assert run.facts["checkpoint_sha256"] == sha256(run.checkpoint)
    return f"{seen.stat().st_size / 1e6:.0f} MB"


def the_exported_checkpoint_is_in_the_bucket(run):
    told = run.cluster.json("state", run.checkpoint)
    assert told["state"] == "dirty", told
    begun = time.monotonic()
    run.cluster.cli("export", run.mount / "set/checkpoints", "--wait")
    seconds = time.monotonic() - begun
    digest = hashlib.sha256()
    body = run.bucket.client().get_object(Bucket=BUCKET, Key="set/checkpoints/model.pt")["Body"]
    for piece in body.iter_chunks(READ_BYTES):
        digest.update(piece)
    assert digest.hexdigest() == run.facts["checkpoint_sha256"]
    told = run.cluster.json("state", run.checkpoint)
    assert told["state"] == "exported", told
    return f"exported in {seconds:.1f} s"


def every_file_has_the_buckets_checksum(run):
    expected = run.pictures()
    for name, digest in expected.items():
        assert md5(run.mount / "set" / name) == digest, name
    return f"{len(expected)} files"


def servers_killed_during_a_cold_epoch_do_not_stop_it(run):
    run.cluster.cli("release", run.mount / "set/pictures", "--wait")
    told = run.cluster.json("state", run.mount / "set/pictures")
    with Training(run, epochs=1) as training:
        for name in ("target-0", "metadata", "target-1"):
            time.sleep(run.options.kill_interval)
            run.cluster.kill(name)
            run.cluster.up()
        seen = training.step()
        training.finish()
    assert seen["seen"] == run.options.pictures, seen
    check_checksums(run)
    return f"epoch in {seen['seconds']:.1f} s; before it: {told.get('state', told)}"


def a_writer_survives_the_kill_of_each_server(run):
    """What was fsynced is there whatever is killed; nothing fails, because servers come back."""
    folder = run.mount / "set/written"
    folder.mkdir()
    written = SyncedWriter(folder)
    written.start()
    try:
        for name in ("metadata", "target-0", "target-1"):
            time.sleep(run.options.kill_interval)
            run.cluster.kill(name)
            run.cluster.up()
    finally:
        errors = written.finish()
    assert not errors, errors
    assert len(written.synced) > 3, written.synced
    written.verify(folder)
    return f"{len(written.synced)} files synced"


def a_killed_mount_fails_clearly_and_comes_back_with_what_was_synced(run):
    folder = run.mount / "set/written"
    written = SyncedWriter(folder, prefix="again")
    written.start()
    time.sleep(run.options.kill_interval)
    run.cluster.kill("mount-0")
    # It ends by itself at the first error; told to end, it may do so before it has seen one.
    written.process.join(60)
    errors = written.finish()
    assert errors and set(errors) <= MOUNT_GONE_ERRNOS, errors
    run.cluster.up(mount=run.mount)
    written.verify(folder)
    written.verify(run.second / "set/written")
    check_checksums(run, sample=200)
    return f"{len(written.synced)} files synced; the writer saw {', '.join(sorted(set(errors)))}"


def every_daemon_stays_within_its_memory(run):
    run.cluster.note_memory()
    most = run.cluster.resident_bytes_max
    said = ", ".join(f"{name} {size >> 20} MiB" for name, size in sorted(most.items()))
    assert {"metadata", "target-0", "target-1", "mount-0"} <= set(most), said
    assert all(size < RESIDENT_BYTES_MAX for size in most.values()), said
    return said


def the_cluster_goes_down_and_comes_back_with_everything(run):
    run.cluster.cli("dev", "down")
    deadline = time.monotonic() + 30
    while run.cluster.daemons() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not run.cluster.daemons(), run.cluster.daemons()
    assert not (run.mount / "set").exists()
    run.cluster.up(mount=run.mount)
    assert sha256(run.checkpoint) == run.facts["checkpoint_sha256"]
    check_checksums(run, sample=200)


CHECKS = [
    the_bucket_is_filled_by_an_independent_client,
    a_cluster_starts_and_links_the_bucket,
    every_object_is_listed_with_its_size,
    a_cold_read_is_measured_against_the_bucket,
    the_large_file_is_the_buckets,
    two_epochs_train_and_the_second_asks_the_bucket_nothing,
    the_second_mount_sees_the_checkpoint_at_once,
    the_exported_checkpoint_is_in_the_bucket,
    every_file_has_the_buckets_checksum,
    servers_killed_during_a_cold_epoch_do_not_stop_it,
    a_writer_survives_the_kill_of_each_server,
    a_killed_mount_fails_clearly_and_comes_back_with_what_was_synced,
    every_daemon_stays_within_its_memory,
    the_cluster_goes_down_and_comes_back_with_everything,
]
# Without these nothing after them means anything.
FOUNDATIONS = set(CHECKS[:3])


# ---- what the checks use ------------------------------------------------------------------------


class Training:
    """training.py as a process that waits between its steps."""

    def __init__(self, run, epochs, checkpoint=None):
        command = ["/usr/bin/python3", str(pathlib.Path(__file__).parent / "training.py")]
        command += ["--data", str(run.mount / "set/pictures"), "--epochs", str(epochs)]
        if checkpoint:
            command += ["--checkpoint", str(checkpoint)]
            command += ["--checkpoint-bytes", str(run.options.checkpoint_bytes)]
        self.log = open(run.directory / "training.log", "ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
            start_new_session=True,
        )

    def step(self, seconds_max=600):
        """The next line that the training prints."""
        watchdog = threading.Timer(seconds_max, self.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        if not line:
            self.log.flush()
            text = pathlib.Path(self.log.name).read_text(errors="replace")[-3000:]
            raise AssertionError(f"training ended or hung:\n{text}")
        return json.loads(line)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self):
        self.go_on()
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
            self.process.wait()
        self.log.close()


class SyncedWriter:
    """Writes files, each fsynced (and its directory), and remembers those.

    With `kept` it reads a file again and removes it once there are so many younger ones.

    A process of its own: one that starts others must have no file open on the mount, because the
    copy of the descriptor that the new process closes makes it wait for the servers.
    """

    def __init__(self, folder, prefix="file", kept=None):
        self.folder = folder
        self.prefix = prefix
        self.kept = kept
        self.synced = []
        self.removed = []
        self.log = tempfile.NamedTemporaryFile("r", prefix="writer-")
        processes = multiprocessing.get_context("fork")
        self.ended = processes.Event()
        self.process = processes.Process(target=self._write, daemon=True)

    def start(self):
        self.process.start()

    def content(self, name):
        """Every tenth file has 320 kB, the others 16 kB."""
        repeats = 10_000 if name.endswith("0") else 500
        return hashlib.sha256(name.encode()).digest() * repeats

    def _write(self):
        with open(self.log.name, "a", buffering=1) as log:
            for index in itertools.count():
                if self.ended.is_set():
                    return
                try:
                    self._write_one(self.name(index))
                    print("synced", self.name(index), file=log)
                    if self.kept and index >= self.kept:
                        self._remove_one(self.name(index - self.kept), log)
                except OSError as error:
                    print("error", errno.errorcode.get(error.errno, error.errno), file=log)
                    return

    def name(self, index):
        return f"{self.prefix}-{index:05}"

    def _write_one(self, name):
        with open(self.folder / name, "wb") as file:
            file.write(self.content(name))
            file.flush()
            os.fsync(file.fileno())
        descriptor = os.open(self.folder, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)

    def _remove_one(self, name, log):
        """The next file's sync of the directory is this removal's, too."""
        if (self.folder / name).read_bytes() != self.content(name):
            print("error", f"{name} has other bytes", file=log)
        (self.folder / name).unlink()
        print("removed", name, file=log)

    def finish(self):
        """Ends the writer; returns the errors that it saw."""
        self.ended.set()
        self.process.join(700)
        assert not self.process.is_alive(), "the writer hangs"
        told = [line.split(maxsplit=1) for line in self.log.read().splitlines()]
        self.synced = [name for kind, name in told if kind == "synced"]
        self.removed = [name for kind, name in told if kind == "removed"]
        return [name for kind, name in told if kind == "error"]

    def verify(self, folder):
        """The files that are there are exactly those that were written and not removed."""
        left = set(self.synced) - set(self.removed)
        for name in sorted(left):
            assert (folder / name).read_bytes() == self.content(name), name
        if self.kept:
            there = {path.name for path in folder.iterdir()}
            assert there == left, sorted(there ^ left)[:10]


def check_checksums(run, sample=None):
    expected = sorted(run.pictures().items())
    step = max(1, len(expected) // sample) if sample else 1
    for name, digest in expected[::step]:
        assert md5(run.mount / "set" / name) == digest, name


def wait_until_hydrated(run, path, seconds_max=120):
    """Background fetches may go on after the last read; the counting begins when they are done."""
    deadline = time.monotonic() + seconds_max
    while True:
        told = run.cluster.json("state", path)
        if told["hydrated_bytes"] >= told["size_bytes"]:
            return
        assert time.monotonic() < deadline, told
        time.sleep(0.2)


def bucket_rate(run):
    """MiB/s of 8 parallel ranged GETs over object_store, straight from the bucket."""
    command = [
        str(pathlib.Path(run.options.binaries) / "bucket-read"), "--endpoint", run.bucket.endpoint,
        "--bucket", BUCKET, "--key", "set/large.bin", "--parallel", "8",
    ]
    said = subprocess.run(
        command, env=run.cluster.environment, stdin=subprocess.DEVNULL, check=True,
        capture_output=True, text=True, timeout=300,
    )
    return json.loads(said.stdout)["mib_per_second"]


def touch_memory():
    """Uses and frees as much memory as a cold read fills with pages.

    A virtual machine may get its memory from its host only when it touches it, page by page. That
    costs up to 3 s a GiB, which only the read through the page cache would pay, not the bucket's.
    """
    code = f"import mmap; m = mmap.mmap(-1, {2 * LARGE_BYTES}); m[::4096] = bytes(len(m) // 4096)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def read_rate(path, flags=0):
    """Reads a file from its begin to its end and returns MiB/s."""
    # A map's memory is aligned, as O_DIRECT wants it.
    buffer = mmap.mmap(-1, READ_BYTES)
    begun, total = time.monotonic(), 0
    with open(os.open(path, os.O_RDONLY | flags), "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while count := file.readinto(buffer):
            total += count
        assert total == os.fstat(file.fileno()).st_size, f"{path} gave {total} bytes"
    return total / (1 << 20) / (time.monotonic() - begun)


def digest_of(path, digest):
    with open(path, "rb", buffering=0) as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def sha256(path):
    return digest_of(path, hashlib.sha256())


def md5(path):
    return digest_of(path, hashlib.md5(usedforsecurity=False))


def perform(run):
    """Runs the checks; returns (passed, failed, skipped)."""
    passed, failed, skipped = 0, 0, 0
    for index, check in enumerate(CHECKS):
        name = check.__name__.replace("_", " ")
        begun = time.monotonic()
        try:
            said = check(run)
        except Exception:  # noqa: BLE001: one failed check must not hide the others
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            if run.cluster:
                print(run.cluster.log_tails(), flush=True)
            if check in FOUNDATIONS:
                skipped = len(CHECKS) - index - 1
                break
            continue
        passed += 1
        note = f": {said}" if said else ""
        print(f"ok {name} ({time.monotonic() - begun:.1f} s){note}", flush=True)
    return passed, failed, skipped


def parse_options():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--binaries", required=True, help="folder of the built programs")
    arguments.add_argument("--pictures", type=int, default=PICTURES)
    arguments.add_argument("--large-bytes", type=int, default=LARGE_BYTES)
    arguments.add_argument("--checkpoint-bytes", type=int, default=CHECKPOINT_BYTES)
    arguments.add_argument("--cold-rounds", type=int, default=COLD_ROUNDS, help="of 16 s each")
    arguments.add_argument("--kill-interval", type=float, default=1.5, help="seconds of work")
    arguments.add_argument("--directory", help="where to work [default: a temporary directory]")
    arguments.add_argument("--keep", action="store_true", help="leave the files for a look")
    return arguments.parse_args()


def main():
    options = parse_options()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    if options.directory:
        os.makedirs(options.directory, exist_ok=True)
    directory = tempfile.mkdtemp(prefix="millrace-e2e-", dir=options.directory)
    run = Run(options, directory)
    passed, failed, skipped = 0, 1, 0
    try:
        run.start()
        passed, failed, skipped = perform(run)
    finally:
        run.stop()
        if options.keep:
            print(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
