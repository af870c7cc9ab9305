"""Few rows whose entries share columns: the rows of all of them in one tile, by the Triton loops and by eager."""

from typing import Any

import pytest
import torch

import tilefold as tf
from tilefold.execute import select
from tilefold.execute.triton import pack, plan
from tilefold.program import Leaf, Output, Program


def launches() -> list[Any]:
    return [launch for _, made, _ in plan._plans.values() for launch in made]


def assert_same(call, packed: bool = True, **tiles) -> None:
    """One call by both executors, its rows packed or not."""
    plan._plans.clear()
    with tf.backend("triton"), select.using(**tiles):
        found = call()
    with tf.backend("eager"):
        want = call()
    torch.testing.assert_close(found, want, rtol=0, atol=2e-5)
    assert [t.shape for t in found] == [t.shape for t in want]
    assert {isinstance(launch, pack.Packed) for launch in launches()} == {packed}


def qkv(sq: int, sk: int = 75, heads: int = 8, kv: int = 2, d: int = 16) -> list[torch.Tensor]:
    return [torch.randn(2, h, s, w) for h, s, w in ((heads, sq, d), (kv, sk, d), (kv, sk, 12))]


def attend(q, k, v, **options):
    return lambda: tf.attention(q, k, v, return_lse=True, **options)


OPTIONS: dict[str, Any] = {
    "nothing": lambda sq: {},
    "causal": lambda sq: {"causal": "bottom_right", "softcap": 2.0},
    "lengths": lambda sq: {"mask": tf.mask.lengths(torch.tensor([70, 3])), "causal": "bottom_right", "window": (9, 0)},
    "top left": lambda sq: {"causal": "top_left"},
    "slopes": lambda sq: {"alibi_slopes": torch.rand(2, 8), "sinks": torch.randn(8), "causal": "bottom_right"},
    "scales": lambda sq: {"scale": torch.rand(8, sq, 1)},
    "bias per head": lambda sq: {"bias": torch.randn(8, sq, 75)},
    "interval": lambda sq: {"mask": tf.mask.interval(torch.arange(sq), torch.arange(sq) + 9)},
    "boolean mask per head": lambda sq: {"mask": torch.rand(2, 8, sq, 75) > 0.3},
    "places": lambda sq: {"score_mod": lambda s: s - 0.1 * (tf.row_index() - tf.col_index()).abs()},
}


@pytest.mark.parametrize("sq", [1, 3, 5])
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_grouped_heads(name, sq):
    assert_same(attend(*qkv(sq), **OPTIONS[name](sq)))


@pytest.mark.parametrize("sq, heads, kv", [(1, 4, 1), (2, 6, 2), (4, 12, 3), (1, 80, 2), (17, 8, 4), (64, 4, 2)])
def test_numbers_of_queries_and_heads(sq, heads, kv):
    assert_same(attend(*qkv(sq, 75, heads, kv), causal="bottom_right"))


@pytest.mark.parametrize("options", [{}, {"mask": tf.mask.lengths(torch.tensor([333, 40]))}], ids=["all", "lengths"])
def test_split_columns(options):
    assert_same(attend(*qkv(1, 400), **options), bn=16, bk=16, splits=3)
    assert all(launch.launch.merge is not None for launch in launches())


@pytest.mark.parametrize("sq, packed", [(1, False), (65, False)])
def test_nothing_to_pack(sq, packed):
    assert_same(attend(*qkv(sq, 75, 2 if sq == 1 else 8)), packed)


def test_operands_that_rows_of_a_tile_cannot_have():
    q, k, v = qkv(3)
    assert_same(attend(q, k, v, bias=torch.randn(3, 75)), False)
    assert_same(attend(q, k, v, mask=tf.mask.blocks(torch.ones(1, 1, dtype=torch.bool), (16, 80))), False)


def test_layouts():
    q, k, v = (t.transpose(1, 2).contiguous() for t in qkv(3))
    assert_same(attend(q, k, v, layout="bshd", causal="bottom_right"))
    q, k, v = qkv(3, d=32)
    assert_same(attend(q[..., ::2], k[..., ::2], v))
    assert_same(attend(q.mT.contiguous().mT, k, v))


def test_columns_of_all_entries():
    x, y = torch.randn(3, 5, 2, 16), torch.randn(40, 16)
    r, per_entry = torch.randn(3, 5, 2), torch.randn(5, 1, 1)
    s = tf.scores(x, y) * per_entry + tf.row_index() + r.unsqueeze(-1)
    assert_same(lambda: (s.logsumexp(-1), s.argmax(-1), *s.topk(3)))
    only = tf.scores(x[:, :, :1], y) + torch.randn(5, 1, 40)
    assert_same(lambda: (only.amax(-1), only.softmax(-1) @ torch.randn(40, 6, generator=torch.manual_seed(1))))


def test_what_is_not_packed():
    x, y = torch.randn(2, 3, 16), torch.randn(40, 16)
    for output in (Output("sum", Leaf(0, 1), axis="col"), Output("sum", Leaf(0, 1), like=1)):
        assert pack.packing(Program(("rows", "cols"), (output,)), [x, y], (2,), 3) is None


def test_explained():
    q, k, _ = qkv(1)
    with tf.backend("triton"):
        text = str(tf.explain(tf.scores(q.view(2, 2, 4, 1, 16), k.unsqueeze(2)), tf.LogSumExp()))
    assert "4 rows that share columns in a tile" in text
