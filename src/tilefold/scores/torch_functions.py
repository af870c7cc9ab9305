"""torch's own functions on lazy scores: each one calls the method of its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import FoldError, explain
from .core import TOO_MANY, Normalized, Pointwise, Scores

# functions whose first argument is the scores and whose other arguments are the method's
_METHODS = (
    "exp exp2 expm1 log log2 log1p sqrt rsqrt reciprocal square abs neg sign tanh sigmoid relu erf sin cos isnan isinf "
    "silu softplus logsigmoid gelu clamp logsumexp sum mean var std amax amin argmax argmin topk gather "
    "softmax log_softmax count_nonzero transpose flatten reshape unsqueeze squeeze clone detach logical_not "
    "clip clamp_min clamp_max negative absolute isfinite any all t"
).split()
_BINARY = {
    "add": "add", "sub": "sub", "subtract": "sub", "mul": "mul", "multiply": "mul", "div": "div", "divide": "div",
    "true_divide": "div", "truediv": "div", "pow": "pow", "maximum": "maximum", "minimum": "minimum", "eq": "eq",
    "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
    "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "__and__": "logical_and", "__or__": "logical_or",
}  # fmt: skip
# what Tensor op scores means with the scores first
_REFLECTED = {
    "add": "add", "mul": "mul", "sub": "rsub", "div": "rdiv", "pow": "rpow", "maximum": "maximum", "minimum": "minimum",
    "eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le",
    "logical_and": "logical_and", "logical_or": "logical_or", "logical_xor": "logical_xor",
}  # fmt: skip


def _method(name: str) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if not args:
            args = (kwargs.pop("input"),)
        s, args = args[0], args[1:]
        if not isinstance(s, Pointwise):
            raise FoldError(f"torch.{name}: lazy scores have to be its first argument; {TOO_MANY}")
        for gone in ("_stacklevel", "inplace"):
            kwargs.pop(gone, None)
        if kwargs.get("out") is not None:
            raise FoldError(explain(f"torch.{name}(out=)", "a tensor", "no out; the result is a new tensor"))
        if name in ("softmax", "log_softmax") and len(args) > 1:
            args = args[:1]  # F.softmax's third positional argument is a stack level
        return getattr(s, name)(*args, **kwargs)

    return call


def _binary(name: str) -> Callable[..., Any]:
    def call(a: Any, b: Any, **kwargs: Any) -> Any:
        if isinstance(a, Pointwise):
            return getattr(a, name)(b, **kwargs)
        if "alpha" in kwargs and kwargs["alpha"] != 1:
            b = b.mul(kwargs.pop("alpha"))
        return getattr(b, _REFLECTED[name])(a)

    return call


def _where(condition: Any, a: Any, b: Any) -> Any:
    if isinstance(condition, Pointwise):
        return condition.where_else(a, b)
    if isinstance(a, Pointwise):
        return a._apply("where", condition, b, at=1)
    return b._apply("where", condition, a, at=2)


def _masked_fill(t: Any, mask: Any, value: Any) -> Any:
    return t.masked_fill(mask, value) if isinstance(t, Pointwise) else mask.where_else(value, t)


def _extreme(name: str) -> Callable[..., Any]:
    """torch.max and torch.min: of scores along an axis, or of two arguments."""
    of_scores, of_two = _method(name), _binary({"max": "maximum", "min": "minimum"}[name])
    return lambda *args, **kwargs: (of_two if isinstance(args[0], Tensor) else of_scores)(*args, **kwargs)


def _linear(s: Any, weight: Any, bias: Tensor | None = None) -> Tensor:
    out: Tensor = _matmul(s, weight.mT)
    return out if bias is None else out + bias


def _matmul(a: Any, b: Any, *, out: None = None) -> Any:
    if isinstance(a, (Scores, Normalized)):
        return a.matmul(b)
    b = b.scores if isinstance(b, Normalized) else b
    return b.mT.matmul(a) if a.dim() == 1 else b.mT.matmul(a.mT).mT


def _dropout(s: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if training and p > 0:
        raise FoldError(
            explain("dropout(p=)", f"{p} on lazy scores", "p = 0, or training=False; tf.attention has a dropout_p")
        )
    return s


def _reduction(size_average: bool | None, reduce: bool | None, reduction: str) -> str:
    """torch's older two flags win over `reduction`, as in torch."""
    if size_average is None and reduce is None:
        return reduction
    return torch.nn._reduction.legacy_get_string(size_average, reduce)


