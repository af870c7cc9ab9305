"""What is to be computed: expressions of a score, folds along an axis, a mask; and the gradient, again a Program."""

from .derive import gradients
from .expr import Const, Data, Expr, Index, Leaf, Op, Size, lift, op, remap, rewrite, transpose, walk
from .program import KINDS, Mask, Output, Program

__all__ = [
    "KINDS",
    "Const",
    "Data",
    "Expr",
    "Index",
    "Leaf",
    "Mask",
    "Op",
    "Output",
    "Program",
    "Size",
    "gradients",
    "lift",
    "op",
    "remap",
    "rewrite",
    "transpose",
    "walk",
]
