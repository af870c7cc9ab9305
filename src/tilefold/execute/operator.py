"""The operator boundary: one torch operator that runs a Program, one that runs its gradient.

    tilefold::fold(Tensor[] operands, str program, SymInt[] sizes, str dtypes) -> Tensor[]

torch.compile, export, vmap and the autograd engine see these two and nothing below. What is saved for the backward
pass: the operands and the results, which are O(N). The gradient operator has no derivative: a second one raises.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .. import folds
from ..errors import FoldError, GradientError
from ..folds.gradient import ROW_DOT, Gradient, gradient, result_slices, row_operand
from ..program import Program, text
from . import backend, select

_library = torch.library.Library("tilefold", "DEF")
_library.define("fold(Tensor[] operands, str program, SymInt[] sizes, str dtypes) -> Tensor[]")
_library.define("fold_backward(Tensor[] operands, str program, SymInt[] sizes, str dtypes) -> Tensor[]")


@functools.lru_cache(maxsize=256)
def named_types(names: str) -> tuple[torch.dtype, ...]:
    """("float32 bfloat16") -> (torch.float32, torch.bfloat16): types can't pass through every tracer, text can."""
    return tuple(getattr(torch, name) for name in names.split())


@text.constant
def type_names(*types: torch.dtype) -> str:
    return " ".join(str(t).removeprefix("torch.") for t in types)


def _run(
    operands: Sequence[Tensor], program: str, sizes: Sequence[int], dtypes: str, read: tuple[bool, ...] = ()
) -> list[Tensor]:
    if operands[0].is_meta:
        return _shapes(operands, program, sizes, dtypes)
    *batch, n, k = sizes
    return backend.run(Program.parse(program), operands, tuple(batch), n, k, named_types(dtypes), read)


def _shapes(operands: Sequence[Tensor], program: str, sizes: Sequence[int], dtypes: str) -> list[Tensor]:
    """Results without values, for tracing and on the meta device."""
    parsed = Program.parse(program)
    *batch, n, k = sizes
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    made = []
    for o, dtype in zip(parsed.outputs, named_types(dtypes), strict=True):
        new = operands[0].new_empty
        width = () if o.payload is None else (operands[o.payload].shape[-1],)
        if o.axis != "row" or o.like is not None:
            like = None if o.like is None else operands[o.like]
            lead = batch if like is None else [1] * (len(batch) - like.dim() + 2) + list(like.shape[:-2])
            tail = (n, k) if o.axis == "tile" else ({"row": n, "col": k}[o.axis], *width)
            made.append(new((*lead, *tail), dtype=dtype if width or o.axis == "tile" else wide))
            continue
        for r in folds.lookup(o).results:
            kind = wide if r.type == "float" else torch.int64
            match r.kind:
                case "payload":
                    made.append(new((*batch, n, *width), dtype=dtype))
                case "list":
                    made.append(new((*batch, n, dict(o.options)["k"]), dtype=kind))
                case _:
                    made.append(new((*batch, n), dtype=kind))
    return made


for _name in ("fold", "fold_backward"):
    _library.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"tilefold::{_name}", _shapes, lib=_library)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    operands, ctx.program, ctx.sizes, ctx.dtypes = inputs
    ctx.count, ctx.forced = len(operands), select.forced()
    ctx.save_for_backward(*operands, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, None, None, None]:
    saved = ctx.saved_tensors
    operands, results = saved[: ctx.count], saved[ctx.count :]
    needs = tuple(ctx.needs_input_grad[0])
    with select.using(**dict(ctx.forced)):  # a thread of its own
        return pull_back(ctx.program, ctx.sizes, operands, results, grads, needs), None, None, None


