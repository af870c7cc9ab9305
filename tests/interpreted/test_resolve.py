"""The kernel that looks again at rows which the warp-specialised arg-max leaves unsettled; the loop itself needs a GPU."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import tilefold as tf
from tilefold.execute import backend
from tilefold.execute.hopper.resolve import resolve_kernel
from tilefold.execute.triton import generate
from tilefold.folds.argmax_jit import UNSETTLED

N, K, D = 37, 150, 24


def settle(make: Any, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The columns that the kernel puts in the place of codes, and eager's."""
    calls: list[Any] = []
    run = backend.run

    def keep(*args: Any) -> Any:
        calls.append(args)
        return run(*args)

    with mock.patch.object(backend, "run", keep), tf.backend("eager"):
        want = make()
    program, operands, _, n, k, *_ = calls[-1]
    source = generate.source_of(program, False, "specialised")
    module = generate.load(source.text)
    own = {"x": (-2, -1), "y": (-2, -1), "row": (-2,), "col": (-1,), "scalar": ()}
    given: list[Any] = []
    for group, dims in own.items():
        members = getattr(source, group)
        given += [
            tuple(operands[i] for i in members),
            tuple(tuple(operands[i].stride(d) for d in dims) for i in members),
        ]
    types = [tuple((source.types[i], 1) for i in getattr(source, g)) for g in ("row", "col", "scalar")]
    index = codes.clone()
    resolve_kernel[(3,)](
        index, *given, source.floats, source.ints, n, k, (), n, module.row_part, module.bounds, module.score, module.test, source.tested,
        source.mask, len(source.row), types[0], len(source.col), types[1], len(source.scalar), types[2], 0, D, 32, 16, 32,
    )  # fmt: skip
    return index, want


def points() -> tuple[Tensor, Tensor]:
    return torch.randn(N, D).half(), torch.randn(K, D).half()


@pytest.mark.parametrize("start", [0, 64])
def test_first_nan_from_the_place_on(start: int) -> None:
    x, y = points()
    y[77] = torch.nan
    found, want = settle(lambda: tf.scores(x, y).argmax(-1), torch.full((N,), int(UNSETTLED.value) + start))
    assert torch.equal(found, want) and bool((want == 77).all())


def test_first_of_nothing_but_minus_infinity() -> None:
    x, y = points()
    column = torch.full((K,), -torch.inf)
    s = (tf.scores(x, y) + column).visible(tf.mask.window(0, None))
    found, want = settle(lambda: s.argmax(-1), torch.full((N,), int(UNSETTLED.value)))
    assert torch.equal(found, want) and want.tolist() == list(range(N))


def test_settled_columns_stay() -> None:
    x, y = points()
    x[3] = torch.nan
    codes = torch.arange(N)
    codes[3] += int(UNSETTLED.value)
    found, _ = settle(lambda: tf.scores(x, y).argmax(-1), codes)
    codes[3] = 3  # the place is where to look from, and every score of the row is NaN
    assert torch.equal(found, codes)
