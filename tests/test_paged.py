"""Keys and values in pages: tf.attention with a block table, and flash-attn's function for a cache."""

import pytest
import torch
from pages import CASES, SIZES, caches
from torch import Tensor

import tilefold as tf
from tilefold import mask
from tilefold.compat import flash_attn_func, flash_attn_with_kvcache
from tilefold.program import Program, text


def in_a_row(cache: Tensor, table: Tensor) -> Tensor:
    """[B, P size, Hkv, D], 0 where the table names no page."""
    found = cache[table.clamp(min=0).long()]
    return found.masked_fill((table < 0)[..., None, None, None], 0.0).flatten(1, 2)


@pytest.mark.parametrize("size, places", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_pages_are_what_they_hold(name: str, size: int, places: int) -> None:
    batch, sq, heads, kv, options = CASES[name]
    k, v, table, lengths = caches(batch, kv, size, places)
    q = torch.randn(batch, sq, heads, 16)
    options = {"mask": mask.lengths(lengths), "layout": "bshd", "return_lse": True} | options
    found = tf.attention(q, k, v, block_table=table, **options)
    want = tf.attention(q, in_a_row(k, table), in_a_row(v, table), **options)
    torch.testing.assert_close(found, want, rtol=0, atol=5e-6)
    turned = tf.attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        block_table=table.long(),
        **options | {"layout": "bhsd"},
    )
    torch.testing.assert_close((turned[0].transpose(1, 2), turned[1]), found, rtol=0, atol=0)


def test_no_keys_at_all_and_all_of_them() -> None:
    q, k, v = torch.randn(2, 3, 4, 16), torch.randn(5, 8, 2, 16), torch.randn(5, 8, 2, 16)
    nothing = tf.attention(q, k, v, block_table=torch.empty(2, 0, dtype=torch.int32), layout="bshd")
    assert nothing.eq(0).all()
    table = torch.tensor([[1, 1], [4, 0]])
    want = tf.attention(q, in_a_row(k, table), in_a_row(v, table), layout="bshd")
    torch.testing.assert_close(tf.attention(q, k, v, block_table=table, layout="bshd"), want, rtol=0, atol=5e-6)


def test_types_and_autocast() -> None:
    k, v, table, lengths = caches(2, 2, 16, 3, torch.bfloat16)
    q = torch.randn(2, 4, 1, 16)
    options = {"block_table": table, "mask": mask.lengths(lengths)}
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    assert tf.attention(q.bfloat16(), k, v, **options).dtype == torch.bfloat16
    assert tf.attention(q.bfloat16(), k, v, out_dtype=torch.float32, **options).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        found = tf.attention(q, k.float(), v.float(), **options)
    torch.testing.assert_close(found, tf.attention(q.bfloat16(), k, v, **options), rtol=0.02, atol=0.02)


def test_no_gradient() -> None:
    k, v, table, lengths = caches(2, 2, 16, 3)
    q = torch.randn(2, 1, 4, 16, requires_grad=True)
    out = tf.attention(q, k, v, block_table=table, mask=mask.lengths(lengths), layout="bshd")
    with pytest.raises(tf.errors.GradientError, match="pages"):
        out.sum().backward()


