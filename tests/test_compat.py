"""tilefold.compat: the calls of flash-attn, of torch and of transformers, against what these libraries define."""

from __future__ import annotations

import importlib.util
import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_attention import agrees, causal, qkv, reference, window
from test_attention_cases import cumulative, kept, leaf, one_by_one, packed, with_dropout
from torch import Tensor

import tilefold as tf
from tilefold.compat import flash_attn_func, flash_attn_varlen_func, register_transformers, scaled_dot_product_attention

DOUBLE = torch.float64


# ---- flash-attn --------------------------------------------------------------------------------------------


def test_signatures_are_those_of_flash_attn() -> None:
    tail = "dropout_p softmax_scale causal window_size softcap alibi_slopes deterministic return_attn_probs".split()
    assert list(inspect.signature(flash_attn_func).parameters) == ["q", "k", "v", *tail]
    packing = "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k".split()
    names = ["q", "k", "v", *packing, *tail, "block_table"]
    assert list(inspect.signature(flash_attn_varlen_func).parameters) == names
    defaults = [0.0, None, False, (-1, -1), 0.0, None, False, False]
    for fn in (flash_attn_func, flash_attn_varlen_func):
        assert [inspect.signature(fn).parameters[n].default for n in tail] == defaults


def bshd(*tensors: Tensor) -> list[Tensor]:
    return [t.transpose(1, 2) for t in tensors]


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sides", [(-1, -1), (3, 0), (-1, 2), (2, -1), (4, 4)], ids=str)
@pytest.mark.parametrize("sizes", [(19, 27), (27, 19)], ids=str)
def test_flash_attention_masks(is_causal: bool, sides: tuple[int, int], sizes: tuple[int, int]) -> None:
    sq, sk = sizes
    q, k, v = qkv(2, 4, 2, sq, sk)
    left, right = (None if w < 0 else w for w in sides)
    seen = window(sq, sk, left, right, sk - sq)
    seen = seen & causal(sq, sk, "bottom_right") if is_causal else seen
    out, lse, weights = flash_attn_func(*bshd(q, k, v), causal=is_causal, window_size=sides, return_attn_probs=True)
    assert weights is None and out.shape == (2, sq, 4, 16) and out.is_contiguous() and lse.shape == (2, 4, sq)
    agrees((out.transpose(1, 2), lse), reference(q, k, v, seen), q, k, v)
    torch.testing.assert_close(flash_attn_func(*bshd(q, k, v), 0.0, None, is_causal, sides), out)


def test_flash_attention_options() -> None:
    q, k, v = qkv(2, 4, 2, 9, 14)
    slopes = torch.rand(2, 4, dtype=DOUBLE)
    bias = -slopes[..., None, None] * (torch.arange(9)[:, None] + 5 - torch.arange(14)).abs()
    out, lse, _ = flash_attn_func(
        *bshd(q, k, v), softmax_scale=0.7, softcap=2.0, alibi_slopes=slopes, deterministic=True, return_attn_probs=True
    )
    agrees((out.transpose(1, 2), lse), reference(q, k, v, bias=bias, scale=0.7, softcap=2.0), q, k, v)


def test_flash_attention_dropout_follows_torchs_generator() -> None:
    q, k, v = qkv(2, 4, 2, 9, 14)
    torch.manual_seed(3)
    seed = int(torch.randint(2**63 - 1, (1,)))
    torch.manual_seed(3)
    out = flash_attn_func(*bshd(q, k, v), dropout_p=0.3).transpose(1, 2)
    torch.testing.assert_close(out, with_dropout(q, k, v, kept(2, 4, 9, 14, 0.3, seed), 0.3)[0])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("sides", [(-1, -1), (3, 1)], ids=str)
def test_flash_attention_of_packed_sequences(is_causal: bool, sides: tuple[int, int]) -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    slopes = torch.rand(4, dtype=DOUBLE)
    left, right = (None if w < 0 else w for w in sides)

    def options(i: int, a: int, b: int) -> dict[str, Tensor]:
        seen = window(a, b, left, right, b - a)
        bias = -slopes[:, None, None] * (torch.arange(a)[:, None] + b - a - torch.arange(b)).abs()
        return {"visible": seen & causal(a, b, "bottom_right") if is_causal else seen, "bias": bias}

    out, lse, weights = flash_attn_varlen_func(
        q, k, v, cu_q, cu_k, 11, 11, causal=is_causal, window_size=sides, alibi_slopes=slopes, return_attn_probs=True
    )
    assert weights is None and out.shape == (21, 4, 7) and lse.shape == (4, 21)
    agrees((out, lse), one_by_one(q, k, v, cu_q, cu_k, options), q, k, v)


