"""The errors that tilefold raises. Each derives from the class that torch raises for the same mistake."""

from __future__ import annotations


class TilefoldError(Exception):
    """Base of every error of tilefold's own."""


class ShapeError(TilefoldError, RuntimeError):
    """Shapes, data types or devices that do not go together."""


class OptionError(TilefoldError, ValueError):
    """An option that is not one of its possible values."""


class LabelError(TilefoldError, IndexError):
    """An index outside its range."""


class FoldError(TilefoldError, NotImplementedError):
    """Something that can't be folded: it would need the whole [N, K] intermediate. The text says what to do instead."""


class MissingError(FoldError, AttributeError):
    """A method of tensors that lazy scores lack: `hasattr` answers no, and a call says what to do."""


class GradientError(TilefoldError, RuntimeError):
    """A derivative that does not exist here: a second derivative, or forward mode."""


class BackendError(TilefoldError, RuntimeError):
    """An executor that was asked for and can't run here."""


def explain(argument: str, was: object, may_be: str) -> str:
    """The three parts of an error text: which argument, what it was, what it may be."""
    return f"{argument}: got {was}; expected {may_be}"
