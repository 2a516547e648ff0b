"""One file that two mounts change in turn, compared with a model in memory after each turn.

A turn opens the file on one of the mounts, does some operations and closes it; the next one, most
times on the other mount, must find what the model has. So does a descriptor that was opened on that
mount long ago, once somebody there has opened the file again.
"""

import argparse
import ctypes
import mmap
import os
import pathlib
import random
import sys
import time

LENGTH_MAX = 2 << 20
PIECE_MAX = 200_000
# What is shown of the operations before a failure.
SHOWN = 40
# Modes of fallocate(2).
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 0x01, 0x02, 0x10


class Difference(Exception):
    """The file is not what the model has."""


class Turns:
    """The file, the model, and what was done."""

    def __init__(self, paths, seed):
        self.paths = paths
        self.random = random.Random(seed)
        self.model = bytearray()
        self.done = []
        self.operations = 0
        # On each mount a descriptor that stays open while others change the file.
        self.old = [None for _ in paths]
        self.mount = 0

    def turn(self):
        """One open, some operations, one close."""
        if self.random.random() < 0.8:
            self.mount = (self.mount + 1) % len(self.paths)
        path = self.paths[self.mount]
        self.expect_size(os.stat(path).st_size, "stat before the open")
        file = os.open(path, os.O_RDWR)
        try:
            self.note("open")
            self.expect_size(os.fstat(file).st_size, "fstat")
            self.look_at_old()
            for _ in range(self.random.randint(1, 6)):
                self.random.choice(self.KINDS)(self, file)
                self.operations += 1
            self.compare(file, 0, len(self.model))
        finally:
            os.close(file)

    def look_at_old(self):
        """A descriptor of this mount, older than the changes, shows them since the open."""
        old = self.old[self.mount]
        if old is not None:
            self.expect_size(os.fstat(old).st_size, "fstat of an old descriptor")
            start, length = self.part()
            self.compare(old, start, length, "an old descriptor")
        if old is None or self.random.random() < 0.1:
            if old is not None:
                os.close(old)
            self.old[self.mount] = os.open(self.paths[self.mount], os.O_RDONLY)

    def close(self):
        for file in self.old:
            if file is not None:
                os.close(file)

    # ---- operations ----------------------------------------------------------------------------

    def read(self, file):
        self.compare(file, *self.part())

    def write(self, file):
        start, piece = self.piece(LENGTH_MAX)
        self.note("write", start, len(piece))
        assert os.pwrite(file, piece, start) == len(piece)
        self.put(start, piece)

    def append(self, file):
        piece = self.random.randbytes(self.random.randint(1, 5000))
        if len(self.model) + len(piece) > LENGTH_MAX:
            return
        self.note("append", len(self.model), len(piece))
        appended = os.open(self.paths[self.mount], os.O_WRONLY | os.O_APPEND)
        try:
            assert os.write(appended, piece) == len(piece)
        finally:
            os.close(appended)
        self.put(len(self.model), piece)

    def truncate(self, file):
        length = self.random.randint(0, LENGTH_MAX)
        self.note("truncate", length)
        if self.random.random() < 0.5:
            os.ftruncate(file, length)
        else:
            os.truncate(self.paths[self.mount], length)
        del self.model[length:]
        self.model.extend(bytes(length - len(self.model)))

    def punch(self, file):
        start, length = self.part()
        if not length:
            return
        self.note("punch", start, length)
        allocate(file, PUNCH_HOLE | KEEP_SIZE, start, length)
        self.put(start, bytes(length))

    def zero(self, file):
        """Zeros, also behind the end: the file grows by them, or keeps its size."""
        start = self.random.randrange(LENGTH_MAX)
        length = self.random.randint(1, min(PIECE_MAX, LENGTH_MAX - start))
        keeps = self.random.random() < 0.5
        self.note("zero", start, length, "keeping the size" if keeps else "")
        allocate(file, ZERO_RANGE | (KEEP_SIZE if keeps else 0), start, length)
        if keeps:
            length = max(0, min(length, len(self.model) - start))
        if length:
            self.put(start, bytes(length))

    def copy(self, file):
        """A part of the file to another place in it, also behind the end, without the program."""
        start, length = self.part()
        place = self.random.randint(0, LENGTH_MAX - length)
        if not length or abs(place - start) < length:
            return
        self.note("copy", start, length, "to", place)
        done = 0
        while done < length:
            count = os.copy_file_range(file, file, length - done, start + done, place + done)
            assert count > 0, "the source ends here"
            done += count
        self.put(place, bytes(self.model[start:start + length]))

    def map_read(self, file):
        start, length = self.part()
        if not length:
            return
        base = start - start % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(file, start + length - base, prot=mmap.PROT_READ, offset=base) as view:
            self.differ(start, bytes(view[start - base:]), "mapped")

    def map_write(self, file):
        if not self.model:
            return
        start, piece = self.piece(len(self.model))
        piece = piece[:len(self.model) - start]
        self.note("write mapped", start, len(piece))
        base = start - start % mmap.ALLOCATIONGRANULARITY
        with mmap.mmap(file, start + len(piece) - base, offset=base) as view:
            view[start - base:] = piece
            view.flush()
        self.put(start, piece)

    def sync(self, file):
        self.note("fsync")
        os.fsync(file)

    KINDS = (read, read, write, write, write, append, truncate, punch, zero, copy, map_read,
             map_write, map_write, sync)

    # ---- the model -----------------------------------------------------------------------------

    def part(self):
        """A place in the file and a length, of which the end may lie behind the file's."""
        start = self.random.randint(0, len(self.model))
        return start, min(len(self.model) - start, self.random.randint(0, PIECE_MAX))

    def piece(self, end):
        start = self.random.randrange(end)
        length = min(end - start, self.random.choice((1, 100, 4096, PIECE_MAX)))
        return start, self.random.randbytes(self.random.randint(1, length))

    def put(self, start, piece):
        end = start + len(piece)
        self.model.extend(bytes(max(0, end - len(self.model))))
        self.model[start:end] = piece

    def compare(self, file, start, length, who="read"):
        found = os.pread(file, length + 1 if start + length == len(self.model) else length, start)
        self.differ(start, found, who, length)

    def differ(self, start, found, who, length=None):
        wanted = self.model[start:start + (len(found) if length is None else length)]
        if found == wanted:
            return
        at = next((i for i, (a, b) in enumerate(zip(found, wanted)) if a != b),
                  min(len(found), len(wanted)))
        raise Difference(f"{who} at {start}, {len(wanted)} bytes (got {len(found)}): other bytes "
                         f"from {start + at} on: {bytes(found[at:at + 16]).hex()}, not "
                         f"{bytes(wanted[at:at + 16]).hex()}; the file has {len(self.model)}")

    def expect_size(self, found, who):
        if found != len(self.model):
            raise Difference(f"{who}: {found} bytes, not {len(self.model)}")

    def note(self, *words):
        self.done.append(f"{self.mount}: " + " ".join(map(str, words)))
        del self.done[:-SHOWN]


def allocate(file, mode, start, length):
    """fallocate(2), which Python has without modes."""
    libc = ctypes.CDLL(None, use_errno=True)
    offset = ctypes.c_int64
    if libc.fallocate(file, mode, offset(start), offset(length)):
        number = ctypes.get_errno()
        raise OSError(number, f"fallocate: {os.strerror(number)}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--mounts", nargs="+", type=pathlib.Path, required=True,
                           help="one directory as each of the mounts shows it")
    arguments.add_argument("--operations", type=int, default=2000)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    options = arguments.parse_args()
    turns = Turns([mount / "alternate" for mount in options.mounts], options.seed)
    turns.paths[0].touch()
    count = 0
    try:
        while turns.operations < options.operations:
            turns.turn()
            count += 1
    except (Difference, OSError) as error:
        print("\n".join(turns.done))
        print(f"seed {options.seed}, turn {count}, mount {turns.mount}: {error}")
        return 1
    finally:
        turns.close()
    print(f"{turns.operations} operations in {count} turns of {len(turns.paths)} mounts on one "
          "file (reads, writes, truncates, holes, zeros, copies, mapped reads and writes): no "
          "difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
