"""Writes files in MNIST's format and sizes, or with a tenth of its images: patterns that a network learns at once.

    make_data.py FOLDER [--tenth]
"""
import os
import pathlib
import random
import struct
import sys


def write_whole(file, content):
    """Under its name there is never half of it, also when two programs write the same."""
    part = file.with_name(f"{file.name}.{os.getpid()}")
    part.write_bytes(content)
    part.replace(file)


def write(folder, name, count, seed):
    chance = random.Random(seed)
    patterns = [bytes(random.Random(digit).choices((0, 0, 0, 255), k=784)) for digit in range(10)]
    labels = bytes(chance.choices(range(10), k=count))
    write_whole(folder / f"{name}-labels-idx1-ubyte", struct.pack(">II", 2049, count) + labels)
    write_whole(folder / f"{name}-images-idx3-ubyte",
                struct.pack(">IIII", 2051, count, 28, 28) + b"".join(patterns[label] for label in labels))


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    part = 10 if "--tenth" in sys.argv else 1
    write(target, "train", 60000 // part, 1)
    write(target, "t10k", 10000 // part, 2)
