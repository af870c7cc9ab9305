"""Checks that need the data: always on the CPU; on a GPU, where they would wait for it, only in debug mode."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_enabled = False


@contextmanager
def debug(enabled: bool = True) -> Iterator[None]:
    """Inside, checks of the data itself (a label out of range) also run on a GPU, and wait for it.

    Without it a row with such data becomes NaN there.
    """
    global _enabled
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


def can_look_at(t: Tensor) -> bool:
    """Whether the data of a tensor may be read: a real tensor, outside tracing and function transforms."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active() or isinstance(t, torch._subclasses.FakeTensor):
        return False
    return t.device.type == "cpu" or (_enabled and t.device.type != "meta")
