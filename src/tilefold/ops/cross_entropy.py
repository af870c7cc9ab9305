"""Cross-entropy of lazy logits, and of a linear layer's, without the [N, V] logits.

loss_i = lse_i - s_i,y_i, from one pass: log-sum-exp and the target's score (and, with label smoothing, the sum over classes).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import FoldError, LabelError, OptionError, ShapeError, explain
from ..folds import Gather, LogSumExp, Sum
from ..scores import Scores, fold, scores
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
        target: [..] integer classes
        linear_bias: [V]
        weight, reduction, ignore_index, label_smoothing: as in torch.nn.functional.cross_entropy
        softcap: c tanh(logit / c) in the place of the logit
        z_loss: adds z_loss * log-sum-exp^2 to each token's loss (PaLM, 2022)
    Returns:
        a scalar, or [..] for reduction "none"; float32 (float64 for float64 operands). A row of ignored targets gets gradient 0
        even if it holds NaN. All targets ignored: "mean" is NaN, as in torch, with gradient 0.
    Raises:
        ShapeError, OptionError; LabelError (an IndexError): a target that is no class, on the CPU or in debug mode. On a GPU such
        a row's loss is NaN.
    """
    if input.dim() < 1 or linear_weight.dim() != 2:
        was = f"shapes {tuple(input.shape)} and {tuple(linear_weight.shape)}"
        raise ShapeError(explain("input, linear_weight", was, "[.., D] and [V, D]"))
    if target.shape != input.shape[:-1]:
        raise ShapeError(explain("target", f"shape {tuple(target.shape)}", f"{list(input.shape[:-1])}"))
    s = scores(input.reshape(-1, input.shape[-1]), linear_weight)
    if linear_bias is not None:
        if linear_bias.shape != (linear_weight.shape[0],):
            raise ShapeError(explain("linear_bias", f"shape {tuple(linear_bias.shape)}", f"[{linear_weight.shape[0]}]"))
        s = s + linear_bias
    s = s.softcap(softcap)
    loss = cross_entropy(
        s,
        target.reshape(-1),
        weight=weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
        z_loss=z_loss,
    )
    return loss.reshape(target.shape) if reduction == "none" else loss


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
    """F.cross_entropy of lazy logits [.., N, V] and targets [.., N], the classes along the last axis; see `linear_cross_entropy`."""
    classes = s.shape[-1]
    target, valid = _checked(s, target, ignore_index, reduction, weight)
    if not 0.0 <= label_smoothing <= 1.0:
        raise OptionError(explain("label_smoothing", str(label_smoothing), "a number from 0 to 1"))
    # an ignored row sees no class: it costs nothing, and its gradient is 0 whatever it holds
    shown = s.visible_rows(valid)
    folds = [LogSumExp(), Gather(target)]
    if label_smoothing:
        s_weighted = shown if weight is None else shown * weight
        lse, hit = fold(shown, *folds)
        total = fold(s_weighted, Sum())
    else:
        lse, hit = fold(shown, *folds)
    picked = None if weight is None else weight[target]
    loss = lse - hit
    if picked is not None:
        loss = loss * picked
    if label_smoothing:
        mass = float(classes) if weight is None else weight.sum()
        loss = (1.0 - label_smoothing) * loss + label_smoothing / classes * (lse * mass - total)
    if z_loss:
        loss = loss + z_loss * lse.square()
    loss = torch.where(valid, loss, 0.0)
    return _reduced(loss, valid, picked, reduction)


def nll(logp: Scores, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str) -> Tensor:
    """F.nll_loss of lazy log-probabilities [.., N, V]."""
    target, valid = _checked(logp, target, ignore_index, reduction, weight)
    hit = fold(logp.visible_rows(valid), Gather(target))
    picked = None if weight is None else weight[target]
    loss = -hit if picked is None else -hit * picked
    return _reduced(torch.where(valid, loss, 0.0), valid, picked, reduction)


def _checked(s: Scores, target: Tensor, ignore_index: int, reduction: str, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Targets with a class in every place, and which of them count."""
    if reduction not in REDUCTIONS:
        raise OptionError(explain("reduction", repr(reduction), ", ".join(map(repr, REDUCTIONS))))
    if target.is_floating_point():
        raise FoldError(explain("target", f"a tensor of {target.dtype} (class probabilities)", "integer classes; write p-weighted sums as folds"))
    if target.shape != s.shape[:-1]:
        raise ShapeError(explain("target", f"shape {tuple(target.shape)}", f"{list(s.shape[:-1])}"))
    classes = s.shape[-1]
    if weight is not None and weight.shape != (classes,):
        raise ShapeError(explain("weight", f"shape {tuple(weight.shape)}", f"[{classes}]"))
    valid = target != ignore_index
    inside = (target >= 0) & (target < classes)
    if can_look_at(target) and not bool((inside | ~valid).all()):
        bad = target[valid & ~inside]
        raise LabelError(explain("target", f"the class {int(bad[0])}", f"0 to {classes - 1}, or ignore_index = {ignore_index}"))
    # out of range where nobody looks: no column matches, so the row becomes NaN below
    return torch.where(valid & inside, target, 0), valid


def _reduced(loss: Tensor, valid: Tensor, picked: Tensor | None, reduction: str) -> Tensor:
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    count = valid.sum() if picked is None else torch.where(valid, picked, 0.0).sum()
    return loss.sum() / count
