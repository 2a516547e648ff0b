"""The quickstart's steps that are about data: fill a bucket, read a tree, compare an object.

Reads where the bucket is from the JSON that `bucket_server.py` printed. Progress goes to standard
error; one line of result to standard output.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import sys
import time

from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/e2e"))

import bucket_server  # noqa: E402
import dataset  # noqa: E402

BUCKET = "demo"
READERS = 8
READ_BYTES = 1 << 20


def client(options):
    told = json.loads(pathlib.Path(options.server).read_text())
    return bucket_server.s3_client(told["endpoint"], told["access_key"], told["secret_key"])


def bar(total, name):
    """A progress bar in bytes; silent where nobody looks, so that logs stay short."""
    return tqdm(
        total=total, desc=f"    {name}", unit="B", unit_scale=True, disable=None, leave=False
    )


def fill(options):
    """Makes the pictures and puts them into the bucket, with boto3."""
    local = pathlib.Path(options.local)
    total = dataset.make_pictures(local, options.count)
    s3 = client(options)
    s3.create_bucket(Bucket=BUCKET)
    files = sorted(local.rglob("*.jpg"))
    with bar(total, "uploading") as progress, concurrent.futures.ThreadPoolExecutor(8) as pool:

        def put(path):
            body = path.read_bytes()
            key = f"training/pictures/{path.relative_to(local)}"
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
            progress.update(len(body))

        list(pool.map(put, files))
    print(f"{len(files)} pictures in 10 classes, {total / 1e6:.0f} MB, in s3://{BUCKET}/training")


def read(options):
    """Reads every file of a tree with several threads, as data loaders do."""
    begun = time.monotonic()
    files = sorted(
        pathlib.Path(folder) / name for folder, _, names in os.walk(options.tree) for name in names
    )
    sizes = sum(path.stat().st_size for path in files)
    listed = time.monotonic() - begun
    begun = time.monotonic()
    with bar(sizes, "reading") as progress:
        with concurrent.futures.ThreadPoolExecutor(READERS) as pool:
            for length in pool.map(lambda path: len(path.read_bytes()), files):
                progress.update(length)
    seconds = time.monotonic() - begun
    print(f"{len(files)} files listed in {listed:.1f} s, read in {seconds:.1f} s: "
          f"{len(files) / seconds:.0f} files/s, {sizes / 1e6 / seconds:.0f} MB/s")


def checkpoint(options):
    """Writes a checkpoint and fsyncs it, as a training program does."""
    begun = time.monotonic()
    path = pathlib.Path(options.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file, bar(options.bytes, "writing") as progress:
        for block in dataset.random_blocks(options.bytes):
            file.write(block)
            progress.update(len(block))
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - begun
    print(f"{options.bytes / 1e6:.0f} MB written and synced in {seconds:.1f} s: "
          f"{options.bytes / 1e6 / seconds:.0f} MB/s")


def compare(options):
    """Compares an object, fetched with boto3, with the file on the mount."""
    here = hashlib.sha256()
    with open(options.path, "rb") as file:
        while piece := file.read(READ_BYTES):
            here.update(piece)
    there = hashlib.sha256()
    body = client(options).get_object(Bucket=BUCKET, Key=options.key)["Body"]
    for piece in body.iter_chunks(READ_BYTES):
        there.update(piece)
    if here.digest() != there.digest():
        sys.exit(f"the object {options.key} differs from {options.path}")
    print(f"the bucket's object and the file agree: sha256 {here.hexdigest()[:16]}...")


def requests(options):
    """How many requests the bucket has answered so far."""
    server = bucket_server.BucketServer(".")
    server.metrics_url = json.loads(pathlib.Path(options.server).read_text())["metrics_url"]
    print(sum(server.requests().values()))


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--server", required=True, help="what bucket_server.py printed")
    commands = arguments.add_subparsers(required=True)
    forms = {
        fill: [("--local", str), ("--count", int)],
        read: [("--tree", str)],
        checkpoint: [("--path", str), ("--bytes", int)],
        compare: [("--path", str), ("--key", str)],
        requests: [],
    }
    for function, options in forms.items():
        command = commands.add_parser(function.__name__, help=function.__doc__)
        command.set_defaults(function=function)
        for name, kind in options:
            command.add_argument(name, type=kind, required=True)
    options = arguments.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
