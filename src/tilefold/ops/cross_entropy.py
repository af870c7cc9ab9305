"""Cross-entropy of lazy logits, and of a linear layer's, without the [N, V] logits.

loss_i = lse_i - s_i,y_i, from one pass: log-sum-exp and the target's score (with label smoothing also the sum over
classes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import LabelError, OptionError, ShapeError, explain
from ..folds import Gather, LogSumExp, Sum
from ..scores import Scores, fold, scores
from ..scores.api import check_points
from ..scores.debug import can_look_at

REDUCTIONS = ("mean", "sum", "none")


def linear_cross_entropy(
    input: Tensor,
    linear_weight: Tensor,
    target: Tensor,
    *,
    linear_bias: Tensor | None = None,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    softcap: float | None = None,
    z_loss: float = 0.0,
) -> Tensor:
    """F.cross_entropy(F.linear(input, linear_weight, linear_bias), target) without the logits.

    Args:
        input: [.., D], the hidden states
        linear_weight: [V, D]
        target: [..] integer classes, or [.., V] probabilities
        linear_bias: [V]
        weight, reduction, ignore_index, label_smoothing: as in torch.nn.functional.cross_entropy
        softcap: c tanh(logit / c) in the place of the logit
        z_loss: adds z_loss * log-sum-exp^2 to each token's loss (PaLM, 2022)
    Returns:
        a scalar, or [..] for reduction "none"; float32 (float64 for float64 operands). The hidden states of an ignored
        target get gradient 0 even if they hold NaN, and add nothing to linear_weight's. All targets ignored: "mean"
        is NaN, as in torch, with gradient 0.
    Raises:
        ShapeError, OptionError; LabelError (an IndexError): a target that is no class, on the CPU or in debug mode. On
        a GPU such a row's loss is NaN.
    """
    check_points({"input": input, "linear_weight": linear_weight}, 1)
    if not isinstance(target, Tensor):
        raise TypeError(explain("target", type(target).__name__, "a tensor"))
    if linear_weight.dim() != 2:
        was = f"shapes {tuple(input.shape)} and {tuple(linear_weight.shape)}"
        raise ShapeError(explain("input, linear_weight", was, "[.., D] and [V, D]"))
    soft = target.is_floating_point()
    lead = input.shape[:-1]
    if target.shape != (*lead, *(linear_weight.shape[:1] if soft else ())):
        may_be = f"integers {list(lead)}, or probabilities {[*lead, linear_weight.shape[0]]}"
        raise ShapeError(explain("target", f"a tensor of {target.dtype} and shape {tuple(target.shape)}", may_be))
    s = scores(input.reshape(-1, input.shape[-1]), linear_weight)
    if linear_bias is not None:
        if linear_bias.shape != (linear_weight.shape[0],):
            raise ShapeError(explain("linear_bias", f"shape {tuple(linear_bias.shape)}", f"[{linear_weight.shape[0]}]"))
        s = s + linear_bias
    s = s.softcap(softcap)
    loss = cross_entropy(
        s,
        target.reshape(s.shape if soft else s.shape[:1]),
        weight=weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    return loss.reshape(lead) if reduction == "none" else loss


def cross_entropy(
    s: Scores,
    target: Tensor,
    *,
    weight: Tensor | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
) -> Tensor:
    """F.cross_entropy of lazy logits [.., N, V], the classes along the last axis; see `linear_cross_entropy`.

    The targets are integer classes [.., N], or probabilities [.., N, V] that are read tile by tile.
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise OptionError(explain("label_smoothing", str(label_smoothing), "a number from 0 to 1"))
    if target.is_floating_point():
        return _soft(s, target, weight, reduction, ignore_index, label_smoothing, z_loss)
    classes = s.shape[-1]
    target, valid, mark = _checked(s, target, ignore_index, reduction, weight)
    # an ignored row sees no class: it costs nothing, and its gradient is 0 whatever it holds
    shown = s.visible_rows(valid)
    total = None
    if label_smoothing and weight is None:
        lse, hit, total = fold(shown, LogSumExp(), Gather(target), Sum())
    else:
        lse, hit = fold(shown, LogSumExp(), Gather(target))
    loss = lse - hit
    picked = None if weight is None else weight.to(lse.dtype)[target]
    if picked is not None:
        loss = loss * picked
    if label_smoothing:
        if weight is None:
            mass: float | Tensor = float(classes)
        else:
            mass, total = weight.sum(dtype=lse.dtype), fold(shown * weight, Sum())
        loss = (1.0 - label_smoothing) * loss + label_smoothing / classes * (lse * mass - total)
    if z_loss:
        loss = loss + z_loss * torch.where(valid, lse, 0.0).square()
    loss = torch.where(valid, loss if mark is None else loss * mark, 0.0)
    return _reduced(loss, valid, picked, reduction)