def test_compiled() -> None:
    k, v, table, lengths = caches(2, 2, 16, 3)
    q = torch.randn(2, 1, 4, 16)

    def attend(q: Tensor, k: Tensor, v: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        return tf.attention(q, k, v, block_table=table, mask=mask.lengths(lengths), layout="bshd")

    found = torch.compile(attend, backend="aot_eager", fullgraph=True)(q, k, v, table, lengths)
    torch.testing.assert_close(found, attend(q, k, v, table, lengths))


def test_mapping_is_an_error() -> None:
    k, v, table, _ = caches(2, 2, 16, 3)
    table = table.clamp(min=0)
    with pytest.raises(tf.errors.FoldError, match="pages"):
        torch.vmap(lambda q: tf.attention(q, k, v, block_table=table, layout="bshd"))(torch.randn(3, 2, 1, 4, 16))


def test_a_program_says_so() -> None:
    program, columns = text.paged(Program(("rows", "cols"), ()).text)
    parsed = Program.parse(program)
    assert columns == (1,) and parsed.operands == ("rows", "cols", "pages") and parsed.pages == 2
    assert "pages of 2" in str(parsed) and Program.parse(parsed.text) == parsed


def _table(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


BAD = (
    ({"block_table": _table(3, 2)}, RuntimeError, "block_table: .* B = 2"),
    ({"block_table": _table(2, 2, dtype=torch.float32)}, RuntimeError, "block_table: got torch.float32"),
    ({"block_table": [[0]]}, TypeError, "block_table"),
    ({"layout": "thd"}, ValueError, "layout: got 'thd' with block_table"),
    ({"v": torch.zeros(5, 2, 9, 16)}, RuntimeError, "v: got shape"),
    ({"k": torch.zeros(5, 3, 8, 16), "v": torch.zeros(5, 3, 8, 16)}, RuntimeError, "a number of heads"),
    ({"k": torch.zeros(5, 2, 8, 15)}, RuntimeError, "D"),
    ({"mask": mask.lengths(torch.tensor([17, 1]))}, ValueError, "mask: got a length of 17; expected at most 16"),
    ({"score_mod": lambda s: s + tf.scores(torch.zeros(1, 16), torch.zeros(16, 16))}, ValueError, "score_mod"),
)


@pytest.mark.parametrize("change, error, match", BAD)
def test_bad_input(change: dict, error: type[Exception], match: str) -> None:
    given = {"k": torch.zeros(5, 2, 8, 16), "v": torch.zeros(5, 2, 8, 16), "block_table": _table(2, 2)}
    with pytest.raises(error, match=match):
        tf.attention(torch.zeros(2, 4, 1, 16), **{**given, **change})


def test_shards_are_an_error() -> None:
    k = torch.zeros(5, 2, 8, 16)
    with pytest.raises(tf.errors.OptionError, match="shards"):
        tf.attention(torch.zeros(2, 4, 1, 16), [k, k], [k, k], block_table=_table(2, 2))


SLOPES = torch.tensor([0.5, 0.25, 0.125, 0.0625])


@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True}, {"window_size": (9, 2)}, {"alibi_slopes": SLOPES}],
    ids=lambda o: "-".join(o) or "none",
)
@pytest.mark.parametrize("kind", ["whole", "chosen", "pages"])
def test_flash_attention_with_a_cache(kind: str, options: dict) -> None:
    """Each entry is what attention over its own keys gives, new ones included."""
    q, new_k, new_v = torch.randn(3, 4, 4, 16), torch.randn(3, 4, 2, 16), torch.randn(3, 4, 2, 12)
    k, v, table, _ = caches(3, 2, 8, 4)
    lengths, more = torch.tensor([0, 28, 13], dtype=torch.int32), {}
    table = table.masked_fill(table < 0, int(torch.tensor([p for p in range(14) if p not in table]).max()))
    if kind == "pages":
        more = {"block_table": table}
    else:
        k, v = torch.randn(5, 32, 2, 16), torch.randn(5, 32, 2, 12)
        more = {"cache_batch_idx": torch.tensor([4, 0, 3])} if kind == "chosen" else {}
        k, v = (k, v) if more else (k[:3], v[:3])
    out, lse = flash_attn_with_kvcache(
        q, k, v, new_k, new_v, cache_seqlens=lengths, return_softmax_lse=True, **more, **options
    )
    for b, n in enumerate(lengths.tolist()):
        where = [4, 0, 3][b] if kind == "chosen" else b
        keys, values = (in_a_row(t, table[b : b + 1])[0] if kind == "pages" else t[where] for t in (k, v))
        assert torch.equal(keys[n : n + 4], new_k[b]) and torch.equal(values[n : n + 4], new_v[b])
        own = [t[None, : n + 4] for t in (keys, values)]
        want, want_lse, _ = flash_attn_func(q[b : b + 1], *own, return_attn_probs=True, **options)
        torch.testing.assert_close((out[b : b + 1], lse[b : b + 1]), (want, want_lse), rtol=0, atol=5e-6)


def test_flash_attention_with_a_cache_of_one_length_or_all() -> None:
    q, k, v = torch.randn(2, 1, 4, 16), torch.randn(2, 20, 2, 16), torch.randn(2, 20, 2, 16)
    whole = flash_attn_with_kvcache(q, k, v)
    torch.testing.assert_close(whole, flash_attn_func(q, k, v))
    some = flash_attn_with_kvcache(q, k, v, cache_seqlens=7)
    torch.testing.assert_close(some, flash_attn_func(q, k[:, :7], v[:, :7]))


@pytest.mark.parametrize(
    "change, match",
    [
        ({"rotary_cos": torch.zeros(1)}, "rotary_cos"),
        ({"cache_leftpad": torch.zeros(2)}, "cache_leftpad"),
        ({"k": torch.zeros(2, 1, 2, 16)}, "k, v"),
        ({"cache_batch_idx": torch.zeros(2).int(), "block_table": torch.zeros(2, 1).int()}, "cache_batch_idx"),
        ({"window_size": (3, 3), "alibi_slopes": SLOPES, "cache_seqlens": 5}, "window_size"),
    ],
)
def test_what_a_cache_does_not_take(change: dict, match: str) -> None:
    q, k = torch.zeros(2, 1, 4, 16), torch.zeros(2, 20, 2, 16)
    with pytest.raises((tf.errors.OptionError, tf.errors.ShapeError), match=match):
        flash_attn_with_kvcache(q, k, k, **change)


def test_a_refused_call_leaves_the_cache_as_it_was() -> None:
    k, new = torch.zeros(2, 20, 2, 16), torch.ones(2, 1, 2, 16)
    with pytest.raises(tf.errors.OptionError, match="window_size"):
        tf.compat.flash_attn_with_kvcache(
            torch.zeros(2, 1, 4, 16), k, k.clone(), new, new, cache_seqlens=5, window_size=(3, 3), alibi_slopes=SLOPES
        )
    assert not k.any()