def test_maximal_lengths_may_be_tensors() -> None:  # case 43
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    fn = torch.compile(flash_attn_varlen_func, backend="aot_eager", fullgraph=True)
    longest = torch.tensor(11)
    out = fn(q, k, v, cu_q, cu_k, longest, longest, causal=True)
    torch.testing.assert_close(out, flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, causal=True))


def test_flash_attention_names_what_it_cannot_do() -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    with pytest.raises(tf.errors.OptionError, match="block_table: got Tensor; expected None"):
        flash_attn_varlen_func(q, k, v, cu_q, cu_k, 11, 11, block_table=torch.zeros(1))
    for bad in ((-2, 0), (1.5, 0), 3, (1, 2, 3)):
        with pytest.raises(tf.errors.OptionError, match="window_size: got"):
            flash_attn_func(q[None], k[None], v[None], window_size=bad)  # type: ignore[arg-type]
    with pytest.raises(tf.errors.OptionError, match="dropout_p: got 1"):
        flash_attn_func(q[None], k[None], v[None], 1.0)
    with pytest.raises(tf.errors.OptionError, match="softcap: got -1"):
        flash_attn_func(q[None], k[None], v[None], softcap=-1.0)


# ---- torch -------------------------------------------------------------------------------------------------


def test_signature_is_that_of_torch() -> None:
    names = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert list(inspect.signature(scaled_dot_product_attention).parameters) == names


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "4": ((2, 4, 9, 8), (2, 4, 13, 8), (2, 4, 13, 5)),
    "3": ((4, 9, 8), (4, 13, 8), (4, 13, 5)),
    "2": ((9, 8), (13, 8), (13, 5)),
    "5": ((2, 3, 4, 9, 8), (2, 3, 4, 13, 8), (2, 3, 4, 13, 5)),
    "shared batch": ((2, 4, 9, 8), (1, 4, 13, 8), (1, 4, 13, 5)),
    "shared head": ((2, 4, 9, 8), (2, 1, 13, 8), (2, 1, 13, 5)),
    "one query head": ((2, 1, 9, 8), (2, 4, 13, 8), (2, 4, 13, 5)),
    "no batch": ((0, 4, 9, 8), (0, 4, 13, 8), (0, 4, 13, 5)),
}


def like_torch(q: Tensor, k: Tensor, v: Tensor, *others: Tensor, **options: Any) -> None:
    ours, theirs = scaled_dot_product_attention(q, k, v, **options), F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(ours, theirs)
    up = torch.randn_like(theirs)
    for a, b in zip(*(torch.autograd.grad(o, (q, k, v, *others), up, materialize_grads=True) for o in (ours, theirs))):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_of_torchs_attention(name: str) -> None:
    q, k, v = (leaf(*s) for s in SHAPES[name])
    like_torch(q, k, v)
    like_torch(q, k, v, is_causal=True, scale=0.3)
    tail = (9, 13)
    like_torch(q, k, v, attn_mask=torch.rand(tail) < 0.8)
    bias = leaf(*tail)
    like_torch(q, k, v, bias, attn_mask=bias)


@pytest.mark.parametrize("shape", [(9, 13), (9, 1), (4, 9, 13), (2, 1, 1, 13), (2, 4, 9, 13)], ids=str)
def test_masks_of_torchs_attention(shape: tuple[int, ...]) -> None:
    q, k, v = (leaf(*s) for s in SHAPES["4"])
    bias = leaf(*shape)
    like_torch(q, k, v, bias, attn_mask=bias)
    seen = torch.rand(shape) < 0.7
    seen[..., :1] = True  # what a row that sees nothing gives has changed from version to version of torch
    like_torch(q, k, v, attn_mask=seen)


def test_masks_of_five_dimensions() -> None:
    q, k, v = (leaf(*s) for s in SHAPES["5"])
    like_torch(q, k, v, attn_mask=torch.rand(3, 1, 9, 13) < 0.9)
    bias = leaf(2, 1, 4, 9, 13)
    like_torch(q, k, v, bias, attn_mask=bias)


def test_grouped_heads_of_torchs_attention() -> None:
    q, k, v = qkv(2, 6, 2, 9, 13)
    like_torch(q, k, v, enable_gqa=True, is_causal=True)
    with pytest.raises(RuntimeError, match=r"enable_gqa=False.*heads \[6\], \[2\], \[2\]"):
        scaled_dot_product_attention(q, k, v)