def _soft(
    s: Scores,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
) -> Tensor:
    """Targets that are probabilities p: loss_i = lse_i sum_c w_c p_ic - sum_c w_c p_ic s_ic."""
    _check_options(s, target, s.shape, reduction, weight)
    if ignore_index >= 0:
        raise OptionError(
            explain("ignore_index", f"{ignore_index} with targets that are probabilities", "a negative number")
        )
    lse = fold(s, LogSumExp())
    classes = s.shape[-1]
    p = target.to(lse.dtype)
    own = s * target
    if label_smoothing:
        own = own * (1.0 - label_smoothing) + s * (label_smoothing / classes)
    if weight is None:
        mass = p.sum(-1) * (1.0 - label_smoothing) + label_smoothing
    else:
        own, w = own * weight, weight.to(lse.dtype)
        mass = (p @ w) * (1.0 - label_smoothing) + w.sum() * (label_smoothing / classes)
    loss: Tensor = lse * mass - fold(own, Sum())
    if z_loss:
        loss = loss + z_loss * lse.square()
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / loss.numel()


def nll(logp: Scores, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    """F.nll_loss of lazy log-probabilities [.., N, V]."""
    target, valid, mark = _checked(logp, target, ignore_index, reduction, weight)
    loss = -fold(logp.visible_rows(valid), Gather(target))
    picked = None if weight is None else weight.to(loss.dtype)[target]
    for factor in (picked, mark):
        loss = loss if factor is None else loss * factor
    return _reduced(torch.where(valid, loss, 0.0), valid, picked, reduction)


def _check_options(s: Scores, target: Tensor, shape: tuple[int, ...], reduction: str, weight: Tensor | None) -> None:
    if reduction not in REDUCTIONS:
        raise OptionError(explain("reduction", repr(reduction), ", ".join(map(repr, REDUCTIONS))))
    if target.shape != shape:
        raise ShapeError(explain("target", f"shape {tuple(target.shape)}", f"{list(shape)}"))
    if weight is not None and weight.shape != s.shape[-1:]:
        raise ShapeError(explain("weight", f"shape {tuple(weight.shape)}", f"[{s.shape[-1]}]"))
    for name, t in (("target", target), ("weight", weight)):
        if t is not None and t.device != s.device:
            raise ShapeError(explain(name, f"a tensor on {t.device}", f"one on {s.device}, as the scores"))


def _checked(
    s: Scores, target: Tensor, ignore_index: int, reduction: str, weight: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Targets with a class in every place, which of them count, and a factor that is NaN where a wrong one counts."""
    if target.dtype == torch.bool or target.is_floating_point():
        raise ShapeError(explain("target", f"a tensor of {target.dtype}", "integer classes"))
    _check_options(s, target, s.shape[:-1], reduction, weight)
    classes = s.shape[-1]
    target = target.to(torch.int64)
    valid = target != ignore_index
    inside = (target >= 0) & (target < classes)
    mark = None
    if not can_look_at(target):
        mark = torch.where(inside | ~valid, 1.0, float("nan"))
    elif not bool((inside | ~valid).all()):
        bad = target[valid & ~inside]
        raise LabelError(
            explain("target", f"the class {int(bad[0])}", f"0 to {classes - 1}, or ignore_index = {ignore_index}")
        )
    return torch.where(valid & inside, target, 0), valid, mark


def _reduced(loss: Tensor, valid: Tensor, picked: Tensor | None, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    count = valid.sum() if picked is None else torch.where(valid, picked, 0.0).sum()
    return loss.sum() / count
