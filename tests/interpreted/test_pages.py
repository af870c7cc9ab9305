"""Columns in pages by the portable loop: the page of each column is looked up, and wild numbers where nobody looks are not read."""

from typing import Any

import pytest
import torch
from pages import CASES, SIZES, caches

import tilefold as tf
from tilefold import mask
from tilefold.execute import select


def assert_same(q, k, v, table, lengths, tiles: dict[str, Any], tolerance: float = 2e-5, **options) -> None:
    made = []
    for name in ("triton", "eager"):
        with tf.backend(name), select.using(**tiles):
            given = {
                "mask": lengths if lengths is None else mask.lengths(lengths),
                "layout": "bshd",
                "return_lse": True,
            }
            made.append(tf.attention(q, k, v, block_table=table, **given, **options))
    torch.testing.assert_close(*made, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size, places", SIZES)
@pytest.mark.parametrize("name", CASES)
def test_pages(name, size, places):
    batch, sq, heads, kv, options = CASES[name]
    q = torch.randn(batch, sq, heads, 16)
    assert_same(q, *caches(batch, kv, size, places), {"bn": 16, "bk": 16}, **options)


@pytest.mark.parametrize("tiles", [{"splits": 3}, {"resident": False, "bd": 16, "bk": 64}, {}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_tiles_and_types(tiles, dtype):
    k, v, table, lengths = caches(2, 2, 24, 6, dtype)
    q = torch.randn(2, 1, 8, 16).to(dtype)
    assert_same(q, k, v, table, lengths, tiles, 2e-3 if dtype == torch.float16 else 1e-12)


def test_all_keys_of_many_queries():
    k, v, table, _ = caches(2, 2, 24, 3)
    q = torch.randn(2, 70, 4, 16)
    assert_same(q, k, v, table.clamp(min=0), None, {})
    assert_same(q, k, v, table.clamp(min=0), None, {}, causal="bottom_right", bias=torch.randn(4, 1, 72))
