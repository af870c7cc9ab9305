"""What a reduction of scores will do: executor, tiles, what it moves, how long that takes at best, what is saved."""

from __future__ import annotations

from dataclasses import dataclass

from . import machine
from .execute import backend, counts
from .folds.fold import Fold
from .machine import Counts, Estimate
from .program import Program
from .scores import Scores
from .scores.api import assemble, check_folds
from .scores.core import Normalized

MIB = 2.0**20


@dataclass(frozen=True)
class Explanation:
    """The fields of `explain`; printing it gives the text.

    program      what is computed, one line an output
    executor     "eager" or "triton", and why
    tiles        the tiles and their reason, one line a kernel
    fused        counts and least time in one pass
    materialised counts and least time with the scores in memory
    matrix_mib   MiB of one [N, K] matrix, which is never written
    source       the generated pointwise functions; empty for eager
    """

    program: str
    machine: str
    executor: str
    tiles: tuple[str, ...]
    fused: tuple[Counts, Estimate]
    materialised: tuple[Counts, Estimate]
    matrix_mib: float
    source: str = ""

    @property
    def gain(self) -> float:
        """Predicted time of the materialised form over that of the fused one."""
        return self.materialised[1].seconds / self.fused[1].seconds

    def __str__(self) -> str:
        one, many = self.fused, self.materialised
        verdict = "worth fusing" if self.gain > 1.05 else "fusing saves memory here, not time"
        lines = [
            self.program,
            f"machine   {self.machine}",
            f"executor  {self.executor}",
            *(f"tiles     {t}" for t in self.tiles),
            f"fused     {one[0].bytes / MIB:.1f} MiB moved; at best {one[1]}",
            f"in memory {many[0].bytes / MIB:.1f} MiB moved; at best {many[1]}",
            f"saved     a matrix of {self.matrix_mib:.1f} MiB; predicted {self.gain:.2f} x: {verdict}",
        ]
        if self.source:
            lines += ["", self.source]
        return "\n".join(lines)


def explain(s: Scores | Normalized, *every: Fold) -> Explanation:
    """What `tf.fold(s, *every)` does, without running it.

    Predictions are lower bounds from rates and counts, not measurements.

    Args:
        s: scores
        every: the folds, as for `fold`
    Raises:
        as `fold`; nothing is computed
    """
    made = assemble(s.scores if isinstance(s, Normalized) else s, check_folds(every))
    program = Program.parse(made.program)
    *batch, n, k = made.sizes
    sizes = (tuple(batch), n, k)
    device = made.operands[0].device
    here = machine.of(device)
    name = backend.choose(program, made.operands)
    if name == "triton":
        from .execute import triton

        why, tiles, source = "", triton.explain_tiles(program, made.operands, *sizes), triton.generated_source(program)
    else:
        from .execute import eager

        wide = 8 if any(t.element_size() == 8 for t in made.operands) else 4
        why = backend.why_not_triton(device.type, device.index) or "asked for"
        bn, bk = eager.tiles(n, k, wide, eager.CACHE)
        held = f"{bn * bk * wide / MIB:.2f} MiB of scores at a time, from {eager.CACHE / MIB:.0f} MiB of cache"
        tiles, source = (f"{bn} x {bk}: {held}",), ""
    one = counts.fused(program, made.operands, *sizes)
    many = counts.materialised(program, made.operands, *sizes)
    return Explanation(
        str(program),
        f"{here.name} (rates: {here.source})",
        f"{name}: {why}" if why else name,
        tuple(tiles),
        (one, machine.roofline(here, one)),
        (many, machine.roofline(here, many)),
        counts.matrix_bytes(program, made.operands, *sizes) / MIB,
        source,
    )
