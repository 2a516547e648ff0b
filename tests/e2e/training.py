"""Trains a small network with real PyTorch on a folder of pictures, as a user would.

Knows nothing of Millrace. Prints one line of JSON after each epoch and after the checkpoint, and
waits for a line on standard input before the next step, so that the caller can look around in
between.
"""

import argparse
import json
import os
import sys
import time

import torch
from torch import nn
from torchvision import datasets, transforms

PICTURE_PIXELS = 64
BATCH = 32


def network(classes):
    """Two convolutions and a linear layer: small, because the data is what is tested."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes),
    )


def loader(folder, workers):
    """What every tutorial shows: ImageFolder, shuffled, read by several processes."""
    steps = [transforms.RandomResizedCrop(PICTURE_PIXELS), transforms.ToTensor()]
    pictures = datasets.ImageFolder(folder, transforms.Compose(steps))
    data = torch.utils.data.DataLoader(pictures, BATCH, shuffle=True, num_workers=workers)
    return pictures, data


def train_epoch(model, data):
    """One pass over the data; returns (pictures seen, mean loss)."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    measure = nn.CrossEntropyLoss()
    seen, total = 0, 0.0
    for pictures, labels in data:
        optimizer.zero_grad()
        loss = measure(model(pictures), labels)
        loss.backward()
        optimizer.step()
        seen += len(labels)
        total += float(loss.detach()) * len(labels)
    return seen, total / max(seen, 1)


def save(model, path, size_bytes):
    """torch.save of the model with an optimizer-like state of `size_bytes`, then fsync."""
    generator = torch.Generator().manual_seed(1)
    state = torch.randn(size_bytes // 4, generator=generator)
    torch.save({"model": model.state_dict(), "state": state}, path)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def say(**fields):
    print(json.dumps(fields), flush=True)
    if not sys.stdin.readline():
        sys.exit("training: the caller has gone")


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--data", required=True, help="folder with one folder a class")
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--workers", type=int, default=4)
    arguments.add_argument("--checkpoint", help="where to save the model")
    arguments.add_argument("--checkpoint-bytes", type=int, default=520_000_000)
    options = arguments.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    pictures, data = loader(options.data, options.workers)
    model = network(len(pictures.classes))
    for epoch in range(1, options.epochs + 1):
        begun = time.monotonic()
        seen, loss = train_epoch(model, data)
        seconds = time.monotonic() - begun
        say(epoch=epoch, classes=len(pictures.classes), seen=seen, loss=loss, seconds=seconds)
    if options.checkpoint:
        begun = time.monotonic()
        save(model, options.checkpoint, options.checkpoint_bytes)
        say(checkpoint=options.checkpoint, seconds=time.monotonic() - begun)


if __name__ == "__main__":
    main()
