"""Which executor runs a Program.

The default: the Triton loops on a GPU that they support, eager everywhere else. `TILEFOLD_BACKEND` or
`with backend("eager")` choose one; an executor that was asked for and can't run is an error, never a silent fall-back.
"""

from __future__ import annotations

import contextvars
import importlib.util
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch import Tensor

from ..errors import BackendError, OptionError, explain
from ..program import Program
from . import eager

BACKENDS = ("auto", "eager", "triton")
_chosen: contextvars.ContextVar[str | None] = contextvars.ContextVar("tilefold_backend", default=None)


def _checked(name: str, argument: str) -> str:
    if name not in BACKENDS:
        raise OptionError(explain(argument, repr(name), f"one of {', '.join(BACKENDS)}"))
    return name


@contextmanager
def backend(name: str) -> Iterator[None]:
    """Runs what is inside on one executor: "eager", "triton", or "auto" (the default choice).

    Raises:
        OptionError: for another name; BackendError, when something is computed that this executor can't run.
    """
    token = _chosen.set(_checked(name, "backend"))
    try:
        yield
    finally:
        _chosen.reset(token)


def requested() -> str:
    """The executor that was asked for, "auto" if none."""
    return _chosen.get() or _checked(os.environ.get("TILEFOLD_BACKEND", "auto"), "TILEFOLD_BACKEND")


@lru_cache(maxsize=1)
def _triton_missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "triton is not installed"


@lru_cache(maxsize=64)
def why_not_triton(device_type: str, device_index: int | None) -> str | None:
    """Why the Triton loops can't run on a device, or None."""
    if (missing := _triton_missing()) is not None:
        return missing
    if device_type == "cpu":
        return (
            None
            if os.environ.get("TRITON_INTERPRET") == "1"
            else "the tensors are on the CPU (TRITON_INTERPRET=1 interprets the loops there)"
        )
    if device_type != "cuda":
        return f"no Triton loops for {device_type} devices"
    if torch.version.hip is None and torch.cuda.get_device_capability(device_index) < (8, 0):
        major, minor = torch.cuda.get_device_capability(device_index)
        return f"the GPU is sm_{major}{minor}; the loops need sm_80 or newer"
    return None


@lru_cache(maxsize=64)
def _say_once(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def choose(program: Program, operands: Sequence[Tensor]) -> str:
    """ "eager" or "triton".

    Raises:
        BackendError: the executor that was asked for can't run this.
    """
    name = requested()
    if name == "eager" or (name == "auto" and operands[0].is_cpu):
        return "eager"
    device = operands[0].device
    reason = why_not_triton(device.type, device.index)
    if reason is None:
        from . import triton

        reason = triton.why_not(program, operands)
    if reason is None:
        return "triton"
    if name == "triton":
        raise BackendError(explain("backend", "'triton'", f"'eager' or 'auto' here, because {reason}"))
    _say_once(f"tilefold runs eagerly on {device.type}: {reason}")
    return "eager"


def run(
    program: Program,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    payload_dtypes: Sequence[torch.dtype],
    read: tuple[bool, ...] = (),
) -> list[Tensor]:
    """The results of a Program's outputs, in order, from the executor that is chosen; `read`: see eager.run."""
    if choose(program, operands) == "eager":
        # what is computed there is wide already, and its derivative is another Program
        with torch._C._AutoDispatchBelowAutograd():
            if torch._C._is_any_autocast_enabled():
                with torch._C._DisableAutocast():
                    return eager.run(program, operands, batch, n, k, payload_dtypes, read)
            return eager.run(program, operands, batch, n, k, payload_dtypes, read)
    from . import triton

    return triton.run(program, operands, batch, n, k, payload_dtypes)
