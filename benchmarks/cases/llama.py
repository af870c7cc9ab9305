"""A causal language model of transformers with random weights, its attention by tilefold and by transformers' "sdpa".

Both run on the same weights. What is right is a copy of the model in the next wider type; an implementation may be off
by twice what stock attention is off by, and a rounding. Weights are random, so that two logits can be nearly equal:
tokens are held to the logits of the wide model, and how many agree with stock's is a value and no condition.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..case import Call, Case, Data, Impl, Setting, Work, dtype_of, first, size_of

# The layers of Llama 3 8B; four of its 32 layers go with an eighth of its 128256 words.
MODELS = {
    "llama-3-8b": {"hidden": 4096, "intermediate": 14336, "heads": 32, "kv": 8, "head_dim": 128, "vocab": 16032},
    "small": {"hidden": 256, "intermediate": 512, "heads": 4, "kv": 2, "head_dim": 64, "vocab": 1000},
}
STOCK = "sdpa"


def _data(setting: Setting, device: torch.device) -> Data:
    from transformers import AutoModelForCausalLM, LlamaConfig

    s, m = setting.shape, MODELS[setting.shape["model"]]
    config = LlamaConfig(
        hidden_size=m["hidden"],
        intermediate_size=m["intermediate"],
        num_hidden_layers=s["layers"],
        num_attention_heads=m["heads"],
        num_key_value_heads=m["kv"],
        head_dim=m["head_dim"],
        vocab_size=m["vocab"],
        max_position_embeddings=s["S"] + s.get("new", 0),
        bos_token_id=None,
        eos_token_id=None,  # no sequence ends early
    )
    with device:
        model = AutoModelForCausalLM.from_config(config, dtype=dtype_of(setting), attn_implementation=STOCK)
    wide = copy.deepcopy(model).to(torch.float64 if model.dtype == torch.float32 else torch.float32)
    tokens = torch.randint(m["vocab"], (s["B"], s["S"]), device=device)
    return {"model": model, "wide": wide, "tokens": tokens}


def _impls(run: Any) -> Any:
    def impls(setting: Setting, data: Data) -> Iterator[Impl]:
        def tilefold() -> Call:
            from tilefold.compat import register_transformers

            register_transformers()
            return Call(partial(run, setting, data, "tilefold"))

        yield Impl("tilefold", tilefold)
        yield Impl("transformers", lambda: Call(partial(run, setting, data, STOCK)), named=True)

    return impls


def _eps(data: Data) -> float:
    return torch.finfo(data["model"].dtype).eps


# ---- a training step -----------------------------------------------------------------------------------------------


def _train_data(setting: Setting, device: torch.device) -> Data:
    """With the loss and the gradients of the wide model, and how far off stock is."""
    data = _data(setting, device)
    n = setting.shape["S"]
    # without a mask the heads stay in groups, for which torch has no float32 kernel and materialises the scores
    causal = torch.ones(n, n, dtype=torch.bool, device=device).tril().expand(setting.shape["B"], 1, n, n)
    data["loss"], *data["gradients"] = _gradients(data.pop("wide"), data["tokens"], causal)
    stock = _step(setting, data, STOCK)
    data["stock_loss_error"] = abs(float(stock[0]) - float(data["loss"]))
    data["stock_errors"] = _gradient_errors(data, stock)
    return data


def _gradients(model: Any, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, ...]:
    """Forward, loss, backward: the loss and the gradient of each parameter."""
    loss = model(tokens, attention_mask=mask, labels=tokens, use_cache=False).loss
    loss.backward()
    found = tuple(p.grad for p in model.parameters())
    model.zero_grad()
    return (loss.detach(), *found)


def _step(setting: Setting, data: Data, attention: str) -> tuple[Tensor, ...]:
    data["model"].set_attn_implementation(attention)
    return _gradients(data["model"], data["tokens"])


def _gradient_errors(data: Data, out: tuple[Tensor, ...]) -> list[float]:
    """Of each parameter, the norm of its gradient's error, relative."""
    return [float((g.to(ref.dtype) - ref).norm() / ref.norm()) for g, ref in zip(out[1:], data["gradients"])]


def _check_step(setting: Setting, data: Data, out: tuple[Tensor, ...]) -> str | None:
    ref, error = float(data["loss"]), abs(float(out[0]) - float(data["loss"]))
    allowed = 2 * data["stock_loss_error"] + 8 * _eps(data) * abs(ref) / math.sqrt(data["tokens"].numel())
    problem = None if error <= allowed else f"loss is off by {error:.3g}, allowed {allowed:.3g}"  # NaN is off
    names = [name for name, _ in data["model"].named_parameters()]
    found = zip(names, _gradient_errors(data, out), data["stock_errors"])
    return first(problem, *(f"gradient of {n} is off by {e:.3g}, stock's by {s:.3g}" for n, e, s in found
                            if not e <= 2 * s + _eps(data)))  # fmt: skip


def _step_values(setting: Setting, data: Data, out: tuple[Tensor, ...]) -> dict[str, float]:
    norm = math.sqrt(sum(float(g.float().norm()) ** 2 for g in out[1:]))
    errors = _gradient_errors(data, out)
    error = abs(float(out[0]) - float(data["loss"]))
    return {"loss": float(out[0]), "loss error": error, "gradient norm": norm, "worst gradient error": max(errors)}


