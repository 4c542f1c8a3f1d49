"""Types of the options of `./dev bench`: each function returns or is a `type` of argparse, whose error says what was
expected.
"""

import argparse

UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def words(known):
    """Parses several of the known words or numbers, separated by commas."""
    by_text = {str(word): word for word in known}

    def parsed(text):
        for word in text.split(","):
            if word not in by_text:
                listed = ", ".join(by_text) if len(by_text) < 20 else f"{min(known)} to {max(known)}"
                raise argparse.ArgumentTypeError(f"unknown '{word}'; known: {listed}")
        return [by_text[word] for word in text.split(",")]

    return parsed


def number(least, most):
    """Parses an integer from least to most."""

    def parsed(text):
        if not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"expected an integer from {least} to {most}, found '{text}'")
        return int(text)

    return parsed


def seconds(text):
    """Parses 0.0001 to 60."""
    try:
        if 1e-4 <= float(text) <= 60:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected 0.0001 to 60 seconds, found '{text}'")


def model_size(text):
    """Parses '4096x12' as (width, layers)."""
    width, times, depth = text.partition("x")
    if not times or not width.isdigit() or not depth.isdigit() or not int(width) or not int(depth):
        raise argparse.ArgumentTypeError(f"expected width x layers such as 4096x12, found '{text}'")
    return int(width), int(depth)


def byte_count(text):
    """Parses bytes: '1KiB', '64MiB', '4096', '12 MB'."""
    digits = text.rstrip("BbKkMmGgTti ")
    unit = text[len(digits) :].strip().lower()
    try:
        count = int(float(digits) * UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        count = 0
    if count <= 0:
        raise argparse.ArgumentTypeError(f"expected bytes such as 1KiB, 64MiB or 4096, found '{text}'")
    return count


def byte_counts(text):
    return [byte_count(size) for size in text.split(",")]
