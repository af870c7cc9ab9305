"""The levels of docs/levels: one log-sum-exp five times, from the materialised scores to the warp-specialised loop."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from ..case import Data, Impl, Setting, bare_matmul, sample
from .rows import LOGSUMEXP

FOLDER = Path(__file__).parents[2] / "docs" / "levels"
ON_CPU = (1, 2, 5)
TOLERANCE = 1e-3  # more than scores rounded to 16 bits make; leaving out 128 of 8192 columns would be 0.016


@functools.cache
def level(number: int) -> ModuleType:
    """The file of a level, which has `logsumexp(x, y)`. The folder of a page is no package."""
    (path,) = FOLDER.glob(f"level{number}_*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    x, y = data["x"], data["y"]

    def ready(number: int) -> Callable[[], Any]:
        return partial(level(number).logsumexp, x, y)

    for number in range(1, 6) if x.is_cuda else ON_CPU:
        yield Impl(f"level-{number}" if number < 5 else "tilefold", partial(ready, number), named=True)
    if x.is_cuda:
        yield Impl("cublas", lambda: bare_matmul(LOGSUMEXP.work(setting).flops, x.dtype, x.device), named=True)


def _check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    rows = sample(len(out), 32, out.device)
    ref = (data["x"][rows].double() @ data["y"].double().T).logsumexp(-1)
    error = float((out[rows] - ref).abs().max())
    return None if error <= TOLERANCE else f"result is off by {error:.3g}, allowed {TOLERANCE}"  # NaN is off


LEVELS = replace(
    LOGSUMEXP,
    name="levels",
    settings=(
        Setting({"N": 65536, "K": 8192, "D": 128}, "float16", target=True),
        Setting({"N": 8192, "K": 8192, "D": 128}, "float16", target=True),
        Setting({"N": 8192, "K": 8192, "D": 64}, "float32", "cpu", target=True),
    ),
    impls=_impls,
    check=_check,
    about="log-sum-exp from the naive form to the specialised loop, as docs/levels has it",
)
