"""Top-k by threshold, forced onto small problems, against eager."""

import math

import pytest
import torch

from tilefold.execute import eager, select
from tilefold.execute.triton import lists
from tilefold.program import Data, Index, Leaf, Mask, Output, Program, op

TILES = {"bn": 16, "bk": 32}


def program(k, fold="topk", expr=None, mask=None, kinds=("rows", "cols")):
    e = Leaf(0, 1) if expr is None else expr
    return Program(kinds, (Output(fold, -e if fold == "bottomk" else e, (("k", k),)),), mask)


def integers(*shape, dtype=torch.float32):
    return torch.randint(-9, 10, shape).to(dtype)


def phases(p, operands, batch, n, k, **tiles):
    """The results before flagged rows are made again, and the flags [entries, n]."""
    o = p.outputs[0]
    with select.using(**TILES | tiles):
        plan = lists._plan(p, operands, batch, n, k, forced=True)
        shapes = lists.plan.result_shapes(o, operands, batch, n, k, torch.float32, torch.float32)
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in shapes]
        flags = lists.phases(plan, operands, made, batch, n, k, o)
    return made, flags.view(math.prod(batch), -1)[:, :n].reshape(*batch, n).bool()


def check(p, operands, batch=(), flagged=None, exact=True, whole=False, **tiles):
    """Rows without a flag are eager's; with `whole`, after the flagged rows are made again, all are."""
    n, k = operands[0].shape[-2], operands[1].shape[-2]
    if whole:
        with select.using(**TILES | tiles):
            made = lists.run_threshold(p, operands, batch, n, k, forced=True)
        keep = torch.ones(*batch, n, dtype=torch.bool)
    else:
        made, flags = phases(p, operands, batch, n, k, **tiles)
        if flagged is not None:
            assert int(flags.sum()) == flagged
        keep = ~flags
    values, columns = eager.run(p, operands, batch, n, k, [torch.float32])
    torch.testing.assert_close(made[0][keep], values[keep], rtol=0, atol=0 if exact else 1e-5, equal_nan=True)
    assert torch.equal(made[1][keep], columns[keep])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_best_columns(dtype):
    check(program(3), [integers(18, 8, dtype=dtype), integers(700, 8, dtype=dtype)], flagged=0)


def test_smallest_columns_of_scores_that_no_two_rows_share():
    check(program(3, "bottomk"), [torch.randn(16, 8), torch.randn(701, 8)], flagged=0, exact=False)


def test_batch_with_columns_without_a_batch_and_split_columns():
    check(program(2), [integers(2, 17, 20), integers(600, 20)], (2,), flagged=0, splits=3)


def test_many_places():
    check(program(40), [torch.randn(16, 8), torch.randn(1500, 8)], flagged=0, exact=False)


def test_more_members_than_a_block_sorts(monkeypatch):
    monkeypatch.setattr(lists, "SORTED", 16)
    check(program(3, "bottomk"), [integers(2, 17, 8), integers(500, 8)], (2,), flagged=0, bk=16)


def test_rounds_of_few_rows(monkeypatch):
    monkeypatch.setattr(lists, "SEGMENTS", 1)
    check(program(2), [integers(2, 17, 8), integers(300, 8)], (2,), flagged=0)


def test_nan_and_infinities():
    x, y = torch.zeros(16, 4), torch.zeros(600, 4)
    x[:, 0], y[:, 0] = 1.0, torch.randn(600)
    y[77, 0], y[400, 0], y[5, 0], y[6, 0] = math.nan, math.inf, -math.inf, math.nan
    check(program(4), [x, y], flagged=0)


MASKS = [
    Mask("row", None, Index("row") * 40 + 1),
    Mask("row", Index("row") * 3, None),
    Mask("col", Index("col") - 500, Index("col") + 3),
    Mask(test=op("gt", Index("row") + Index("col"), 20)),
]


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask):
    check(program(3, mask=mask), [integers(16, 8), integers(600, 8)])


def test_rows_with_few_visible_columns_are_made_again():
    mask = Mask("row", Index("row") - 3, Index("row") + 2)
    check(program(5, mask=mask), [integers(16, 8), integers(300, 8)], whole=True)


def test_blocks_of_a_mask():
    block = torch.rand(1, 38) > 0.5
    p = program(3, mask=Mask(block=2, block_size=(16, 16)), kinds=("rows", "cols", "block"))
    check(p, [integers(16, 8), integers(600, 8), block])


def test_rows_of_equal_scores_are_made_again():
    x = torch.randn(16, 4)
    x[3] = 0.0
    check(program(3), [x, torch.randn(500, 4)], flagged=1, exact=False)
    check(program(3), [x, torch.randn(500, 4)], exact=False, whole=True)


def test_score_of_row_and_column_data():
    x, y = integers(16, 8), integers(500, 8)
    p = program(3, "bottomk", Leaf(0, 1) * -2.0 + Data(2, "col") + Data(3, "row"), kinds=("rows", "cols", "col", "row"))
    check(p, [x, y, (y * y).sum(-1)[None], (x * x).sum(-1, keepdim=True)], flagged=0)


def test_choice_says_why():
    tiles = select.Tiles(128, 128, 64, (), True, 8, 3)
    assert lists.choose(8192, 1_000_000, 10, tiles, 132).pays
    assert "keeps about" in lists.choose(8192, 1_000_000, 10, tiles, 132).reason
    small = lists.choose(100, 1000, 10, tiles, 132)
    assert not small.pays and "too small" in small.reason
    most = lists.choose(1 << 17, 4096, 2000, tiles, 132)
    assert not most.pays and "most of them" in most.reason
    shapes = ((8192, 65536, 16), (65536, 65536, 10), (1024, 1_000_000, 100), (1024, 1_000_000, 2048), (8, 1 << 26, 10))
    for rows, k, best in shapes:
        c = lists.choose(rows, k, best, tiles, 132)
        assert c.pays and c.kept < 4 * best + 400
        assert c.splits * c.capacity * 16 <= lists.POSITIONS


def test_rank_bounds_the_share_of_rows_that_fail():
    assert lists.rank(10 / 32) == 6 and lists.rank(10 / 16) == 8 and lists.rank(100 / 32) == 16
