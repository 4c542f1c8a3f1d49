#!/usr/bin/env python3
"""Reports the result of the demo from the run's files: the loss, the bigram bound, and the paths of the files.

The bound is the cross-entropy of a model that knows only the last character. If the loss is not well below the bound,
the model has not learned, and this script exits with 1.
"""
import pathlib
import re
import sys

MARGIN = 0.3  # nats per character


def main(folder):
    line = (folder / "result.txt").read_text().strip()
    figures = dict(re.findall(r"(\w+)=([-+.\deE]+)", line))
    loss, bigram = float(figures["val_loss"]), float(figures["bigram"])
    print(f"validation loss {loss:.3f} nats a character; a bigram model reaches {bigram:.3f}")
    print(f"the run's files are in {folder}/:")
    for path in sorted(folder.iterdir()):
        print(f"  {path.name}{'/' if path.is_dir() else ''}")
    if loss > bigram - MARGIN:
        print(f"expected a loss below {bigram - MARGIN:.3f}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