def pull_back(
    program: str,
    sizes: Sequence[int],
    operands: Sequence[Tensor],
    results: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    needs: tuple[bool, ...],
) -> list[Tensor | None]:
    """The gradients of the operands that need one."""
    plan = gradient(program, needs, tuple(g is not None for g in grads))
    answer: list[Tensor | None] = [None] * len(operands)
    if plan is None:
        return answer
    tensors = _gradient_operands(plan, program, operands, tuple(results), tuple(grads))
    parts: dict[int, int] = {t: plan.targets.count(t) for t in plan.targets}
    wide = torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32
    # a gradient that is a sum of several parts is rounded once, at the end
    dtypes = type_names(*(operands[t].dtype if parts[t] == 1 else wide for t in plan.targets))
    if not torch.compiler.is_compiling() and _direct(tensors):
        outputs = _FoldBackward.apply(plan.program.text, sizes, dtypes, *tensors)  # type: ignore[no-untyped-call]
    else:
        outputs = torch.ops.tilefold.fold_backward(tensors, plan.program.text, sizes, dtypes)
    for t, o, value in zip(plan.targets, plan.program.outputs, outputs, strict=True):
        operand = operands[t]
        value = _onto(value, o.axis, program, t, operand)
        have = answer[t]
        answer[t] = value if have is None else have + value
    return [None if g is None else g.to(t.dtype) for g, t in zip(answer, operands, strict=True)]


def _onto(value: Tensor, axis: str, program: str, target: int, operand: Tensor) -> Tensor:
    """A gradient output in the shape of its operand."""
    match Program.parse(program).operands[target]:
        case "scalar":
            value = value.sum(-1)[..., None, None]
        case "row":
            value = value.unsqueeze(-1)
        case "col":
            value = value.unsqueeze(-2)
    return value.sum_to_size(operand.shape) if value.shape != operand.shape else value


def _gradient_operands(
    plan: Gradient,
    program: str,
    operands: Sequence[Tensor],
    results: tuple[Tensor, ...],
    grads: tuple[Tensor | None, ...],
) -> list[Tensor]:
    parts = result_slices(Program.parse(program))
    made = []
    for source in plan.sources:
        if isinstance(source, int):
            made.append(operands[source])
        else:
            part = parts[source.output]
            made.append(row_operand(source, results[part], grads[part], _row_dot))
    return made


def _row_dot(a: Tensor, b: Tensor) -> Tensor:
    """a_i . b_i of each row, [.., N], accumulated in float32 or wider."""
    if not torch.compiler.is_compiling() and _direct((a, b)):
        outputs: Sequence[Tensor] = _FoldBackward.apply(ROW_DOT, [*a.shape], "float32", a, b)  # type: ignore[no-untyped-call]
    else:
        outputs = torch.ops.tilefold.fold_backward([a, b], ROW_DOT, [*a.shape], "float32")
    return outputs[0]