@pytest.mark.parametrize("heads", [(4, 2, 4), (4, 4, 2), (6, 2, 3), (6, 1, 2)], ids=str)
def test_grouped_heads_of_key_and_value_may_differ(heads: tuple[int, int, int]) -> None:
    h, of_k, of_v = heads
    q, k, v = leaf(2, h, 9, 8), leaf(2, of_k, 13, 8), leaf(2, of_v, 13, 5)
    like_torch(q, k, v, enable_gqa=True, is_causal=True)
    for name, given in (("key", (k[:, :0], v)), ("value", (k, leaf(2, 5, 13, 5)))):
        with pytest.raises(tf.errors.ShapeError, match=f"{name}: got . heads for {h} query heads"):
            scaled_dot_product_attention(q, *given, enable_gqa=True)


@pytest.mark.parametrize("gqa", [False, True])
def test_no_head_at_all(gqa: bool) -> None:
    like_torch(leaf(2, 0, 9, 8), leaf(2, 0, 13, 8), leaf(2, 0, 13, 5), enable_gqa=gqa)
    q, k, v = qkv(2, 0, 0, 9, 13)
    out, lse = tf.attention(q, k, v, causal="bottom_right", sinks=torch.zeros(0, dtype=DOUBLE), return_lse=True)
    assert out.shape == (2, 0, 9, 16) and lse.shape == (2, 0, 9)


def test_dropout_of_torchs_attention() -> None:
    q, k, v = qkv(1, 4, 4, 40, 50)
    eye = torch.eye(50, dtype=DOUBLE).expand(1, 4, 50, 50)
    weights = scaled_dot_product_attention(q, k, eye, dropout_p=0.25)
    full = scaled_dot_product_attention(q, k, eye)
    some = weights != 0
    assert abs(some.double().mean() - 0.75) < 0.02
    torch.testing.assert_close(weights[some], full[some] / 0.75)


def test_torchs_attention_names_what_does_not_fit() -> None:
    q, k, v = qkv(2, 4, 4, 9, 13)
    seen = torch.ones(9, 13, dtype=torch.bool)
    with pytest.raises(RuntimeError, match="attn_mask: got a mask beside is_causal=True"):
        scaled_dot_product_attention(q, k, v, seen, is_causal=True)
    with pytest.raises(RuntimeError, match=r"attn_mask: got shape \(9, 12\); expected .*\[2, 4, 9, 13\]"):
        scaled_dot_product_attention(q, k, v, seen[:, 1:])
    with pytest.raises(RuntimeError, match="attn_mask: got a tensor of torch.int64"):
        scaled_dot_product_attention(q, k, v, seen.long())
    with pytest.raises(RuntimeError, match="query, key, value: got leading dimensions"):
        scaled_dot_product_attention(q, k[:1].expand(3, -1, -1, -1), v)
    with pytest.raises(RuntimeError, match="query, key: got D = 16 and 3"):
        scaled_dot_product_attention(q, k[..., :3], v)
    with pytest.raises(TypeError, match="value: got list"):
        scaled_dot_product_attention(q, k, [1.0])  # type: ignore[arg-type]


# ---- transformers ------------------------------------------------------------------------------------------

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is absent"
)


def tiny(kind: str, **more: Any) -> Any:
    """A model of random weights with two layers."""
    import transformers

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 99, "head_dim": 8}
    size |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        **more,
    }
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**size)
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def both(model: Any, stock: str, run: Any) -> tuple[Any, Any]:
    """What `run(model)` gives by tilefold and by a stock implementation."""
    register_transformers()
    made = []
    for name in ("tilefold", stock):
        model.set_attn_implementation(name)
        assert model.config._attn_implementation == name
        model.zero_grad()
        made.append(run(model))
    return made[0], made[1]


def training_step(tokens: Tensor, attention_mask: Tensor | None = None) -> Any:
    def run(model: Any) -> Any:
        labels = tokens
        if attention_mask is not None:
            # nor what padding predicts: a query that sees nothing is 0 here, and the mean of all values in "eager"
            real = attention_mask * F.pad(attention_mask[:, :-1], (1, 0), value=1)
            labels = tokens.masked_fill(real == 0, -100)
        loss = model(tokens, attention_mask=attention_mask, labels=labels).loss
        loss.backward()
        return loss.detach(), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    return run


