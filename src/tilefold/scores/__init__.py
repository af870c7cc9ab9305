"""Scores: the lazy [N, K] value a user handles, and the ways to reduce it."""

from . import mask
from .api import fold, outer, scores, stream
from .core import Scores, col_index, row_index
from .debug import debug

__all__ = ["Scores", "col_index", "debug", "fold", "mask", "outer", "row_index", "scores", "stream"]
