"""A roofline over plain counts: the slowest resource gives the time, since a good kernel overlaps the others."""

from __future__ import annotations

from dataclasses import dataclass

from .description import Machine


@dataclass(frozen=True)
class Counts:
    """What a computation asks for: matrix flops by dtype, bytes of device memory, exponentials, other operations."""

    flops: tuple[tuple[str, float], ...] = ()
    bytes: float = 0.0
    exps: float = 0.0
    ops: float = 0.0
    launches: int = 0

    def __add__(self, other: Counts) -> Counts:
        flops = dict(self.flops)
        for dtype, count in other.flops:
            flops[dtype] = flops.get(dtype, 0.0) + count
        return Counts(
            tuple(sorted(flops.items())),
            self.bytes + other.bytes,
            self.exps + other.exps,
            self.ops + other.ops,
            self.launches + other.launches,
        )


@dataclass(frozen=True)
class Estimate:
    """Seconds, the resource that sets them, and what each resource alone would take."""

    seconds: float
    bound: str
    terms: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        terms = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in self.terms if seconds > 0)
        return f"{self.seconds * 1e3:.3g} ms, bound by {self.bound} ({terms})"


def roofline(machine: Machine, counts: Counts) -> Estimate:
    """The least time `counts` can take on `machine`; launches are a floor, not a sum, since they overlap what runs."""
    terms = (
        ("matmul", sum(count / machine.matmul_rate(dtype) for dtype, count in counts.flops)),
        ("memory", counts.bytes / machine.bandwidth),
        ("exp", counts.exps / machine.exps),
        ("ops", counts.ops / machine.ops),
        ("launch", counts.launches * machine.launch),
    )
    bound, seconds = max(terms, key=lambda term: term[1])
    return Estimate(seconds, bound, terms)