def assert_steps_agree(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours[0], theirs[0], rtol=1e-5, atol=1e-6)
    assert ours[1].keys() == theirs[1].keys()
    for name, g in ours[1].items():
        torch.testing.assert_close(g, theirs[1][name], rtol=1e-3, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "grouped heads": ("Llama", "sdpa", {}),
    "sliding window": ("Mistral", "sdpa", {"sliding_window": 5}),
    "softcap": ("Gemma2", "eager", {"sliding_window": 5, "attn_logit_softcapping": 0.5, "query_pre_attn_scalar": 8}),
    "sinks": ("GptOss", "eager", {"sliding_window": 5, "num_local_experts": 2, "num_experts_per_tok": 1}),
}


@needs_transformers
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_training_step_equals_the_stock_one(name: str, padded: bool) -> None:
    kind, stock, options = MODELS[name]
    model = tiny(kind, **options)
    tokens = torch.randint(1, 99, (3, 17))
    mask = torch.ones_like(tokens)
    mask[1, :6] = mask[2, 12:] = 0
    assert_steps_agree(*both(model, stock, training_step(tokens, mask if padded else None)))


@needs_transformers
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_greedy_generation_equals_the_stock_one(name: str, cache: str) -> None:
    kind, stock, options = MODELS[name]
    model = tiny(kind, **options)
    tokens = torch.randint(1, 99, (2, 7))
    mask = torch.ones_like(tokens)
    mask[1, :3] = 0  # padding on the left, as generation has it
    options = {"do_sample": False, "max_new_tokens": 12, "min_new_tokens": 12, "disable_compile": True}
    if cache == "static":
        options["cache_implementation"] = "static"
    generate = lambda m: m.generate(tokens, attention_mask=mask, **options)
    ours, theirs = both(model, stock, generate)
    assert ours.shape == (2, 19) and torch.equal(ours, theirs)
    whole = lambda m: m.generate(tokens[:1], **options)
    assert torch.equal(*both(model, stock, whole))


@needs_transformers
def test_dropout_in_a_model_follows_torchs_generator() -> None:
    model = tiny("Llama", attention_dropout=0.3).train()
    register_transformers("tilefold_again")
    model.set_attn_implementation("tilefold_again")
    tokens = torch.randint(1, 99, (2, 11))

    def loss(seed: int) -> Tensor:
        torch.manual_seed(seed)
        out: Tensor = model(tokens, labels=tokens).loss
        return out

    assert torch.equal(loss(1), loss(1)) and not torch.equal(loss(1), loss(2))
    model.eval()
    assert torch.equal(loss(1), loss(2))


@needs_transformers
def test_models_are_told_what_does_not_work() -> None:
    from tilefold.compat.transformers import attention_forward

    q, k, v = qkv(1, 4, 2, 5, 5)
    with pytest.raises(tf.errors.OptionError, match="output_attentions: got True"):
        attention_forward(torch.nn.Module(), q, k, v, None, output_attentions=True)
    with pytest.raises(tf.errors.OptionError, match="head_mask: got a tensor"):
        attention_forward(torch.nn.Module(), q, k, v, None, head_mask=torch.ones(4))


def test_position_bias_and_additive_mask_add_up() -> None:
    from tilefold.compat.transformers import attention_forward

    q, k, v = qkv(1, 4, 2, 5, 5)
    position, mask = leaf(1, 4, 5, 5), torch.zeros(1, 1, 5, 5, dtype=DOUBLE).masked_fill(~causal(5, 5), -math.inf)
    want = reference(q, k, v, bias=position + mask)[0].transpose(1, 2)
    out, weights = attention_forward(torch.nn.Module(), q, k, v, mask, position_bias=position)
    assert weights is None and out.is_contiguous()
    torch.testing.assert_close(out, want)
    out, _ = attention_forward(torch.nn.Module(), q, k, v, None, position_bias=position)  # causal, as modules are
    torch.testing.assert_close(out, want)
    out, _ = attention_forward(torch.nn.Module(), q, k, v, None, is_causal=False, scaling=0.3)
    torch.testing.assert_close(out, reference(q, k, v, scale=0.3)[0].transpose(1, 2))


def test_import_of_compat_needs_no_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ImportError):
        register_transformers()
    assert tf.compat.flash_attn_func is flash_attn_func


def test_zero_length_sequences_of_flash_attention() -> None:
    q, k, v, cu_q, cu_k = packed("no keys", 4, 2)
    out, lse, _ = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 6, 5, causal=True, return_attn_probs=True)
    assert not out[:5].any() and (lse[:, :5] == -math.inf).all()  # no keys; and a query above the diagonal
    assert cumulative([4, 6]).equal(cu_q)
