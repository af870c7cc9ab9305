"""`tf.scores`, `tf.outer`, `tf.fold` and `tf.stream`: how scores are made, and how they are reduced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import FoldError, LabelError, OptionError, ShapeError, explain
from ..execute.operator import fold as run_fold
from ..execute.operator import type_names
from ..folds.fold import Fold
from ..folds.gradient import ROW_DOT
from ..folds.lower import folded
from ..folds.topk import COMBINABLE_K, MAX_K, TopK
from ..program import text
from .core import Distances, Normalized, Scores, _same_device, autocast, broadcast, number
from .debug import can_look_at

METRICS = ("dot", "cosine", "sqeuclidean", "euclidean")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
MAX_COORDINATES = 16


def scores(x: Tensor, y: Tensor, metric: str = "dot") -> Scores:
    """Lazy scores of every row of x against every row of y, [.., N, K].

    Args:
        x: [.., N, D] float16, bfloat16, float32 or float64
        y: [.., K, D]; leading dimensions broadcast (grouped heads need no copies of the keys), data types may differ
        metric: "dot" x_i . y_j; "cosine"; "sqeuclidean" |x_i - y_j|^2; "euclidean" |x_i - y_j|
    Returns:
        Scores: nothing is computed yet; see `Scores` and `fold`. Products accumulate in float32 (float64 in float64).
    Raises:
        ShapeError: for sizes D, devices or data types that do not go together
        OptionError: for an unknown metric
    """
    check_points({"x": x, "y": y})
    if metric not in METRICS:
        raise OptionError(explain("metric", repr(metric), ", ".join(map(repr, METRICS))))
    batch = broadcast(x.shape[:-2], y.shape[:-2], "x, y")
    given = x, y
    x, y = autocast(x), autocast(y)
    copied = metric in ("sqeuclidean", "euclidean") or x is not given[0] or y is not given[1]
    if not torch.is_grad_enabled():
        x, y = x.detach(), y.detach()
    if metric in ("sqeuclidean", "euclidean"):
        x, y = _centred(x, y)
    dtype = x.dtype if x.dtype == y.dtype else torch.promote_types(x.dtype, y.dtype)
    # what was copied stays an operand that nothing reads, so that a change of it is noticed
    operands, kinds = ((x, y, *given), ("rows", "cols") * 2) if copied else ((x, y), ("rows", "cols"))
    s = Scores(operands, kinds, text.leaf(0, 1), None, tuple(batch), x.shape[-2], y.shape[-2], dtype)
    return s if metric == "dot" else _METRIC[metric](s, x, y)


def check_points(points: dict[str, Any], need: int = 2) -> None:
    """What must hold of two sets of points, by the names that the caller gave them; `need`: dimensions at least."""
    for name, t in points.items():
        if not isinstance(t, Tensor):
            raise TypeError(explain(name, type(t).__name__, "a tensor"))
        if t.dim() < need:
            may_be = "at least two dimensions, [.., N, D]" if need == 2 else "at least one dimension, [.., D]"
            raise ShapeError(explain(name, f"shape {tuple(t.shape)}", may_be))
        if t.dtype not in DTYPES:
            raise ShapeError(
                explain(name, f"a tensor of {t.dtype}", "float16, bfloat16, float32 or float64; convert it first")
            )
        if t.layout != torch.strided:
            raise ShapeError(explain(name, f"a tensor of layout {t.layout}", "a dense tensor; see Tensor.to_dense"))
    x, y = points.values()
    if x.shape[-1] != y.shape[-1]:
        raise ShapeError(explain(", ".join(points), f"D = {x.shape[-1]} and {y.shape[-1]}", "the same last size D"))
    if x.device != y.device:
        raise ShapeError(explain(", ".join(points), f"devices {x.device} and {y.device}", "operands on one device"))


def _wide(t: Tensor) -> Tensor:
    return t if t.dtype == torch.float64 else t.float()


SAMPLED = 64  # rows that tell where points lie


def _centred(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both sides moved by one point amid y: |x|^2 + |y|^2 - 2 x.y does not cancel far from the origin.

    The point is the lower quartile of each coordinate in a sample of rows: padding with NaN and infinity, which comes
    last in order, does not reach it. It lies on a grid as coarse as the data's spread, so that integers stay integers.
    bfloat16 is left alone: its own rounding is already coarser than the float32 cancellation.
    """
    if x.dtype == torch.bfloat16 or y.dtype == torch.bfloat16 or 0 in y.shape[-2:]:
        return x, y
    with torch.no_grad():
        sample = _wide(y[..., :: -(-y.shape[-2] // SAMPLED), :]).sort(-2).values
        count = sample.shape[-2]
        point = sample[..., (count - 1) // 4, None, :]
        above = sample[..., min(count - 1, max(1, (count - 1) // 2)), None, :]
        spread = (above - point).amax(-1, keepdim=True).clamp(min=torch.finfo(sample.dtype).tiny)
        grid = spread.log2().floor_().exp2_()
        point = (point / grid).round_().mul_(grid).nan_to_num_(0.0, 0.0, 0.0)
        # the same number for both sides, whatever their types
        point = point.to(x.dtype if x.dtype.itemsize < y.dtype.itemsize else y.dtype)
    return x - point.to(x.dtype), y - point.to(y.dtype)  # subtracted in float32, rounded once


def _cosine(s: Scores, x: Tensor, y: Tensor) -> Scores:
    made: Scores = s.mul(_inverse_norm(x).unsqueeze(-1)).mul(_inverse_norm(y).unsqueeze(-2))
    return made


def _inverse_norm(t: Tensor) -> Tensor:
    # like F.cosine_similarity: a zero vector has similarity 0, not NaN
    norm: Tensor = torch.linalg.vector_norm(_wide(t), dim=-1)
    return 1.0 / norm.clamp(min=1e-8)


def _square_norms(t: Tensor) -> Tensor:
    """|t_i|^2 of each row, [.., N], accumulated in float32 or wider."""
    if torch.is_grad_enabled() and t.requires_grad:
        return _wide(t).square().sum(-1)
    return run_fold([t, t], ROW_DOT, [*t.shape], "float32")[0]


def _order_of_distances(s: Scores, y: Tensor) -> Scores:
    """What orders a row's distances: all but the row's own norm."""
    order: Scores = s.mul(-2.0).add(_square_norms(y).unsqueeze(-2))
    return order


def _sqeuclidean(s: Scores, x: Tensor, y: Tensor) -> Scores:
    def make(order: Scores) -> Scores:
        made: Scores = order.add(_square_norms(x).unsqueeze(-1)).relu()
        return made

    return _distances(_order_of_distances(s, y), make)


def _euclidean(s: Scores, x: Tensor, y: Tensor) -> Scores:
    def make(order: Scores) -> Scores:
        square = order.add(_square_norms(x).unsqueeze(-1)).relu()
        apart = square.ne(0.0)  # NaN too
        # like torch.cdist: the gradient at distance 0 is 0
        made: Scores = apart.where_else(apart.where_else(square, 1.0).sqrt(), 0.0)
        return made

    return _distances(_order_of_distances(s, y), make)


def _distances(order: Scores, make: Callable[[Scores], Scores]) -> Scores:
    if not torch.compiler.is_compiling():
        return Distances(order, make)
    made = make(order)  # a traced object can't fill its slots later; what is not used costs nothing there
    made._order = order
    return made


_METRIC = {"cosine": _cosine, "sqeuclidean": _sqeuclidean, "euclidean": _euclidean}


class _Vector:
    """The D coordinates of a point, as `tf.outer`'s function sees them."""

    __hash__ = object.__hash__

    def __init__(self, coordinates: Sequence[Any]) -> None:
        self.coordinates = list(coordinates)

    def __len__(self) -> int:
        return len(self.coordinates)

    def __getitem__(self, i: int) -> Any:
        return self.coordinates[i]

    def _each(self, fn: Callable[..., Any], *others: Any) -> _Vector:
        rows = [o.coordinates if isinstance(o, _Vector) else [o] * len(self) for o in others]
        return _Vector([fn(c, *rest) for c, *rest in zip(self.coordinates, *rows, strict=True)])

    def __add__(self, other: Any) -> _Vector:
        return self._each(lambda a, b: a + b, other)

    def __sub__(self, other: Any) -> _Vector:
        return self._each(lambda a, b: a - b, other)

    def __mul__(self, other: Any) -> _Vector:
        return self._each(lambda a, b: a * b, other)

    def __truediv__(self, other: Any) -> _Vector:
        return self._each(lambda a, b: a / b, other)

    __radd__, __rmul__ = __add__, __mul__

    def __rsub__(self, other: Any) -> _Vector:
        return self._each(lambda a, b: b - a, other)

    def __neg__(self) -> _Vector:
        return self._each(lambda a: -a)

    def __abs__(self) -> _Vector:
        return self._each(lambda a: a.abs())

    def __pow__(self, power: float) -> _Vector:
        return self._each(lambda a: a**power)

    def sum(self, dim: int = -1) -> Any:
        total = self.coordinates[0]
        for c in self.coordinates[1:]:
            total = total + c
        return total

    def amax(self, dim: int = -1) -> Any:
        best = self.coordinates[0]
        for c in self.coordinates[1:]:
            best = best.maximum(c)
        return best

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args: self._each(lambda a: getattr(a, name)(*args))


def outer(fn: Callable[[Any, Any], Any], rows: Tensor, columns: Tensor) -> Scores:
    """Lazy scores that no matrix product makes: fn(x_i, y_j) of a few coordinates.

    Args:
        fn: of two vectors with arithmetic, methods such as .abs() and .exp(), `v[d]`, and .sum(-1) or .amax(-1) over
            the D coordinates (methods, not torch's functions):
            `lambda x, y: (x - y).abs().sum(-1)` is the L1 distance
        rows: [.., N, D], D <= 16
        columns: [.., K, D]
    Raises:
        ShapeError: for sizes or devices that do not go together; OptionError: for D > 16.
    """
    check_points({"rows": rows, "columns": columns})
    if not 1 <= rows.shape[-1] <= MAX_COORDINATES:
        raise OptionError(
            explain("D", str(rows.shape[-1]), f"1 to {MAX_COORDINATES} coordinates; use tf.scores for more")
        )
    batch = broadcast(rows.shape[:-2], columns.shape[:-2], "rows, columns")
    dtype = torch.promote_types(rows.dtype, columns.dtype)
    n, k = rows.shape[-2], columns.shape[-2]
    d = rows.shape[-1]
    operands = (*(t.unsqueeze(-1) for t in rows.unbind(-1)), *(t.unsqueeze(-2) for t in columns.unbind(-1)))
    kinds = ("row",) * d + ("col",) * d
    base = Scores(operands, kinds, text.number(0, "int"), None, tuple(batch), n, k, dtype)
    points = [base._with(expr=text.data(i, kind, "float"), versions=base._versions) for i, kind in enumerate(kinds)]
    made = fn(_Vector(points[:d]), _Vector(points[d:]))
    if not isinstance(made, Scores):
        raise OptionError(
            explain(
                "fn", f"a function that returned {type(made).__name__}", "one number per pair: reduce with .sum(-1)"
            )
        )
    return made


def fold(s: Any, *args: Fold, **named: Fold) -> Any:
    """Reduces each row of scores, in one pass for all the folds.

    Args:
        s: scores; or a list of scores that are shards of the columns, in order: the result is that of the whole. A
            payload is then [.., K, Dv] for all columns together, or a list with a part for each shard.
        args, named: folds. Each names what it gives: `tf.fold(s, lse=tf.LogSumExp(), hit=tf.Gather(labels))`
    Returns:
        one fold: its result; several positional ones: a tuple; named ones: a dict with `.lse` and `["lse"]`.
        Differentiable in the operands, the payloads, and every tensor of the expression.
    Raises:
        ShapeError, OptionError, LabelError: naming the argument
        RuntimeError: an operand was changed in place after the scores were made
        FoldError: the folds can't be combined in one pass
    """
    every = check_folds((*args, *named.values()))
    if isinstance(s, (list, tuple)):
        from .merge import fold_shards

        results = fold_shards(list(s), every)
    else:
        results = run(s.scores if isinstance(s, Normalized) else s, every)
    return _public(every, results, len(args), tuple(named))


def check_folds(every: tuple[Any, ...]) -> tuple[Fold, ...]:
    """At least one fold, and nothing else."""
    if not every:
        raise OptionError(explain("folds", "none", "at least one fold, such as tf.LogSumExp()"))
    for f in every:
        if not isinstance(f, Fold):
            was = f"the class {f.__name__}" if isinstance(f, type) else type(f).__name__
            raise OptionError(explain("fold", was, "a fold, such as tf.LogSumExp() (an instance)"))
    return every


def _public(
    every: Sequence[Fold], results: Sequence[tuple[Tensor, ...]], positional: int, names: tuple[str, ...]
) -> Any:
    """What `fold` and `stream` return of all results."""
    public = [f.public(r) for f, r in zip(every, results, strict=True)]
    if names:
        numbers = [str(i) for i in range(positional)]
        return Results(dict(zip([*numbers, *names], public, strict=True)))
    return public[0] if len(public) == 1 else tuple(public)


class Results(dict[str, Any]):
    """Named results, by key or attribute."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no result {name!r}; there are {', '.join(self)}") from None


def check(s: Scores, every: Sequence[Fold]) -> None:
    """What must hold before anything runs."""
    if not isinstance(s, Scores):
        raise TypeError(explain("s", type(s).__name__, "scores, made by tf.scores"))
    s._check_unchanged()
    for f in every:
        if isinstance(f, TopK):
            k = f.k
            if not isinstance(k, int) or isinstance(k, bool):
                raise OptionError(explain("k", f"{k!r}, a {type(k).__name__}", "an int"))
            if not 1 <= k <= MAX_K:
                raise OptionError(explain("k", str(k), f"1 to {MAX_K}"))
            if k > s._k:
                raise OptionError(explain("k", str(k), f"at most K = {s._k}, the number of columns"))
            if k > COMBINABLE_K and len(every) > 1:
                raise FoldError(
                    explain("k", f"{k} beside other folds", f"at most {COMBINABLE_K} in one pass; fold it alone")
                )
        if s._k == 0 and not f.neutral_result:
            raise IndexError(
                explain("s", "scores with no column (K = 0)", f"at least one column: {f.name} of nothing has no value")
            )
        if f.payload is None:
            if "payload" in [r.kind for r in f.results]:
                raise OptionError(explain("payload", "None", f"a tensor [.., K, Dv] for {f.name}"))
        else:
            v = f.payload
            if not isinstance(v, Tensor):
                raise TypeError(explain("payload", type(v).__name__, "a tensor [.., K, Dv]"))
            if v.dim() < 2 or v.shape[-2] != s._k:
                raise ShapeError(explain("payload", f"shape {tuple(v.shape)}", f"[.., K, Dv] with K = {s._k}"))
            if v.dtype not in DTYPES:
                raise ShapeError(explain("payload", f"a tensor of {v.dtype}", "a floating-point tensor"))
            _same_device(s.device, v.device, "payload")
        if f.name == "gather":
            check_index(f.extras[0], s._k)
        elif f.name == "sample":
            for name, e in zip(f.extra_names[:3], f.extras[:3], strict=True):
                real = isinstance(e, float) or (isinstance(e, Tensor) and (e.is_floating_point() or e.is_complex()))
                if real:
                    raise ShapeError(
                        explain(name, str(getattr(e, "dtype", "a float")), "an integer, or a tensor of integers")
                    )


def check_index(index: Any, k: int) -> None:
    if not isinstance(index, Tensor) or index.is_floating_point() or index.dtype == torch.bool:
        raise ShapeError(explain("index", str(getattr(index, "dtype", type(index).__name__)), "a tensor of integers"))
    if can_look_at(index) and index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < 0 or high >= k:
            raise LabelError(explain("index", f"values from {low} to {high}", f"0 to {k - 1}"))


class Assembled(NamedTuple):
    """A Program's text, its operands, sizes (*batch, N, K), and the types of the payload results."""

    program: str
    operands: list[Tensor]
    sizes: list[int]
    dtypes: list[torch.dtype]


def assemble(given: Scores | tuple[Scores, ...], every: Sequence[Fold], wide: bool = False) -> Assembled:
    """The Program that folds scores.

    Args:
        given: scores for all folds; or for each fold its own, which differ only in their expression
        wide: payload results in float32 or float64, to be merged further
    """
    each = given if isinstance(given, tuple) else (given,) * len(every)
    s = each[0]
    check(s, every)
    outputs, dtypes = [], []
    for f, own in zip(every, each, strict=True):
        extras: tuple[str | None, ...] = ()
        more = f.extras
        for name, e in zip(f.extra_names or (f.name,) * len(more), more, strict=True):
            if isinstance(e, Tensor):
                s, added = s._row_data(e, name)
                extras += (added,)
            else:
                extras += (None if e is None else number(e),)
        payload = None
        dtype = torch.float32
        if f.payload is not None:
            v = f.payload if torch.is_grad_enabled() else f.payload.detach()
            payload = len(s._operands)
            batch = broadcast(s._batch, v.shape[:-2], "payload")
            s = s._with(operands=(*s._operands, v), kinds=(*s._kinds, "cols"), batch=batch, versions=(*s._versions, 0))
            dtype = v.dtype if v.dtype == s._dtype else torch.promote_types(v.dtype, s._dtype)
            dtype = torch.promote_types(dtype, torch.float32) if wide else dtype
        outputs.append((own._expr, f.name, f.options, extras, payload))
        dtypes.append(dtype)
    program, kept = folded(s._kinds, tuple(outputs), s._mask)
    return Assembled(program, [s._operands[i] for i in kept], [*s._batch, s._n, s._k], dtypes)


def run(s: Scores | tuple[Scores, ...], every: Sequence[Fold], wide: bool = False) -> list[tuple[Tensor, ...]]:
    """All results of each fold, in one pass; arguments as for `assemble`."""
    return run_assembled(assemble(s, every, wide), every)


def run_assembled(made: Assembled, every: Sequence[Fold]) -> list[tuple[Tensor, ...]]:
    flat = run_fold(made.operands, made.program, made.sizes, type_names(*made.dtypes))
    results, start = [], 0
    for f in every:
        results.append(tuple(flat[start : start + len(f.results)]))
        start += len(f.results)
    return results


def stream(
    x: Tensor,
    chunks: Iterable[Any],
    *args: Fold,
    metric: str = "dot",
    transform: Callable[[Scores], Scores] | None = None,
    **named: Fold,
) -> Any:
    """Folds column chunks that never lie in memory together, forward only.

    Args:
        x: [.., N, D]
        chunks: of y, [.., K_c, D]; or of (y chunk, payload chunk [.., K_c, Dv]) for folds with a payload
        args, named: folds, as for `fold`; a fold with a payload is given without it, `tf.SoftmaxSum()`
        metric: as for `scores`
        transform: what to do with each chunk's scores before the fold, for example `lambda s: s / 0.7`; `col_index`
            counts within the chunk
    Returns:
        as `fold`, for all chunks together; columns are numbered through
    """
    from .merge import fold_stream

    every = check_folds((*args, *named.values()))
    results = fold_stream(x, chunks, every, metric, transform)
    return _public(every, results, len(args), tuple(named))