def _cross_entropy(
    s: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    from ..ops.cross_entropy import cross_entropy

    reduction = _reduction(size_average, reduce, reduction)
    s = s.scores if isinstance(s, Normalized) else s
    if s.dim() > 2:
        if s.dim() != 3:
            raise FoldError(
                explain("cross_entropy", f"scores of {s.dim()} dimensions", "2 or 3; use reshape to [-1, classes]")
            )
        s = s.mT  # torch's class axis is 1
        target = target.mT if target.is_floating_point() else target
    return cross_entropy(
        s, target, weight=weight, ignore_index=ignore_index, reduction=reduction, label_smoothing=label_smoothing
    )


def _nll_loss(
    logp: Any,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Tensor:
    reduction = _reduction(size_average, reduce, reduction)
    if isinstance(logp, Normalized) and logp.is_log and logp.dim() == 2 and logp.along_columns:
        return _cross_entropy(logp.source, target, weight, None, ignore_index, None, reduction)
    from ..ops.cross_entropy import nll

    s = logp.scores if isinstance(logp, Normalized) else logp
    return nll(s if s.dim() == 2 else s.mT, target, weight, ignore_index, reduction)


def _einsum(equation: str, *operands: Any) -> Tensor:
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    inputs, _, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if "->" not in equation:
        output = "".join(sorted(c for c in {*inputs} - {","} if inputs.count(c) == 1))
    problem = explain(
        "einsum", repr(equation), "scores [.., n, k] and one tensor, contracted over k or n; or " + TOO_MANY
    )
    if len(terms) != 2 or len(operands) != 2 or "." in equation or not output:
        raise FoldError(problem)
    (s, s_term), (v, v_term) = sorted(zip(operands, terms, strict=True), key=lambda p: isinstance(p[0], Tensor))
    *batch, n, k = list(s_term)
    if n in v_term and k not in v_term and k in output:
        s, n, k = s.mT, k, n
    free = [c for c in v_term if c not in s_term]
    wrong = len(set(s_term)) != len(s_term) or len(set(v_term)) != len(v_term) or len(set(output)) != len(output)
    if wrong or k not in v_term or n in v_term or k in output or len(free) > 1 or set(output) != {*batch, n, *free}:
        raise FoldError(problem)
    order = [v_term.index(c) for c in (*(c for c in batch if c in v_term), k, *free)]
    v = v.permute(order)
    for i, c in enumerate(batch):
        if c not in v_term:
            v = v.unsqueeze(i)
    made: Tensor = s.matmul(v) if free else s.matmul(v.unsqueeze(-1)).squeeze(-1)
    have = [*batch, n, *free]
    return made.permute([have.index(c) for c in output])


HANDLERS: dict[str, Callable[..., Any]] = {
    **{name: _method(name) for name in _METHODS},
    **{name: _binary(method) for name, method in _BINARY.items()},
    "where": _where,
    "masked_fill": _masked_fill,
    "max": _extreme("max"),
    "min": _extreme("min"),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "bmm": _matmul,
    "einsum": _einsum,
    "dropout": _dropout,
    "cross_entropy": _cross_entropy,
    "cross_entropy_loss": _cross_entropy,
    "nll_loss": _nll_loss,
    "nll_loss_nd": _nll_loss,
    "is_tensor": lambda s: False,
}


def _swapped(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: handler(b, a)


def _by_function() -> dict[Any, Callable[..., Any]]:
    """The handlers by function object, which torch.compile can look up."""
    found: dict[Any, Callable[..., Any]] = {}
    for name, handler in HANDLERS.items():
        for home in (torch, torch.Tensor, F, torch._C._nn, torch.special):
            for spelling in (name, f"__{name}__"):
                fn = getattr(home, spelling, None)
                if callable(fn):
                    found[fn] = handler
    found[torch.Tensor.where] = lambda a, condition, b: _where(condition, a, b)
    for name in ("sub", "div", "pow", "matmul"):
        found[getattr(torch.Tensor, f"__r{name}__")] = _swapped(HANDLERS[name])
    return found


BY_FUNCTION = _by_function()
# torch.compile does not find these two by their object
BY_NAME = {f"__r{name}__": _swapped(HANDLERS[name]) for name in ("sub", "div")}


def _compiled_matmul(t: Any, s: Any) -> Any:
    """torch.compile calls Tensor.matmul(t, s) for `t @ s` and for `s @ t`: only the shapes tell."""
    left = t.shape[-1] == s.shape[-2]
    right = t.shape[max(-2, -t.dim())] == s.shape[-1]
    if left and right:
        was = f"`@` between scores {tuple(s.shape)} and a tensor {tuple(t.shape)} under torch.compile"
        raise FoldError(
            explain("matmul", was, "torch.matmul(scores, tensor): torch.compile hides which one stands first")
        )
    return _matmul(s, t) if right else _matmul(t, s)


def dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `__torch_function__` does.

    Raises:
        FoldError: for a function that can't be computed tile by tile.
    """
    if torch.compiler.is_compiling() and func is torch.Tensor.matmul and isinstance(args[0], Tensor):
        return _compiled_matmul(*args)
    name = getattr(func, "__name__", "of this name")
    if name in BY_NAME:
        return BY_NAME[name](*args, **kwargs)
    if func in BY_FUNCTION:
        return BY_FUNCTION[func](*args, **kwargs)
    raise FoldError(f"torch.{name}: not a function of lazy scores; reduce the scores first, or {TOO_MANY}")
