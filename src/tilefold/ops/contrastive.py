"""Contrastive losses over all pairs of a batch, without the [N, N] logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..folds import Gather, LogSumExp, Sum
from ..scores import col_index, fold, row_index, scores
from ..scores.api import check_points

KINDS = ("clip", "siglip")


def contrastive_loss(
    a: Tensor,
    b: Tensor,
    *,
    scale: float | Tensor = 1.0,
    bias: float | Tensor = 0.0,
    kind: str = "clip",
    normalize: bool = True,
) -> Tensor:
    """The contrastive loss of N pairs (a_i, b_i), a scalar.

    Args:
        a, b: [N, D], the two views of each pair
        scale: factor of the similarities (1 / temperature), a number or a tensor of one element; learnable
        bias: added to the scaled similarities, a number or a tensor of one element; only "siglip" depends on it
        kind: "clip": the mean of both directions' cross-entropies (Radford et al., 2021);
            "siglip": sum over all pairs of -log sigmoid(+-s) / N, + for i = j (Zhai et al., 2023)
        normalize: whether to scale a and b to unit length first
    Raises:
        ShapeError, OptionError: naming the argument
    """
    check_points({"a": a, "b": b}, 1)
    if a.dim() != 2 or a.shape != b.shape:
        raise ShapeError(explain("a, b", f"shapes {tuple(a.shape)} and {tuple(b.shape)}", "the same shape [N, D]"))
    if kind not in KINDS:
        raise OptionError(explain("kind", repr(kind), " or ".join(map(repr, KINDS))))
    for name, t in (("scale", scale), ("bias", bias)):
        if isinstance(t, Tensor) and t.numel() != 1:
            raise ShapeError(explain(name, f"shape {tuple(t.shape)}", "a number or a tensor of one element"))
    if normalize:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    s = scores(a, b) * scale + bias
    if kind == "siglip":
        signed = row_index().eq(col_index()).where_else(s, -s)
        total: Tensor = fold(signed.logsigmoid(), Sum()).sum()
        return -total / a.shape[0]
    # the pair's own score comes from the same pass: softmax - 1 is subtracted before anything is rounded to a's type
    pairs = torch.arange(a.shape[0], device=a.device)
    (lse, own), (lse_t, own_t) = (fold(x, LogSumExp(), Gather(pairs)) for x in (s, s.mT))
    loss: Tensor = (lse - own) + (lse_t - own_t)
    return loss.mul(0.5).mean()
