"""Makes a data set of real pictures: JPEG files of 50-200 KB in ten class folders.

The pictures are cut from photographs that the scikit-image and scikit-learn packages ship, one
photograph a class, so nothing is downloaded. The same seed gives the same files, whatever the
number of processes. Also makes a large file of deterministic pseudo-random bytes.
"""

import argparse
import concurrent.futures
import hashlib
import importlib.util
import io
import os
import pathlib
import random

# Class folder -> (package, path inside the package).
PHOTOGRAPHS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}
BYTES_MIN = 50_000
BYTES_MAX = 200_000
# Tried in order until a cut has a size within the bounds; 480 pixels is a usual training input
# before random cropping to 224.
SIDES_PIXELS = (480, 640, 800, 1000, 1400)
QUALITIES = (94, 85, 70)
BLOCK_BYTES = 1 << 20


def photograph_path(name):
    """Where the package has the photograph, found without importing the package."""
    package, path = PHOTOGRAPHS[name]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise SystemExit(f"dataset: package {package} is missing (pip install --no-deps)")
    return pathlib.Path(spec.origin).parent / path


def cut(photograph, generator):
    """One JPEG of a random part of the photograph, between BYTES_MIN and BYTES_MAX long."""
    from PIL import Image, ImageOps

    edge = int(min(photograph.size) * generator.uniform(0.5, 0.95))
    left = generator.randrange(photograph.width - edge + 1)
    top = generator.randrange(photograph.height - edge + 1)
    part = photograph.crop((left, top, left + edge, top + edge))
    if generator.random() < 0.5:
        part = ImageOps.mirror(part)
    for side in SIDES_PIXELS:
        scaled = part.resize((side, side), Image.BILINEAR)
        for quality in QUALITIES:
            buffer = io.BytesIO()
            scaled.save(buffer, "JPEG", quality=quality)
            if buffer.tell() < BYTES_MIN:
                break
            if buffer.tell() <= BYTES_MAX:
                return buffer.getvalue()
    raise AssertionError("no size and quality gives a file within the bounds")


def make_class(directory, name, count, seed):
    """Writes `count` pictures of one class; returns their bytes in total."""
    from PIL import Image

    folder = pathlib.Path(directory) / name
    folder.mkdir(parents=True, exist_ok=True)
    with Image.open(photograph_path(name)) as opened:
        photograph = opened.convert("RGB")
    total = 0
    for index in range(count):
        generator = random.Random(f"{seed}/{name}/{index}")
        body = cut(photograph, generator)
        (folder / f"{name}-{index:05}.jpg").write_bytes(body)
        total += len(body)
    return total


def make_pictures(directory, count, seed=1):
    """Writes `count` pictures, spread evenly over the classes; returns their bytes in total."""
    names = sorted(PHOTOGRAPHS)
    counts = [count // len(names) + (index < count % len(names)) for index in range(len(names))]
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
        jobs = [
            pool.submit(make_class, directory, name, number, seed)
            for name, number in zip(names, counts)
        ]
        return sum(job.result() for job in jobs)


def random_blocks(size_bytes, seed=1):
    """The blocks of a large file: pseudo-random, so that nothing can compress or confuse them."""
    key = hashlib.sha256(f"large file {seed}".encode()).digest()
    base = random.Random(key).randbytes(BLOCK_BYTES)
    left = size_bytes
    index = 0
    while left:
        # Each block is the base with its own number in front of every 4 KiB page: cheap, and two
        # pages of the file are never the same.
        block = bytearray(base)
        for page in range(0, BLOCK_BYTES, 4096):
            block[page : page + 8] = (index * BLOCK_BYTES + page).to_bytes(8, "little")
        length = min(left, BLOCK_BYTES)
        yield bytes(block[:length])
        left -= length
        index += 1


def make_large_file(path, size_bytes, seed=1):
    """Writes the large file and returns its sha256."""
    digest = hashlib.sha256()
    with open(path, "wb") as file:
        for block in random_blocks(size_bytes, seed):
            file.write(block)
            digest.update(block)
    return digest.hexdigest()


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--dir", required=True, help="folder that the class folders go into")
    arguments.add_argument("--count", type=int, default=2_000, help="number of pictures")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--large-file", help="also write a large file here")
    arguments.add_argument("--large-bytes", type=int, default=1 << 30)
    options = arguments.parse_args()
    total = make_pictures(options.dir, options.count, options.seed)
    print(f"{options.count} pictures, {total / 1e6:.0f} MB")
    if options.large_file:
        make_large_file(options.large_file, options.large_bytes, options.seed)
        print(f"{options.large_file}, {options.large_bytes / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
