"""The reductions: one file a fold, and beside it, in *_jit.py, its Triton functions."""

from .fold import Cost, Fold, Pullback, Result, State, finite, lookup, register, registered
from .logsumexp import LogSumExp
from .maximum import ArgMax, ArgMin, Gather, Max, Min
from .moments import Count, Mean, Variance
from .sample import Sample, gumbel
from .softmax_sum import SoftmaxSum
from .sum import Sum, WeightedSum
from .topk import BottomK, TopK

__all__ = [
    "ArgMax",
    "ArgMin",
    "BottomK",
    "Cost",
    "Count",
    "Fold",
    "Gather",
    "LogSumExp",
    "Max",
    "Mean",
    "Min",
    "Pullback",
    "Result",
    "Sample",
    "SoftmaxSum",
    "State",
    "Sum",
    "TopK",
    "Variance",
    "WeightedSum",
    "finite",
    "gumbel",
    "lookup",
    "register",
    "registered",
]