def _no_second_derivative(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    raise GradientError(
        "backward: a second derivative through a fold was asked for; only first derivatives are defined. "
        "Use s.materialize() for a score matrix that fits in memory."
    )


torch.library.register_autograd("tilefold::fold", _backward, setup_context=_setup_context, lib=_library)
torch.library.register_autograd(
    "tilefold::fold_backward", _no_second_derivative, setup_context=lambda ctx, inputs, output: None, lib=_library
)


class _Fold(torch.autograd.Function):
    """The operator outside tracing: serves torch.func, and costs a third of the registered formula per call."""

    generate_vmap_rule = False

    @staticmethod
    def forward(program: str, sizes: Sequence[int], dtypes: str, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(_run(operands, program, sizes, dtypes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.program, ctx.sizes, ctx.dtypes, *operands = inputs
        ctx.count, ctx.forced = len(operands), select.forced()
        ctx.save_for_backward(*operands, *output)
        ctx.mark_non_differentiable(*(t for t in output if not t.is_floating_point()))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: checkpointing unpacks them
        operands, results = saved[: ctx.count], saved[ctx.count :]
        needs = tuple(ctx.needs_input_grad[3:])
        with select.using(**dict(ctx.forced)):
            return (None, None, None, *pull_back(ctx.program, ctx.sizes, operands, results, grads, needs))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise GradientError(
            "jvp: a forward-mode derivative through a fold was asked for; "
            "only reverse mode (backward, torch.func.grad) is defined. "
            "Use s.materialize() for a score matrix that fits in memory."
        )

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: str, sizes: Sequence[int], dtypes: str, *operands: Tensor
    ) -> Any:
        if Program.parse(program).pages is not None:
            raise FoldError("vmap: columns in pages were mapped; a table of pages has a batch dimension of its own")
        moved = _batched(info.batch_size, in_dims[3:], operands, len(sizes), False)
        out = _Fold.apply(program, [info.batch_size, *sizes], dtypes, *moved)  # type: ignore[no-untyped-call]
        return out, (0,) * len(out)


class _FoldBackward(torch.autograd.Function):
    """The gradient operator outside tracing; its own derivative raises."""

    generate_vmap_rule = False

    @staticmethod
    def forward(program: str, sizes: Sequence[int], dtypes: str, *operands: Tensor) -> tuple[Tensor, ...]:
        return tuple(_run(operands, program, sizes, dtypes))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        return _no_second_derivative(ctx, grads)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], program: str, sizes: Sequence[int], dtypes: str, *operands: Tensor
    ) -> Any:
        moved = _batched(info.batch_size, in_dims[3:], operands, len(sizes), True)
        out = _FoldBackward.apply(program, [info.batch_size, *sizes], dtypes, *moved)  # type: ignore[no-untyped-call]
        return out, (0,) * len(out)


def _batched(
    size: int, in_dims: Sequence[int | None], operands: Sequence[Tensor], rank: int, every: bool
) -> list[Tensor]:
    """Operands with the mapped dimension in front; `every`: also those that all entries share."""
    moved = []
    for t, d in zip(operands, in_dims, strict=True):
        if d is not None:
            t = t.movedim(d, 0)
            t = t.reshape(t.shape[0], *(1,) * (rank + 1 - t.dim()), *t.shape[1:])
        elif every:
            t = t.expand(size, *(1,) * (rank - t.dim()), *t.shape)
        moved.append(t)
    return moved


def fold(operands: list[Tensor], program: str, sizes: Sequence[int], dtypes: str) -> Sequence[Tensor]:
    """Runs a Program.

    Args:
        operands: of the kinds and shapes that `tilefold.program.Program` describes
        program: `Program.text`
        sizes: (*batch, N, K)
        dtypes: `type_names` of each output's payload result
    """
    if torch.compiler.is_compiling() or not _direct(operands):
        traced: Sequence[Tensor] = torch.ops.tilefold.fold(operands, program, sizes, dtypes)
        return traced
    return fold_directly(operands, program, sizes, dtypes)


def fold_directly(
    operands: list[Tensor], program: str, sizes: Sequence[int], dtypes: str, read: tuple[bool, ...] = ()
) -> Sequence[Tensor]:
    """`fold` where `is_plain` holds, or where function transforms are all that see the call."""
    if torch._C._are_functorch_transforms_active() or _wants_derivative(operands):
        recorded: Sequence[Tensor] = _Fold.apply(program, sizes, dtypes, *operands)  # type: ignore[no-untyped-call]
        return recorded
    return _run(operands, program, sizes, dtypes, read)


_PLAIN = (Tensor, torch.nn.Parameter)


def _direct(operands: Sequence[Any]) -> bool:
    """Whether nobody between here and the executor wants to see the call: no mode, no tensor subclass."""
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return False
    for t in operands:  # half the time of all()
        if type(t) not in _PLAIN:
            return False
    return True


def is_plain(operands: Sequence[Any]) -> bool:
    """Whether a call is nothing but its operands: nobody traces or transforms it."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return torch._C._get_tracing_state() is None and _direct(operands)


def _wants_derivative(operands: Sequence[Tensor]) -> bool:
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and True in [t.requires_grad for t in operands]


__all__ = ["fold", "fold_directly", "is_plain", "pull_back", "type_names"]
