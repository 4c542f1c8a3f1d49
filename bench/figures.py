"""Statistics of measurements, and their formatting."""

import dataclasses
import math

FEWEST_FOR_P99 = 200  # with fewer values, the 99th percentile would be the largest value or the one next to it


def quantile(ordered, share):
    """Returns a quantile, with linear interpolation between neighbours."""
    at = share * (len(ordered) - 1)
    below = math.floor(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


@dataclasses.dataclass(frozen=True)
class Spread:
    min: float
    p25: float
    p50: float
    p75: float
    max: float


def spread_of(values):
    ordered = sorted(values)
    return Spread(*(quantile(ordered, share) for share in (0, 0.25, 0.5, 0.75, 1)))


@dataclasses.dataclass(frozen=True)
class Summary:
    """Seconds per call; p99 is None for few calls."""

    min: float
    p50: float
    p99: float | None
    max: float
    mean: float
    calls: int


def summary_of(seconds):
    ordered = sorted(seconds)
    p99 = quantile(ordered, 0.99) if len(ordered) >= FEWEST_FOR_P99 else None
    return Summary(ordered[0], quantile(ordered, 0.5), p99, ordered[-1], sum(ordered) / len(ordered), len(ordered))


def quotients(numerators, denominators):
    """Returns the spread of the quotients per round."""
    if len(numerators) != len(denominators) or not numerators:
        raise ValueError(
            f"expected as many numerators as denominators, found {len(numerators)} and {len(denominators)}"
        )
    return spread_of([a / b for a, b in zip(numerators, denominators)])


def as_time(seconds):
    """Formats a time with three digits: '1.23 us'."""
    for unit, name in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            break
    else:
        unit, name = 1e-9, "ns"
    value = seconds / unit
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {name}"


def as_bytes(count):
    """Formats bytes: '64 MiB' if that is exact, else rounded: '1.15 GiB'."""
    units = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))
    for unit, name in units:
        if count >= unit and count % unit == 0 and count < 10_000 * unit:
            return f"{count // unit} {name}"
    for unit, name in units:
        if count >= unit:
            return f"{count / unit:.{3 if count < 1000 * unit else 4}g} {name}"
    return f"{count} B"
