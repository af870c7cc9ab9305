"""How good the choice of tiles is: combinations of what the specialised loops can be given, beside the chosen ones.

    python -m benchmarks.sweep --json OUT.json [--only NAME ...]

Needs a GPU of sm_90. Kernels are compiled first, in as many processes as there are cores. Configurations that do not
fit (shared memory, registers) are left out; a choice that is more than 5 % slower than the best one is marked.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import multiprocessing
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tilefold as tf
from tilefold.execute import select

from .timing import medians

ALLOWED = 1.05
PAYLOAD = {"groups": (2, 3), "bk": (64, 128), "stages": (2, 3, 4), "turns": (False, True)}
PLAIN = {"groups": (2, 3), "bk": (64, 128), "stages": (2, 3, 4), "stretches": (1, 2)}
COLUMNS = {"stages": (2, 3), "exchanges": (1, 2), "strips": (1, 2, 4)}


@dataclass(frozen=True)
class Shape:
    """A call to time, and the fields of its tiles with their values."""

    name: str
    fields: dict[str, tuple[Any, ...]]
    make: Callable[[torch.device, bool], Callable[[], Any]]  # the second argument: small, only to compile

    def configurations(self) -> Iterator[dict[str, Any]]:
        yield {}  # the choice
        yield {"loop": "portable"}
        for values in itertools.product(*self.fields.values()):
            yield dict(zip(self.fields, values, strict=True))


def attention(d: int, s: int, causal: bool, backward: bool) -> Shape:
    def make(device: torch.device, small: bool) -> Callable[[], Any]:
        batch, heads, length = (1, 1, 256) if small else (max(1, 32768 // s), 2048 // d, s)
        q, k, v = (
            torch.randn(batch, heads, length, d, device=device, dtype=torch.bfloat16, requires_grad=backward)
            for _ in range(3)
        )
        if not backward:
            return lambda: tf.attention(q, k, v, causal=causal)
        out = tf.attention(q, k, v, causal=causal)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    name = f"attention_{'bwd' if backward else 'fwd'} D={d} S={s}{' causal' if causal else ''}"
    return Shape(name, COLUMNS if backward else PAYLOAD, make)


def rows(fold: tf.Fold, d: int, k: int) -> Shape:
    def make(device: torch.device, small: bool) -> Callable[[], Any]:
        n = 512 if small else 1 << 19
        x, y = (torch.randn(m, d, device=device, dtype=torch.float16) for m in (n, k))
        return lambda: tf.fold(tf.scores(x, y), fold)

    return Shape(f"{type(fold).__name__} D={d} K={k}", PLAIN, make)


SHAPES = (
    *(attention(d, s, c, False) for d in (64, 128, 256) for s in (1024, 8192) for c in (False, True)),
    *(rows(f, d, k) for f in (tf.LogSumExp(), tf.ArgMax()) for d in (64, 128, 256) for k in (1024, 8192)),
    *(attention(d, s, c, True) for d in (64, 128) for s in (2048, 8192) for c in (False, True)),
)


def called(shape: Shape, forced: dict[str, Any], device: torch.device, small: bool) -> Callable[[], Any]:
    """The call under a configuration. Raises what compiling or launching it raises."""
    with select.using(**forced):
        run = shape.make(device, small)
        run()
    torch.cuda.synchronize(device)

    def under() -> Any:
        with select.using(**forced):
            return run()

    return under


def compile_one(number: int, forced: dict[str, Any]) -> None:
    with contextlib.suppress(Exception):  # it is asked again, and left out, where it is timed
        called(SHAPES[number], forced, torch.device("cuda"), True)


def sweep(shapes: list[int], device: torch.device, seconds: float) -> list[dict[str, Any]]:
    jobs = [(i, forced) for i in shapes for forced in SHAPES[i].configurations()]
    workers = max(1, (os.cpu_count() or 2) - 2)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        list(pool.map(compile_one, *zip(*jobs, strict=True)))
    found = []
    for i in shapes:
        calls: dict[str, Callable[[], Any]] = {}
        for forced in SHAPES[i].configurations():
            name = ", ".join(f"{k} {v}" for k, v in forced.items()) or "chosen"
            try:
                calls[name] = called(SHAPES[i], forced, device, False)
            except Exception as error:
                print(f"{SHAPES[i].name}: {name} left out, {str(error).splitlines()[0][:80]}", flush=True)
        times, _ = medians(calls, device, seconds)
        best = min(times, key=lambda name: times[name])
        ratio = times["chosen"] / times[best]
        mark = "" if ratio <= ALLOWED else "  <- more than 5 % slower"
        print(
            f"{SHAPES[i].name}: {len(times)} of them, chosen {times['chosen']:.3f} ms, {ratio:.2f} x {best}{mark}",
            flush=True,
        )
        found.append({"shape": SHAPES[i].name, "ratio": ratio, "best": best, "ms": times})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", help="shapes whose name contains one of these")
    parser.add_argument("--seconds", type=float, default=1.0, help="of timing for a shape")
    a = parser.parse_args()
    if not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9:
        parser.error("the warp-specialised loops run on a GPU of sm_90; there is none")
    chosen = [i for i, s in enumerate(SHAPES) if not a.only or any(part in s.name for part in a.only)]
    found = sweep(chosen, torch.device("cuda"), a.seconds)
    a.json.write_text(json.dumps(found, indent=1) + "\n")
    worst = max(found, key=lambda r: float(r["ratio"]))
    print(f"{len(found)} shapes; the worst choice, {worst['shape']}: {worst['ratio']:.2f} x the best")


if __name__ == "__main__":
    main()
