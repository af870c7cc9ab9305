"""The lazy value a user handles: operands, an expression over them, a mask. Nothing is computed until it is reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import folds
from ..errors import FoldError, MissingError, OptionError, ShapeError, explain
from ..program import text
from . import mask as masks

Number = float | int | bool
TOO_MANY = "call .materialize() if the [N, K] matrix fits in memory"


def row_index() -> Index:
    """The number of the row, for an expression of scores: `s - 0.1 * (tf.row_index() - tf.col_index()).abs()`."""
    return Index(text.index("row"))


def col_index() -> Index:
    """The number of the column; see `row_index`."""
    return Index(text.index("col"))


class Pointwise:
    """Arithmetic that an expression of scores understands; shared by `Scores` and the bare row and column index."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy scalars leave arithmetic to us
    __hash__ = object.__hash__

    def _apply(self, name: str, *others: Any, at: int = 0) -> Any:
        raise NotImplementedError

    def add(self, other: Any, *, alpha: Number = 1) -> Any:
        if alpha != 1:
            other = other * alpha
        return self._apply("add", other)

    def sub(self, other: Any, *, alpha: Number = 1) -> Any:
        if alpha != 1:
            other = other * alpha
        return self._apply("sub", other)

    def mul(self, other: Any) -> Any:
        return self._apply("mul", other)

    def div(self, other: Any, *, rounding_mode: str | None = None) -> Any:
        if rounding_mode is not None:
            raise FoldError(explain("div(rounding_mode=)", repr(rounding_mode), f"None; or {TOO_MANY}"))
        return self._apply("div", other)

    def rsub(self, other: Any) -> Any:
        return self._apply("sub", other, at=1)

    def rdiv(self, other: Any) -> Any:
        return self._apply("div", other, at=1)

    def pow(self, other: Any) -> Any:
        if isinstance(other, (int, float)):
            if other == 2:
                return self._apply("square")
            if other == 0.5:
                return self._apply("sqrt")
            return self._apply("pow", float(other))
        return self._apply("pow", other)

    def rpow(self, other: Any) -> Any:
        return self._apply("pow", other, at=1)

    def maximum(self, other: Any) -> Any:
        return self._apply("maximum", other)

    def minimum(self, other: Any) -> Any:
        return self._apply("minimum", other)

    def eq(self, other: Any) -> Any:
        return self._apply("eq", other)

    def ne(self, other: Any) -> Any:
        return self._apply("ne", other)

    def lt(self, other: Any) -> Any:
        return self._apply("lt", other)

    def le(self, other: Any) -> Any:
        return self._apply("le", other)

    def gt(self, other: Any) -> Any:
        return self._apply("gt", other)

    def ge(self, other: Any) -> Any:
        return self._apply("ge", other)

    def logical_and(self, other: Any) -> Any:
        return self._apply("and", other)

    def logical_or(self, other: Any) -> Any:
        return self._apply("or", other)

    def logical_xor(self, other: Any) -> Any:
        return self._apply("xor", other)

    def logical_not(self) -> Any:
        return self._apply("not")

    def exp(self) -> Any:
        return self._apply("exp")

    def exp2(self) -> Any:
        return self._apply("exp2")

    def expm1(self) -> Any:
        return self._apply("expm1")

    def log(self) -> Any:
        return self._apply("log")

    def log2(self) -> Any:
        return self._apply("log2")

    def log1p(self) -> Any:
        return self._apply("log1p")

    def sqrt(self) -> Any:
        return self._apply("sqrt")

    def rsqrt(self) -> Any:
        return self._apply("rsqrt")

    def reciprocal(self) -> Any:
        return self._apply("reciprocal")

    def square(self) -> Any:
        return self._apply("square")

    def abs(self) -> Any:
        return self._apply("abs")

    def neg(self) -> Any:
        return self._apply("neg")

    def sign(self) -> Any:
        return self._apply("sign")

    def tanh(self) -> Any:
        return self._apply("tanh")

    def sigmoid(self) -> Any:
        return self._apply("sigmoid")

    def relu(self) -> Any:
        return self._apply("relu")

    def erf(self) -> Any:
        return self._apply("erf")

    def sin(self) -> Any:
        return self._apply("sin")

    def cos(self) -> Any:
        return self._apply("cos")

    def isnan(self) -> Any:
        return self._apply("isnan")

    def isinf(self) -> Any:
        return self._apply("isinf")

    def isfinite(self) -> Any:
        return self.isnan().logical_or(self.isinf()).logical_not()

    def silu(self) -> Any:
        return self.mul(self.sigmoid())

    def softplus(self, beta: float = 1.0, threshold: float = 20.0) -> Any:
        scaled = self.mul(beta)
        # max(x, 0) + log1p(exp(-|x|)) does not overflow
        smooth = scaled.relu().add(scaled.abs().neg().exp().log1p()).div(beta)
        return scaled.gt(threshold).where_else(self, smooth)

    def logsigmoid(self) -> Any:
        return self.minimum(0.0).sub(self.abs().neg().exp().log1p())

    def gelu(self, approximate: str = "none") -> Any:
        if approximate == "tanh":
            inner = self.add(self.mul(self).mul(self).mul(0.044715)).mul(0.7978845608028654)
            return self.mul(0.5).mul(inner.tanh().add(1.0))
        return self.mul(0.5).mul(self.mul(0.7071067811865476).erf().add(1.0))

    def clamp(self, min: Any = None, max: Any = None) -> Any:
        if min is None and max is None:
            raise OptionError(explain("clamp(min=, max=)", "neither", "at least one of them"))
        out = self
        if min is not None:
            out = out.lt(min).where_else(min, out)
        if max is not None:
            out = out.gt(max).where_else(max, out)
        return out

    def clamp_min(self, min: Any) -> Any:
        return self.clamp(min=min)

    def clamp_max(self, max: Any) -> Any:
        return self.clamp(max=max)

    def where(self, condition: Any, other: Any) -> Any:
        """self where the condition holds, other elsewhere."""
        return self._apply("where", condition, other, at=1)

    def where_else(self, first: Any, second: Any) -> Any:
        """For boolean scores: first where True, second where False."""
        return self._apply("where", first, second)

    def masked_fill(self, mask: Any, value: Any) -> Any:
        return self._apply("where", mask, value, at=2)

    def __pos__(self) -> Any:
        return self

    def __bool__(self) -> bool:
        raise FoldError(f"bool({self!r}): one answer for all pairs was asked for; use torch.where, or {TOO_MANY}")

    # torch's other names
    clip, negative, absolute = clamp, neg, abs
    subtract, multiply, divide, true_divide = sub, mul, div, div

    __add__ = __radd__ = add
    __mul__ = __rmul__ = mul
    __sub__, __rsub__, __truediv__, __rtruediv__ = sub, rsub, div, rdiv
    __pow__, __rpow__ = pow, rpow
    __neg__, __abs__, __invert__ = neg, abs, logical_not
    __and__ = __rand__ = logical_and
    __or__ = __ror__ = logical_or
    __xor__ = __rxor__ = logical_xor
    __eq__, __ne__ = eq, ne
    __lt__, __le__, __gt__, __ge__ = lt, le, gt, ge


