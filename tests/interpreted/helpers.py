"""Programs by hand, run by the Triton loops and by eager."""

import contextlib

import torch

from tilefold.execute import eager, select
from tilefold.execute import triton as loops

TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-5, torch.float64: 1e-12}


def both(program, operands, batch=(), n=None, k=None, dtypes=None, tiles=None):
    """The results of both executors."""
    n = (
        n
        if n is not None
        else next(t.shape[-2] for t, kind in zip(operands, program.operands, strict=True) if kind == "rows")
    )
    k = (
        k
        if k is not None
        else next(t.shape[-2] for t, kind in zip(operands, program.operands, strict=True) if kind == "cols")
    )
    dtypes = dtypes or [operands[0].dtype] * len(program.outputs)
    assert loops.why_not(program, operands) is None
    with select.using(**tiles) if tiles else contextlib.nullcontext():
        ours = loops.run(program, operands, batch, n, k, dtypes)
    return ours, eager.run(program, operands, batch, n, k, dtypes)


def assert_same(program, operands, batch=(), n=None, k=None, dtypes=None, tiles=None, tolerance=None):
    ours, theirs = both(program, operands, batch, n, k, dtypes, tiles)
    assert len(ours) == len(theirs)
    lowest = min((t.dtype for t in operands if t.is_floating_point()), key=lambda d: torch.finfo(d).bits)
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype, (i, a.shape, b.shape, a.dtype, b.dtype)
        if a.is_floating_point():
            # max-norm: relative to the largest finite value of the tensor
            scale = float(b.double()[b.isfinite()].abs().max()) if bool(b.isfinite().any()) else 1.0
            tol = (tolerance or TOLERANCE[lowest]) * max(scale, 1e-6)
            torch.testing.assert_close(
                a.double(), b.double(), rtol=0, atol=tol, equal_nan=True, msg=lambda m, i=i: f"result {i}: {m}"
            )
        else:
            assert torch.equal(a, b), (i, (a != b).nonzero()[:5], a[a != b][:5], b[a != b][:5])
    return ours
