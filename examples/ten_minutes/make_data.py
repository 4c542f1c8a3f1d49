"""Writes files in the format and sizes of MNIST: ten patterns that a network learns at once."""
import pathlib
import random
import struct
import sys


def write(folder, name, count, seed):
    chance = random.Random(seed)
    patterns = [bytes(random.Random(digit).choices((0, 0, 0, 255), k=784)) for digit in range(10)]
    labels = bytes(chance.choices(range(10), k=count))
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
    (folder / f"{name}-images-idx3-ubyte").write_bytes(
        struct.pack(">IIII", 2051, count, 28, 28) + b"".join(patterns[label] for label in labels))


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    write(target, "train", 60000, 1)
    write(target, "t10k", 10000, 2)