class Index(Pointwise):
    """The number of a row or column, and expressions of such numbers alone."""

    __slots__ = ("_expr",)

    def __init__(self, expr: str) -> None:
        self._expr = expr

    def __repr__(self) -> str:
        return f"Index({text.parse(self._expr)})"

    def _apply(self, name: str, *others: Any, at: int = 0) -> Any:
        full = [*others[:at], self, *others[at:]]
        for i, a in enumerate(full):
            if isinstance(a, Scores):  # which know the sizes
                return a._apply(name, *full[:i], *full[i + 1 :], at=i)
            if isinstance(a, Tensor):
                was = "arithmetic with a tensor alone"
                raise FoldError(explain("row_index / col_index", was, "arithmetic with scores first, then the tensor"))
        args = [_number_or_index(o) for o in others]
        args.insert(at, self._expr)
        return Index(text.apply(name, *args))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from .torch_functions import dispatch

        return dispatch(func, args, kwargs or {})


def _number_or_index(value: Any) -> str:
    if isinstance(value, Index):
        return value._expr
    return number(value)


def settled(value: Any) -> Any:
    """A number that becomes part of the program: of a symbolic size (D of a default scale) the value it has now."""
    if torch.compiler.is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_scalar

        return guard_scalar(value)
    return value


def number(value: Any, argument: str = "operand", may_be: str = "a number, a tensor, or scores") -> str:
    """A number as an expression. Raises TypeError for anything else, by the argument's name."""
    if isinstance(value, (int, float)):
        value = settled(value)
    if isinstance(value, bool):
        return text.number(value, "bool")
    if isinstance(value, int):
        return text.number(value, "int")
    if isinstance(value, float):
        return text.number(value, "float")
    if getattr(value, "size", None) == 1 and not isinstance(value, Tensor):  # a numpy scalar
        return number(value.item(), argument, may_be)
    raise TypeError(explain(argument, type(value).__name__, may_be))


def autocast(t: Tensor) -> Tensor:
    """The type that torch's matmul would compute in under autocast."""
    if not torch.compiler.is_compiling() and not torch._C._is_any_autocast_enabled():
        return t
    kind = t.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind) and t.dtype != torch.float64:
        return t.to(torch.get_autocast_dtype(kind))
    return t


def type_name(dtype: torch.dtype) -> str:
    return "float" if dtype.is_floating_point else "bool" if dtype == torch.bool else "int"


