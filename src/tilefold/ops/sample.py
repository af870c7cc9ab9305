"""Sampling a token from a language model's head without its logits (the Gumbel-max trick, tile by tile)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..folds import Sample
from ..scores import fold, scores
from ..scores.api import check_points
from ..scores.debug import can_look_at


def sample(
    input: Tensor,
    linear_weight: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    seed: int | Tensor = 0,
    stream: Tensor | None = None,
    position: int | Tensor = 0,
    linear_bias: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """One class of each row, drawn from softmax(input @ linear_weight^T / temperature), [..] int64.

    A draw depends on (seed, stream of the row, position, class) alone: not on the batch, the tile or the backend.

    Args:
        input: [.., D]
        linear_weight: [V, D]
        temperature: a number or one per row [..], finite and >= 0; 0 takes the most probable class
        seed: an int, or an integer tensor of one element or one per row [..]
        stream: [..] integers that tell rows apart; default: the row's number. Equal rows of one seed and
            stream draw alike.
        position: an int or [..] integers, the token's place in its sequence
        linear_bias: [V]
        softcap: c tanh(logit / c) in the place of the logit
    Raises:
        ShapeError, OptionError; IndexError for V = 0
    """
    check_points({"input": input, "linear_weight": linear_weight}, 1)
    if linear_weight.dim() != 2:
        was = f"shapes {tuple(input.shape)} and {tuple(linear_weight.shape)}"
        raise ShapeError(explain("input, linear_weight", was, "[.., D] and [V, D]"))
    lead = input.shape[:-1]
    rows = input.reshape(-1, input.shape[-1])
    s = scores(rows, linear_weight)
    if linear_bias is not None:
        if linear_bias.shape != linear_weight.shape[:1]:
            raise ShapeError(explain("linear_bias", f"shape {tuple(linear_bias.shape)}", f"[{linear_weight.shape[0]}]"))
        s = s + linear_bias
    s = s.softcap(softcap)
    if isinstance(temperature, Tensor):
        if temperature.shape != lead and temperature.numel() != 1:
            raise ShapeError(
                explain("temperature", f"shape {tuple(temperature.shape)}", f"{list(lead)} or one element")
            )
        temperature = temperature.reshape(-1).to(torch.float32)
        if can_look_at(temperature) and not bool(((temperature >= 0) & temperature.isfinite()).all()):
            bad = temperature[~((temperature >= 0) & temperature.isfinite())][0]
            raise OptionError(explain("temperature", f"the value {float(bad)}", "finite numbers >= 0"))
    elif not 0 <= temperature < math.inf:
        raise OptionError(explain("temperature", str(temperature), "a finite number >= 0"))
    elif temperature == 0:
        return s.argmax(-1).reshape(lead)

    def per_row(name: str, value: int | Tensor | None) -> int | Tensor | None:
        if isinstance(value, Tensor):
            if value.is_floating_point() or (value.shape != lead and value.numel() != 1):
                was = f"a tensor of {value.dtype} and shape {tuple(value.shape)}"
                raise ShapeError(explain(name, was, f"integers of shape {list(lead)} or one element"))
            return value.reshape(-1)
        if value is not None and not isinstance(value, (int, float)):
            raise TypeError(explain(name, type(value).__name__, "an int or a tensor of integers"))
        return value

    draw = Sample(per_row("seed", seed), per_row("stream", stream), per_row("position", position), temperature)  # type: ignore[arg-type]
    return fold(s, draw).reshape(lead)  # type: ignore[no-any-return]
