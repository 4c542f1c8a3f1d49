"""The rows that `./dev bench collectives` measures."""

import dataclasses
import sys

from contenders import Failed
from figures import as_bytes

KIB, MIB = 1 << 10, 1 << 20
OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "reduce",
    "gather",
    "scatter",
    "barrier",
)
ELEMENT_BYTES = 4
BEYOND_CACHES = 1 << 27  # bytes moved
# Sizes from one cache line up to sizes that exceed the caches; 25 MiB is the bucket size of DDP.
MIDDLE_SIZES = (2 * KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 25 * MIB, 32 * MIB)


@dataclasses.dataclass(frozen=True)
class Row:
    """An operation of one size on a number of ranks."""

    op: str
    bytes: int  # bytes of the larger of a rank's two tensors
    ranks: int
    outsider: bool = False  # with a process beside it that never sleeps

    def title(self):
        size = "" if self.op == "barrier" else " " + as_bytes(self.bytes)
        return f"{self.op}{size}, {self.ranks} ranks{', beside a busy process' if self.outsider else ''}"

    def bus_share(self):
        """Returns bus bandwidth over algorithm bandwidth (NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
        others = (self.ranks - 1) / self.ranks
        return {"all_reduce": 2 * others, "broadcast": 1, "reduce": 1}.get(self.op, others)

    def bytes_moved(self):
        return 2 * self.ranks * self.bytes

    def has_bound(self):
        return self.op == "all_reduce" and not self.outsider and self.bytes_moved() >= BEYOND_CACHES


def even_bytes(op, count, ranks):
    """Rounds bytes to equally many fp32 numbers per rank; a barrier moves none."""
    part = ELEMENT_BYTES * ranks
    return 0 if op == "barrier" else max(part, count // part * part)


def usual_rows():
    rows = [Row("all_reduce", size, 2) for size in (KIB, *MIDDLE_SIZES, 64 * MIB, 256 * MIB)]
    rows += [Row(op, 64 * MIB, 2) for op in ("all_gather", "reduce_scatter", "broadcast", "all_to_all")]
    return rows + [
        Row("all_reduce", size, ranks, outsider)
        for ranks in (4, 8)
        for outsider in (False, True)
        for size in (KIB, 64 * MIB)
    ]


def chosen_rows(options):
    return [
        Row(op, size, ranks, outsider)
        for ranks in options.ranks or [2]
        for op in options.op or ["all_reduce"]
        for size in options.sizes or [KIB, 64 * MIB]
        for outsider in ((False, True) if options.outsider else (False,))
    ]


def free_bytes():
    with open("/proc/meminfo", encoding="utf-8") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def rows_of(options):
    """Returns the rows in measuring order: by number of ranks."""
    usual = not (options.op or options.sizes or options.ranks)
    rows = []
    for row in usual_rows() if usual else chosen_rows(options):
        # A rank of every system holds an input and an output at once; ours holds them in two kinds of memory.
        tensors = 2 * row.ranks * (len(options.peers) + 2)
        if row.bytes > free_bytes() // tensors:
            text = (
                f"{row.title()}: all systems together need {tensors} times {as_bytes(row.bytes)}, and "
                f"{as_bytes(free_bytes())} are free"
            )
            if not usual:
                raise Failed(text)
            print(f"left out: {text}", file=sys.stderr)
            continue
        rows.append(dataclasses.replace(row, bytes=even_bytes(row.op, row.bytes, row.ranks)))
    return list(dict.fromkeys(sorted(rows, key=lambda row: row.ranks)))