class Scores(Pointwise):
    """Lazy scores [*batch, N, K].

    Made by `tf.scores` or `tf.outer`, changed by torch's pointwise functions, and used by reducing them.
    Nothing of size N x K is ever written. What can't be computed that way raises FoldError, which names the way out.
    """

    __slots__ = ("_batch", "_dtype", "_expr", "_k", "_kinds", "_mask", "_n", "_operands", "_order", "_versions")

    def __init__(
        self,
        operands: tuple[Tensor, ...],
        kinds: tuple[str, ...],
        expr: str,
        mask: text.MaskText | None,
        batch: tuple[int, ...],
        n: int,
        k: int,
        dtype: torch.dtype,
        versions: tuple[int, ...] | None = None,
    ) -> None:
        self._operands, self._kinds, self._expr, self._mask = operands, kinds, expr, mask
        self._batch, self._n, self._k, self._dtype = batch, n, k, dtype
        self._versions = _versions(operands) if versions is None else versions
        # scores that order each row alike and cost less: what a distance has for arg-min
        self._order: Scores | None = None

    # ---- what it is --------------------------------------------------------------------------------------------------
    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._batch, self._n, self._k))

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return len(self._batch) + 2

    @property
    def ndim(self) -> int:
        return self.dim()

    def numel(self) -> int:
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return torch.bool if text.type_of(self._expr) == "bool" else self._dtype

    @property
    def device(self) -> torch.device:
        return self._operands[0].device

    @property
    def requires_grad(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in self._operands)

    def is_floating_point(self) -> bool:
        return self.dtype.is_floating_point

    def __repr__(self) -> str:
        return f"Scores(shape={tuple(self.shape)}, dtype={self.dtype}, device={self.device}, {text.parse(self._expr)})"

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise FoldError(f"numpy.asarray(scores): lazy scores have no memory; {TOO_MANY}")

    def __iter__(self) -> Any:
        raise FoldError(f"iter(scores): lazy scores can't be iterated; slice the operands, or {TOO_MANY}")

    def __reduce__(self) -> Any:
        """Copies and pickles hold their operands as these are now."""
        self._check_unchanged()
        fields = (self._operands, self._kinds, self._expr, self._mask, self._batch, self._n, self._k, self._dtype)
        return Scores, fields

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from .torch_functions import dispatch

        return dispatch(func, args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(Tensor, name):
            raise MissingError(f"scores.{name}: lazy scores do not have it; reduce the scores first, or {TOO_MANY}")
        raise AttributeError(f"Scores has no attribute {name!r}")

    # ---- putting scores together -------------------------------------------------------------------------------------
    def _with(self, **changes: Any) -> Scores:
        if "operands" in changes and "versions" not in changes:
            self._check_unchanged()  # their new tensors start from what is there now
            changes["versions"] = None
        get = changes.get
        return Scores(
            get("operands", self._operands), get("kinds", self._kinds), get("expr", self._expr),
            get("mask", self._mask), get("batch", self._batch), get("n", self._n), get("k", self._k),
            get("dtype", self._dtype), get("versions", self._versions),
        )  # fmt: skip

    def _check_unchanged(self) -> None:
        """Raises RuntimeError where an operand was changed in place."""
        if _versions(self._operands) != self._versions:
            raise RuntimeError(
                "scores: an operand was changed in place after the scores were made; make the scores again"
            )

    def _apply(self, name: str, *others: Any, at: int = 0) -> Scores:
        s = self
        args = []
        for other in others:
            s, e = s._include(other)
            args.append(e)
        args.insert(at, s._expr)
        return s._with(expr=text.apply(name, *args), dtype=_result_dtype(self, others))

    def _include(self, other: Any) -> tuple[Scores, str]:
        """These scores over more operands, and the expression of `other` in them."""
        if isinstance(other, Normalized):
            other = other.scores
        if isinstance(other, Scores):
            return self._merge(other)
        if isinstance(other, Index):
            return self, other._expr
        if isinstance(other, Tensor):
            return self._add_data(other)
        return self, number(other)

    def _merge(self, other: Scores) -> tuple[Scores, str]:
        if (other._n, other._k) != (self._n, self._k):
            raise ShapeError(
                explain("scores", f"shapes {tuple(self.shape)} and {tuple(other.shape)}", "the same last two sizes")
            )
        _same_device(self.device, other.device, "scores")
        operands, kinds, versions = list(self._operands), list(self._kinds), list(self._versions)
        numbers = []
        for t, kind, version in zip(other._operands, other._kinds, other._versions, strict=True):
            for i, (have, have_kind) in enumerate(zip(operands, kinds, strict=True)):
                if have is t and have_kind == kind:
                    numbers.append(i)
                    break
            else:
                numbers.append(len(operands))
                operands.append(t)
                kinds.append(kind)
                versions.append(version)
        renumber = tuple(numbers)
        mask = self._mask
        if other._mask is not None:
            theirs = renumber_mask(other._mask, renumber)
            mask = theirs if mask is None or mask == theirs else text.mask_and(mask, theirs)
        batch = broadcast(self._batch, other._batch, "scores")
        both = self._with(
            operands=tuple(operands), kinds=tuple(kinds), mask=mask, batch=batch, versions=tuple(versions)
        )
        return both, str(text.renumber(other._expr, renumber))

    def _add_data(self, t: Tensor, kind: str | None = None, argument: str = "tensor") -> tuple[Scores, str]:
        """A tensor that broadcasts to the scores, as a scalar, row, column or tile operand."""
        _same_device(self.device, t.device, argument)
        if t.is_complex():
            raise ShapeError(explain(argument, f"a tensor of {t.dtype}", "real numbers"))
        shaped = t.reshape((1,) * (2 - t.dim()) + tuple(t.shape)) if t.dim() < 2 else t
        rows, cols = shaped.shape[-2], shaped.shape[-1]
        # `!=` and not `in`: torch.compile guards a symbolic size only where it is compared
        if (rows != 1 and rows != self._n) or (cols != 1 and cols != self._k):
            raise ShapeError(
                explain(
                    argument, f"shape {tuple(t.shape)}", f"a shape that broadcasts to the scores' {tuple(self.shape)}"
                )
            )
        try:
            batch = tuple(torch.broadcast_shapes(self._batch, shaped.shape[:-2]))
        except RuntimeError:
            raise ShapeError(
                explain(
                    argument, f"shape {tuple(t.shape)}", f"a shape that broadcasts to the scores' {tuple(self.shape)}"
                )
            ) from None
        if kind is None:
            kind = {(True, True): "scalar", (False, True): "row", (True, False): "col", (False, False): "tile"}[
                (rows == 1, cols == 1)
            ]
        if not torch.is_grad_enabled():
            shaped = shaped.detach()
        operands, number_ = (*self._operands, shaped), len(self._operands)
        s = self._with(
            operands=operands,
            kinds=(*self._kinds, kind),
            batch=batch,
            versions=(*self._versions, *_versions((shaped,))),
        )
        return s, text.data(number_, kind, type_name(t.dtype))

    def _row_data(self, t: Tensor, argument: str) -> tuple[Scores, str]:
        """[.., N] numbers (or one element) as a row operand."""
        if t.numel() == 1 and t.dim() <= 1:
            return self._add_data(t.reshape(1, 1), "scalar", argument)
        if t.dim() == 0 or t.shape[-1] != self._n:
            raise ShapeError(
                explain(argument, f"shape {tuple(t.shape)}", f"[.., N] with N = {self._n}, or one element")
            )
        return self._add_data(t.unsqueeze(-1), "row", argument)

    # ---- masks -------------------------------------------------------------------------------------------------------
    def visible(self, *which: masks.Mask | Tensor) -> Scores:
        """The scores with only some columns visible to each row: hidden ones take no part in any reduction.

        Args:
            which: masks of `tilefold.mask`, or boolean tensors that broadcast to the scores (True = visible)
        """
        s = self
        for m in which:
            s, made = s._mask_of(m)
            s = s._with(mask=made if s._mask is None else text.mask_and(s._mask, made))
        return s

    def visible_rows(self, which: Tensor) -> Scores:
        """The scores with no column visible to rows [.., N] where `which` is False; tiles of such rows cost nothing."""
        if which.dtype != torch.bool:
            raise ShapeError(explain("which", f"a tensor of {which.dtype}", "torch.bool, True where a row counts"))
        s, e = self._row_data(which, "which")
        hi = text.apply("where", e, text.size("col"), text.number(0, "int"))
        made = ("row", None, hi, None, (0, 0), None)
        return s._with(mask=made if s._mask is None else text.mask_and(s._mask, made))

    def softcap(self, cap: float | None) -> Scores:
        """cap * tanh(s / cap), or the scores themselves for None."""
        if cap is None:
            return self
        number(cap, "softcap", "a positive number, or None")
        if not 0 < cap < math.inf:
            raise OptionError(explain("softcap", str(cap), "a positive number, or None"))
        capped: Scores = self.div(float(cap)).tanh().mul(float(cap))
        return capped

    def _mask_of(self, m: masks.Mask | Tensor) -> tuple[Scores, text.MaskText]:
        if isinstance(m, (masks.Causal, masks.Window)):
            s, here = self._place(m.align)
            return s, _band(m, here)
        if isinstance(m, masks.Interval):
            s, lo = self._row_data(m.start, "interval(start)")
            s, hi = s._row_data(m.stop, "interval(stop)")
            return s, ("row", lo, hi, None, (0, 0), None)
        if isinstance(m, masks.Lengths):
            s, e = self._add_data(m.lengths[..., None, None], "scalar", "lengths")
            return s, ("row", None, e, None, (0, 0), None)
        if isinstance(m, masks.Segments):
            return self._segments(m)
        if isinstance(m, masks.Blocks):
            size = settled(m.size[0]), settled(m.size[1])
            need = (-(-self._n // size[0]), -(-self._k // size[1]))
            if m.table.dtype != torch.bool or tuple(m.table.shape[-2:]) != need:
                was = f"{m.table.dtype} of shape {tuple(m.table.shape)}"
                raise ShapeError(explain("table", was, f"torch.bool of shape [.., {need[0]}, {need[1]}]"))
            _same_device(self.device, m.table.device, "table")
            batch = broadcast(self._batch, m.table.shape[:-2], "table")
            s = self._with(operands=(*self._operands, m.table), kinds=(*self._kinds, "block"), batch=batch)
            return s, ("row", None, None, len(self._operands), size, None)
        if isinstance(m, Tensor):
            if m.dtype != torch.bool:
                raise ShapeError(
                    explain(
                        "mask",
                        f"a tensor of {m.dtype}",
                        "torch.bool, True where visible; add a float bias to the scores",
                    )
                )
            s, e = self._add_data(m, argument="mask")
            return s, ("row", None, None, None, (0, 0), e)
        raise TypeError(explain("mask", type(m).__name__, "a mask of tilefold.mask or a boolean tensor"))

    def _segments(self, m: masks.Segments) -> tuple[Scores, text.MaskText]:
        if m.rows.shape[-1] != self._n or m.cols.shape[-1] != self._k:
            was = f"shapes {tuple(m.rows.shape)} and {tuple(m.cols.shape)}"
            raise ShapeError(explain("segments(rows, cols)", was, f"[.., {self._n}] and [.., {self._k}]"))
        broadcast(m.rows.shape[:-1], m.cols.shape[:-1], "segments(rows, cols)")
        return self._mask_of(masks.of_segments(m))

    def _place(self, align: masks.Align) -> tuple[Scores, str]:
        """The column at which each row stands, as an expression."""
        s, shift = (self, masks.offset(align)) if isinstance(align, str) else self._add_data(align.unsqueeze(-1))
        return s, text.apply("add", text.index("row"), shift)

    # ---- views -------------------------------------------------------------------------------------------------------
    @property
    def mT(self) -> Scores:
        """The transposed scores [.., K, N]."""
        swap = {"rows": "cols", "cols": "rows", "row": "col", "col": "row"}
        operands = []
        for t, kind in zip(self._operands, self._kinds, strict=True):
            operands.append(t if kind in ("rows", "cols") else t.mT)
        return self._with(
            operands=tuple(operands),
            kinds=tuple(swap.get(k, k) for k in self._kinds),
            expr=text.transposed(self._expr),
            mask=None if self._mask is None else transposed_mask(self._mask),
            n=self._k,
            k=self._n,
            versions=self._versions,
        )

    @property
    def T(self) -> Scores:
        if self.dim() != 2:
            raise FoldError(explain("scores.T", f"scores of {self.dim()} dimensions", "2 dimensions; or use scores.mT"))
        return self.mT

    def transpose(self, dim0: int, dim1: int) -> Scores:
        if {self._dim(dim0), self._dim(dim1)} == {self.dim() - 2, self.dim() - 1}:
            return self.mT
        raise FoldError(
            explain("transpose", f"dims {dim0}, {dim1}", f"the last two; transpose the operands, or {TOO_MANY}")
        )

    def t(self) -> Scores:
        return self.T

    def _dim(self, dim: int) -> int:
        if not isinstance(dim, int):
            raise TypeError(explain("dim", f"{dim!r}, a {type(dim).__name__}", "an int"))
        if not -self.dim() <= dim < self.dim():
            raise IndexError(explain("dim", str(dim), f"{-self.dim()} to {self.dim() - 1}"))
        return dim % self.dim()

    def to(self, *args: Any, **kwargs: Any) -> Scores:
        """Sets the type that results with a payload get; scores themselves are always computed in float32 or wider."""
        dtype = kwargs.get("dtype")
        for a in args:
            if isinstance(a, torch.dtype):
                dtype = a
            elif isinstance(a, (Tensor, Scores)):
                dtype = a.dtype
            elif isinstance(a, (str, torch.device)) and torch.device(a) != self.device:
                raise FoldError(explain("scores.to", str(a), f"the operands' device {self.device}; move the operands"))
        if dtype is None or dtype == self.dtype:
            return self
        if dtype == torch.bool:
            made: Scores = self.ne(0)
            return made
        if not dtype.is_floating_point:
            raise FoldError(explain("scores.to", str(dtype), f"a floating-point type or torch.bool; or {TOO_MANY}"))
        return self._with(dtype=dtype, expr=text.apply("float", self._expr))

    def type(self, dtype: torch.dtype) -> Scores:
        return self.to(dtype)

    def type_as(self, other: Tensor) -> Scores:
        return self.to(other.dtype)

    def float(self) -> Scores:
        return self.to(torch.float32)

    def double(self) -> Scores:
        return self.to(torch.float64)

    def half(self) -> Scores:
        return self.to(torch.float16)

    def bfloat16(self) -> Scores:
        return self.to(torch.bfloat16)

    def contiguous(self, **kwargs: Any) -> Scores:
        return self

    def clone(self, **kwargs: Any) -> Scores:
        return self

    def detach(self) -> Scores:
        return self._with(operands=tuple(t.detach() for t in self._operands))

    def view(self, *shape: Any) -> Scores:
        from .views import reshape

        return reshape(self, shape)

    def reshape(self, *shape: Any) -> Scores:
        from .views import reshape

        return reshape(self, shape)

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Scores:
        from .views import flatten

        return flatten(self, start_dim, end_dim)

    def unsqueeze(self, dim: int) -> Scores:
        from .views import unsqueeze

        return unsqueeze(self, dim)

    def squeeze(self, dim: int | None = None) -> Scores:
        from .views import squeeze

        return squeeze(self, dim)

    def __getitem__(self, key: Any) -> Any:
        from .views import getitem

        return getitem(self, key)

    # ---- reductions --------------------------------------------------------------------------------------------------
    def _along(self, dim: int | None, name: str) -> Scores:
        """The scores, turned so that the last axis is reduced."""
        d = self._dim(-1 if dim is None else dim)
        if d == self.dim() - 1:
            return self
        if d == self.dim() - 2:
            return self.mT
        raise FoldError(
            explain(
                f"{name}(dim=)",
                str(dim),
                f"one of the last two axes; reduce the result along a batch axis, or {TOO_MANY}",
            )
        )

    def _reduce(
        self,
        make: Callable[[], folds.Fold],
        dim: Any,
        keepdim: bool,
        name: str,
        again: Callable[[Tensor], Tensor] | None = None,
    ) -> Any:
        """One fold along `dim`; along both axes (or None: all) by folding one and reducing the result with `again`."""
        if isinstance(dim, (tuple, list)) and len(dim) == 1:
            dim = dim[0]
        if dim is None or isinstance(dim, (tuple, list)):
            dims = sorted(range(self.dim())) if dim is None or len(dim) == 0 else sorted(self._dim(d) for d in dim)
            if again is None or self.dim() - 1 not in dims:
                raise FoldError(
                    explain(f"{name}(dim=)", str(dim), f"one axis, the last or the last but one; or {TOO_MANY}")
                )
            out = api.fold(self, make())
            # the last axis is gone; reduce the others, from the back
            for d in reversed([d for d in dims if d != self.dim() - 1]):
                out = again(out.movedim(d, -1))
            return out.reshape([1 if d in dims else n for d, n in enumerate(self.shape)]) if keepdim else out
        out = api.fold(self._along(dim, name), make())
        if not keepdim:
            return out
        at = self._dim(dim)
        if isinstance(out, tuple):
            return (
                type(out)(tuple(t.unsqueeze(at) for t in out))
                if type(out) is not tuple
                else tuple(t.unsqueeze(at) for t in out)
            )
        return out.unsqueeze(at)

    def logsumexp(self, dim: Any, keepdim: bool = False) -> Tensor:
        out: Tensor = self._reduce(folds.LogSumExp, dim, keepdim, "logsumexp", lambda t: t.logsumexp(-1))
        return out

    def sum(self, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        make = folds.Count if self.dtype == torch.bool else folds.Sum
        out: Tensor = self._reduce(make, dim, keepdim, "sum", lambda t: t.sum(-1))
        return out if dtype is None else out.to(dtype)

    def any(self, dim: Any = None, keepdim: bool = False) -> Tensor:
        out: Tensor = self._reduce(folds.Count, dim, keepdim, "any", lambda t: t.sum(-1)) > 0
        return out

    def all(self, dim: Any = None, keepdim: bool = False) -> Tensor:
        return ~self.logical_not().any(dim, keepdim)  # type: ignore[no-any-return]

    def count_nonzero(self, dim: Any = None) -> Tensor:
        out: Tensor = self._reduce(folds.Count, dim, False, "count_nonzero", lambda t: t.sum(-1))
        return out

    def mean(self, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
        if self._mask is not None and (dim is None or isinstance(dim, (tuple, list)) and len(dim) > 1):
            raise FoldError(
                explain(
                    "mean(dim=)", str(dim), "one axis on masked scores; divide s.sum() by the number of visible scores"
                )
            )
        out: Tensor = self._reduce(folds.Mean, dim, keepdim, "mean", lambda t: t.mean(-1))
        return out if dtype is None else out.to(dtype)

    def var(
        self, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Number | None = None
    ) -> Tensor:
        c = (1 if unbiased else 0) if correction is None else correction
        out: Tensor = self._reduce(lambda: folds.Variance(correction=c), dim, keepdim, "var")
        return out

    def std(
        self, dim: Any = None, unbiased: bool = True, keepdim: bool = False, *, correction: Number | None = None
    ) -> Tensor:
        return self.var(dim, unbiased, keepdim, correction=correction).sqrt()

    def amax(self, dim: Any = (), keepdim: bool = False) -> Tensor:
        out: Tensor = self._reduce(folds.Max, dim, keepdim, "amax", lambda t: t.amax(-1))
        return out

    def amin(self, dim: Any = (), keepdim: bool = False) -> Tensor:
        out: Tensor = self._reduce(folds.Min, dim, keepdim, "amin", lambda t: t.amin(-1))
        return out

    def max(self, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return self.amax()
        if isinstance(dim, (Scores, Tensor)):
            return self.maximum(dim)
        return torch.return_types.max(self._reduce(lambda: folds.ArgMax(return_value=True), dim, keepdim, "max"))

    def min(self, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return self.amin()
        if isinstance(dim, (Scores, Tensor)):
            return self.minimum(dim)
        return torch.return_types.min(self._reduce(lambda: folds.ArgMin(return_value=True), dim, keepdim, "min"))

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        self._needs_dim(dim, "argmax")
        out: Tensor = self._reduce(folds.ArgMax, dim, keepdim, "argmax")
        return out

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        self._needs_dim(dim, "argmin")
        along_columns = dim is not None and self._dim(dim) == self.dim() - 1
        s = self._order if self._order is not None and along_columns else self
        out: Tensor = s._reduce(folds.ArgMin, dim, keepdim, "argmin")
        return out

    def _needs_dim(self, dim: int | None, name: str) -> None:
        if dim is None:
            raise FoldError(explain(f"{name}(dim=)", "None (the place in the flattened matrix)", "dim=-1 or dim=-2"))

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        turned = self._along(dim, "topk")
        values, columns = api.fold(turned, folds.TopK(k) if largest else folds.BottomK(k))
        if self._dim(dim) == self.dim() - 2:
            values, columns = values.mT, columns.mT
        return torch.return_types.topk((values, columns))

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """The scores at index [.., N, m] along the last axis (or the last but one), for small m: one fold each."""
        turned = self._along(dim, "gather")
        index = index if turned is self else index.mT
        if index.dim() != self.dim() or index.shape[:-1] != turned.shape[:-1]:
            raise ShapeError(
                explain("index", f"shape {tuple(index.shape)}", f"[{', '.join(map(str, turned.shape[:-1]))}, m]")
            )
        picked = api.fold(turned, *(folds.Gather(index[..., i]) for i in range(index.shape[-1])))
        out = torch.stack(picked if isinstance(picked, tuple) else (picked,), -1)
        return out if turned is self else out.mT

    def softmax(self, dim: int = -1, dtype: torch.dtype | None = None) -> Normalized:
        return Normalized(self._typed(dtype), dim, False)

    def log_softmax(self, dim: int = -1, dtype: torch.dtype | None = None) -> Normalized:
        return Normalized(self._typed(dtype), dim, True)

    def _typed(self, dtype: torch.dtype | None) -> Scores:
        return self if dtype is None else self.to(dtype)

    def matmul(self, other: Tensor) -> Tensor:
        """s @ other [.., K, Dv], or a vector [K]."""
        return self._times(other, lambda v: folds.WeightedSum(v))

    def _times(self, other: Any, make: Callable[[Tensor], folds.Fold]) -> Tensor:
        if isinstance(other, (Scores, Normalized)):
            raise FoldError(f"matmul(scores, scores): one of them has to be a tensor; {TOO_MANY}")
        if not isinstance(other, Tensor):
            raise TypeError(explain("matmul(scores, other)", type(other).__name__, "a tensor [.., K, Dv]"))
        other = autocast(other)
        if other.dim() == 1:
            out: Tensor = api.fold(self, make(other.unsqueeze(-1)))
            return out.squeeze(-1)
        out = api.fold(self, make(other))
        return out

    mm = mv = bmm = __matmul__ = matmul

    def __rmatmul__(self, other: Tensor) -> Tensor:
        # x @ s = (s^T @ x^T)^T
        if other.dim() == 1:
            return self.mT.matmul(other)
        return self.mT.matmul(other.mT).mT

    def materialize(self) -> Tensor:
        """The whole [.., N, K] matrix, differentiable; hidden scores are -inf. The one way to write it to memory."""
        from .materialize import materialize

        return materialize(self)


class Distances(Scores):
    """Distances, known first by what orders each row alike: -2 x.y + |y|^2. Arg-min needs no more than that.

    What the slots of `Scores` hold is made when it is first read, in the grad mode of when the distances were made; it
    costs a pass over x for |x|^2.
    """

    __slots__ = ("_grad", "_make")

    def __init__(self, order: Scores, make: Callable[[Scores], Scores]) -> None:
        self._order, self._make, self._grad = order, make, torch.is_grad_enabled()
        self._batch, self._n, self._k, self._dtype, self._mask = order._batch, order._n, order._k, order._dtype, None

    def __getattr__(self, name: str) -> Any:
        if name in ("_operands", "_kinds", "_expr", "_versions"):
            order = self._order
            assert order is not None
            order._check_unchanged()
            with torch.set_grad_enabled(self._grad):
                made = self._make(order)
            self._operands, self._kinds, self._expr, self._versions = (
                made._operands,
                made._kinds,
                made._expr,
                made._versions,
            )
            return object.__getattribute__(self, name)
        return Scores.__getattr__(self, name)


class Normalized(Pointwise):
    """Lazy softmax or log-softmax of scores: `p @ v` is one fold, anything else uses exp(s - lse) or s - lse."""

    __slots__ = ("_made", "dim_", "is_log", "source")

    def __init__(self, source: Scores, dim: int, is_log: bool) -> None:
        source._along(dim, "log_softmax" if is_log else "softmax")
        self.source, self.is_log, self.dim_ = source, is_log, source._dim(dim)
        self._made: Scores | None = None

    @property
    def along_columns(self) -> bool:
        return self.dim_ == self.source.dim() - 1

    @property
    def scores(self) -> Scores:
        """The probabilities (or their logarithms) as scores: costs one log-sum-exp pass."""
        if self._made is None:
            lse = self.source.logsumexp(self.dim_, keepdim=True)
            s = self.source.sub(lse)
            self._made = s if self.is_log else s.exp()
        return self._made

    @property
    def shape(self) -> torch.Size:
        return self.source.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.source.dtype

    @property
    def device(self) -> torch.device:
        return self.source.device

    def __repr__(self) -> str:
        return f"{'log_softmax' if self.is_log else 'softmax'}({self.source}, dim={self.dim_})"

    def __len__(self) -> int:
        return len(self.source)

    def size(self, dim: int | None = None) -> Any:
        return self.source.size(dim)

    def dim(self) -> int:
        return self.source.dim()

    @property
    def ndim(self) -> int:
        return self.source.dim()

    def to(self, *args: Any, **kwargs: Any) -> Normalized:
        return Normalized(self.source.to(*args, **kwargs), self.dim_, self.is_log)

    def type(self, dtype: torch.dtype) -> Normalized:
        return self.to(dtype)

    def float(self) -> Normalized:
        return self.to(torch.float32)

    def matmul(self, other: Tensor) -> Tensor:
        if self.is_log or not self.along_columns:
            return self.scores.matmul(other)
        return self.source._times(other, lambda v: folds.SoftmaxSum(v, neutral=False))

    __matmul__ = matmul

    @property
    def mT(self) -> Normalized:
        turned = {self.source.dim() - 1: -2, self.source.dim() - 2: -1}[self.dim_]
        return Normalized(self.source.mT, turned, self.is_log)

    def transpose(self, dim0: int, dim1: int) -> Normalized:
        self.source.transpose(dim0, dim1)
        return self.mT

    def gather(self, dim: int, index: Tensor) -> Tensor:
        one_pass = self.source._dim(dim) == self.dim_ and self.is_log and self.along_columns
        if not one_pass or index.shape[:-1] != self.shape[:-1]:
            return self.scores.gather(dim, index)
        lse, *picked = api.fold(
            self.source, folds.LogSumExp(), *(folds.Gather(index[..., i]) for i in range(index.shape[-1]))
        )
        return torch.stack([p - lse for p in picked], -1)

    def _apply(self, name: str, *others: Any, at: int = 0) -> Scores:
        return self.scores._apply(name, *others, at=at)

    def __getitem__(self, key: Any) -> Any:
        return self.scores[key]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.scores, name)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        from .torch_functions import dispatch

        return dispatch(func, args, kwargs or {})


def _band(mask: masks.Causal | masks.Window, here: str) -> text.MaskText:
    """The interval of a row that stands at column `here`, an expression."""
    left, right = (None, 0) if isinstance(mask, masks.Causal) else (mask.left, mask.right)
    lo = None if left is None else text.apply("sub", here, text.number(settled(left), "int"))
    hi = None if right is None else text.apply("add", here, text.number(settled(right + 1), "int"))
    return ("row", lo, hi, None, (0, 0), None)


def _versions(operands: Sequence[Tensor]) -> tuple[int, ...]:
    if torch.compiler.is_compiling():
        return (0,) * len(operands)
    return tuple([0 if t.is_inference() else t._version for t in operands])


def broadcast(a: Sequence[int], b: Sequence[int], argument: str) -> tuple[int, ...]:
    """The batch shape of both. Raises ShapeError where there is none."""
    if a == b or not b:
        return tuple(a)
    try:
        return tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        was = f"leading dimensions {tuple(a)} and {tuple(b)}"
        raise ShapeError(explain(argument, was, "leading dimensions that broadcast")) from None


def _same_device(a: torch.device, b: torch.device, argument: str) -> None:
    if a != b:
        raise ShapeError(explain(argument, f"devices {a} and {b}", "operands on one device"))


def _result_dtype(s: Scores, others: tuple[Any, ...]) -> torch.dtype:
    dtype = s._dtype
    for o in others:
        other = (
            o._dtype
            if isinstance(o, Scores)
            else o.dtype
            if isinstance(o, (Tensor, Normalized)) and o.dim() > 0
            else None
        )
        if other is not None and other.is_floating_point:
            dtype = torch.promote_types(dtype, other)
    return dtype


def renumber_mask(mask: text.MaskText, numbers: tuple[int, ...]) -> text.MaskText:
    axis, lo, hi, block, size, test = mask
    move = text.renumber
    return (
        axis,
        move(lo, numbers),
        move(hi, numbers),
        None if block is None else numbers[block],
        size,
        move(test, numbers),
    )


def transposed_mask(mask: text.MaskText) -> text.MaskText:
    axis, lo, hi, block, size, test = mask
    turn = text.transposed
    return ({"row": "col", "col": "row"}[axis], turn(lo), turn(hi), block, (size[1], size[0]), turn(test))


def map_texts(s: Scores, change: Callable[[str | None], str | None]) -> tuple[str, text.MaskText | None]:
    """The expression and the mask with every expression changed."""
    mask = s._mask
    if mask is not None:
        axis, lo, hi, block, size, test = mask
        mask = (axis, change(lo), change(hi), block, size, change(test))
    expr = change(s._expr)
    assert expr is not None
    return expr, mask


from . import api  # noqa: E402 - which imports this module first
