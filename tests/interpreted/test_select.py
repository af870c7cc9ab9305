"""Tiles: what is chosen fits the machine, and what can be forced computes the same."""

import itertools
import math

import pytest
import torch
from helpers import assert_same

from tilefold.execute import select
from tilefold.execute import triton as loops
from tilefold.execute.triton import plan, streamed
from tilefold.program import Const, Data, Index, Leaf, Mask, Output, Program, op

A100 = select.Limits(108, 163 << 10, 255, 32, 8)
H200 = select.Limits(132, 227 << 10, 255, 32, 9)
B200 = select.Limits(148, 227 << 10, 255, 32, 10)
MI300X = select.Limits(304, 64 << 10, 512, 64, 8)


def need(d, dv=None, size=2, leaves=1, payloads=1, slow=False):
    pay = () if dv is None else ((dv, size, False),) * payloads
    return select.Need(
        rows=((d, size),) * leaves, cols=((d, size),) * leaves, leaves=leaves, outputs=max(1, payloads), payloads=pay, slow_product=slow,
        wide=8 if size == 8 else 4, state=2, lists=False, masked=False, tiles=0, summed=False, turned=False, heavy=False, ops=4, exps=1,
    )  # fmt: skip


@pytest.mark.parametrize("limits", [A100, H200, B200, MI300X])
def test_tiles_fit_shared_memory_and_registers(limits):
    for d, dv, leaves in itertools.product((1, 16, 64, 100, 128, 256), (None, 64, 128, 256), (1, 2)):
        wanted = need(d, dv, leaves=leaves)
        t = select.tiles(wanted, limits)
        if not t.resident:
            continue
        assert select.shared(wanted, t, limits.warp) <= limits.shared, (d, dv, leaves, str(t))
        assert select.registers(wanted, t, limits) <= limits.threads_registers, (d, dv, leaves, str(t))


def test_wide_rows_are_streamed():
    t = select.tiles(need(4096), H200)
    assert not t.resident and (t.bn, t.bk, t.bd, t.warps, t.stages) == (128, 256, 64, 8, 4) and t.described
    assert not select.tiles(need(4096), A100).described


def test_a_choice_says_why():
    assert "registers" in str(select.tiles(need(128, 128), H200)) and "streamed" in str(select.tiles(need(4096), H200))


def test_columns_are_split_where_rows_leave_units_idle():
    t = select.tiles(need(128, 128), H200)
    splits, chunk, _ = select.split(1, 100_000, t, H200, False)
    assert splits > 50 and chunk % t.bk == 0 and splits * chunk >= 100_000
    assert select.split(10_000, 100_000, t, H200, False)[0] == 1


def test_tensor_descriptors():
    tiles = {"bn": 16, "bk": 32, "bd": 16, "resident": False, "described": True}
    for d in (16, 40):
        x, y = torch.randint(-3, 4, (37, d)).half(), torch.randint(-3, 4, (53, d)).half()
        program = Program(("rows", "cols"), (Output("logsumexp", Leaf(0, 1)), Output("argmax", Leaf(0, 1))))
        with select.using(**tiles):
            launches, _ = plan.plan(program, [x, y], (), 37, 53, [torch.float32] * 2)
        assert [launch.kernel.fn for launch in launches] == [streamed.streamed_kernel]
        assert_same(program, [x, y], tiles=tiles)
        for splits in (2, 3):
            assert_same(program, [x, y], tiles={**tiles, "splits": splits})
        assert_same(program, [x, y[:32]], tiles=tiles)  # no edge
        assert_same(program, [x, y[:20]], tiles=tiles)  # nothing else
    columns = Program(
        ("rows", "cols", "row", "col", "tile", "scalar"),
        (
            Output("logsumexp", Leaf(0, 1) * Data(2, "row") + Data(3, "col") + Data(4, "tile")),
            Output("max", Leaf(0, 1) * Data(5, "scalar")),
        ),
        Mask("row", test=op("gt", Data(4, "tile"), Const(-1.0))),
    )
    x, y, v = torch.randn(37, 40).half(), torch.randn(53, 40).half(), torch.randn(53, 5).half()
    others = [torch.randn(37, 1), torch.randn(1, 53), torch.randn(37, 53), torch.tensor([[2.0]])]
    assert_same(columns, [x, y, *others], tiles={**tiles, "splits": 2, "group": 2}, tolerance=2e-5)
    masked = Program(
        ("rows", "cols", "cols"),
        (Output("softmax_sum", Leaf(0, 1), (("neutral", True),), 2),),
        Mask("row", None, Index("row") + 1),
    )
    assert_same(masked, [x, y, v], tiles=tiles)


def test_parts_of_the_persistent_loop_end_together():
    t = select.tiles(need(4096), H200)
    splits, group = select.parts(64, 512, t, H200, 4096)
    waves = math.ceil(64 * splits / H200.units) * math.ceil(512 / splits)
    assert waves <= 1.015 * 64 * 512 / H200.units and splits < 128 and group > 1
    assert select.parts(1, 3, t, H200, 4096)[0] == 3
    assert select.parts(1, 0, t, H200, 4096)[0] == 0  # all columns in a tile at the edge


def test_groups_of_row_tiles_cover_everything():
    program = Program(("rows", "cols"), (Output("logsumexp", Leaf(0, 1)),))
    for group in (1, 2, 3, 100):
        assert_same(
            program, [torch.randn(90, 4), torch.randn(70, 4)], tiles={"bn": 16, "bk": 16, "splits": 2, "group": group}
        )


def test_explanation_of_tiles():
    x, y = torch.randn(20, 8), torch.randn(30, 8)
    program = Program(("rows", "cols", "row"), (Output("logsumexp", Leaf(0, 1) + Data(2, "row")),))
    assert "32 x 32" in loops.explain_tiles(program, [x, y, torch.zeros(20, 1)], (), 20, 30)[0]
