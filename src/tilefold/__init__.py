"""tilefold: say how a score is made and how each row of scores is reduced; the [N, K] scores are never written."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    **dict.fromkeys(
        ("Scores", "col_index", "debug", "fold", "mask", "outer", "row_index", "scores", "stream"), "scores"
    ),
    **dict.fromkeys(("attention", "contrastive_loss", "cross_entropy", "knn", "linear_cross_entropy", "sample"), "ops"),
    **dict.fromkeys(
        (
            *("ArgMax", "ArgMin", "BottomK", "Count", "Fold", "Gather", "LogSumExp", "Max", "Mean", "Min"),
            *("Sample", "SoftmaxSum", "Sum", "TopK", "Variance", "WeightedSum", "register"),
        ),
        "folds",
    ),
    "backend": "execute.backend",
    "explain": "explain",
}
__all__ = [
    "ArgMax",
    "ArgMin",
    "BottomK",
    "Count",
    "Fold",
    "Gather",
    "LogSumExp",
    "Max",
    "Mean",
    "Min",
    "Sample",
    "Scores",
    "SoftmaxSum",
    "Sum",
    "TopK",
    "Variance",
    "WeightedSum",
    "attention",
    "backend",
    "col_index",
    "compat",
    "contrastive_loss",
    "cross_entropy",
    "debug",
    "errors",
    "explain",
    "fold",
    "knn",
    "linear_cross_entropy",
    "mask",
    "outer",
    "register",
    "row_index",
    "sample",
    "scores",
    "stream",
]

if TYPE_CHECKING:
    from . import compat, errors
    from .execute.backend import backend
    from .explain import explain
    from .folds import (
        ArgMax,
        ArgMin,
        BottomK,
        Count,
        Fold,
        Gather,
        LogSumExp,
        Max,
        Mean,
        Min,
        Sample,
        SoftmaxSum,
        Sum,
        TopK,
        Variance,
        WeightedSum,
        register,
    )
    from .ops.attention import attention
    from .ops.contrastive import contrastive_loss
    from .ops.cross_entropy import cross_entropy, linear_cross_entropy
    from .ops.knn import knn
    from .ops.sample import sample
    from .scores import Scores, col_index, fold, mask, outer, row_index, scores, stream
    from .scores.debug import debug


def __getattr__(name: str) -> Any:
    if name in ("compat", "errors"):
        return importlib.import_module(f".{name}", __name__)
    if name not in _HOME:
        raise AttributeError(f"module 'tilefold' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Where a public name is also a subpackage's (`scores`), importing that one must not put it in the name's place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

# torch's operators are registered at once: an exported program that is loaded names them before anything here is called
importlib.import_module(".execute.operator", __name__)