def _weights(setting: Setting) -> int:
    """Numbers in the matrices that a token is multiplied with."""
    m = MODELS[setting.shape["model"]]
    attention = m["hidden"] * m["head_dim"] * (2 * m["heads"] + 2 * m["kv"])
    layer = attention + 3 * m["hidden"] * m["intermediate"]
    return int(setting.shape["layers"] * layer + m["vocab"] * m["hidden"])


def _attention_flops(setting: Setting, products: int) -> float:
    s, m = setting.shape, MODELS[setting.shape["model"]]
    return float(products * s["layers"] * s["B"] * m["heads"] * s["S"] ** 2 * m["head_dim"])  # half of 2, causal


def _step_work(setting: Setting) -> Work:
    s = setting.shape
    flops = 6.0 * _weights(setting) * s["B"] * s["S"] + _attention_flops(setting, 7)
    return Work(flops, 3.0 * _weights(setting) * size_of(setting), setting.dtype)


# ---- generation ----------------------------------------------------------------------------------------------------


def _generation_data(setting: Setting, device: torch.device) -> Data:
    data = _data(setting, device)
    data["stock"] = _generate(setting, data, STOCK)
    data["stock_error"], *_ = _logit_errors(data, data["stock"])
    return data


def _generate(setting: Setting, data: Data, attention: str) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Greedy: the tokens [B, S + new], and the logits [B, V] of each new one."""
    data["model"].set_attn_implementation(attention)
    mask = torch.ones_like(data["tokens"])
    out = data["model"].generate(
        data["tokens"], attention_mask=mask, max_new_tokens=setting.shape["new"], do_sample=False,
        output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    return out.sequences, out.logits


@torch.no_grad()
def _logit_errors(data: Data, out: tuple[Tensor, tuple[Tensor, ...]]) -> tuple[float, float, float]:
    """(largest error of a logit, largest logit, how far a chosen one was below the best), by the wide model."""
    tokens, logits = out[0], torch.stack(out[1], 1)
    new = logits.shape[1]
    ref = data["wide"](tokens, logits_to_keep=new + 1).logits[:, :-1]
    gap = ref.amax(-1) - ref.gather(-1, tokens[:, -new:, None])[..., 0]
    return float((logits.to(ref.dtype) - ref).abs().max()), float(ref.abs().max()), float(gap.max())


def _check_generation(setting: Setting, data: Data, out: tuple[Tensor, tuple[Tensor, ...]]) -> str | None:
    if out[0].shape[1] != setting.shape["S"] + setting.shape["new"]:
        return f"made {out[0].shape[1] - setting.shape['S']} tokens"
    error, size, gap = _logit_errors(data, out)
    allowed = 2 * data["stock_error"] + _eps(data) * size
    if not error <= allowed:
        return f"a logit is off by {error:.3g}, allowed {allowed:.3g}"
    return None if gap <= 2 * allowed else f"a token that was chosen is {gap:.3g} below the best"


def _generation_values(setting: Setting, data: Data, out: tuple[Tensor, tuple[Tensor, ...]]) -> dict[str, float]:
    """`tokens as stock`: the new ones before the first difference, of the sequence that differs first."""
    same = (out[0] == data["stock"][0])[:, setting.shape["S"] :]
    error, _, gap = _logit_errors(data, out)
    return {"tokens as stock": int(same.cumprod(-1).sum(-1).min()), "logit error": error, "chosen below best": gap}


def _generation_work(setting: Setting) -> Work:
    s, m = setting.shape, MODELS[setting.shape["model"]]
    flops = 2.0 * _weights(setting) * s["B"] * (s["S"] + s["new"]) + _attention_flops(setting, 2)
    cache = 2 * s["layers"] * s["B"] * s["S"] * m["kv"] * m["head_dim"]
    return Work(flops, float(s["new"] * (_weights(setting) + cache) * size_of(setting)), setting.dtype)


def _settings(gpu: list[dict[str, int]], cpu: dict[str, int]) -> tuple[Setting, ...]:
    large = [Setting({"model": "llama-3-8b", "layers": 4, **shape}, "bfloat16", target=True) for shape in gpu]
    return (*large, Setting({"model": "small", "layers": 2, **cpu}, "float32", "cpu", target=True))


TRAIN = Case(
    "llama_train",
    _settings([{"B": 2, "S": 4096}, {"B": 1, "S": 8192}], {"B": 1, "S": 512}),
    _train_data,
    _impls(_step),
    _check_step,
    _step_work,
    about="a training step of a transformers model: forward, loss, backward",
    values=_step_values,
)
GENERATE = Case(
    "llama_generate",
    _settings([{"B": 1, "S": 2048, "new": 1}, {"B": 1, "S": 2048, "new": 64}], {"B": 1, "S": 128, "new": 16}),
    _generation_data,
    _impls(_generate),
    _check_generation,
    _generation_work,
    rate="gbps",
    about="greedy generation by a transformers model; the first new token is the prompt's pass",
    values=_generation_values,
)
