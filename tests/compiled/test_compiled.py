"""What selection can emit compiles for GPUs that are not here, without spills and without known miscompilations.

table.json holds what the compiler reported; after a change of kernels or tiles: python scripts/compile_table.py
"""

from __future__ import annotations

import json
from typing import Any

import bad_kernels
import compile_cases
import compile_leg as leg
import pytest
import torch
from compile_cases import CASES, PAIRS, Case
from marks import miscompiled
from triton.compiler import ASTSource

from benchmarks import sweep
from tilefold import folds
from tilefold.execute import select
from tilefold.execute import triton as loops
from tilefold.execute.triton import generate
from tilefold.program import Leaf, Output

SAME = 4  # registers that a configuration may differ from the table's, for the table's version of Triton
OTHER = 40  # and for a version that the table does not hold

RUNS = [pytest.param(case, target, id=f"{target} {case.name}") for case, target in PAIRS]


def table() -> dict[str, Any]:
    return json.loads(leg.TABLE.read_text())["configurations"]


REGENERATE = "regenerate the table: python scripts/compile_table.py"


@pytest.mark.parametrize(("case", "target"), RUNS)
def test_compiles_without_spills(case: Case, target: str) -> None:
    known = table()
    wrong: list[str] = []
    for name, m in leg.made(case, target).items():
        report = leg.measure(m.kernel, leg.TARGETS[target])
        wrong += [f"{name}: {what}" for what in problems(m, target, report, known.get(name))]
    assert not wrong, "\n".join(wrong)


def problems(m: leg.Made, target: str, report: leg.Report, entry: dict[str, Any] | None) -> list[str]:
    found = []
    limit = leg.TARGETS[target].machine.shared
    if report.shared > limit:
        found.append(f"{report.shared} bytes of shared memory, of {limit}")
    note = "" if entry is None else entry.get("note", "")
    if report.spills and not note:
        where = f"{report.looped} accesses in loops" if target == "sm_90" else f"{report.registers} registers"
        found.append(f"{report.spills} bytes spilled ({where}), and the table does not say why")
    if target == "sm_90":
        found += [f"ptxas serialises its products: {line}" for line in report.serialised if not note]
        found += [f"an operand that Triton < 3.7.1 compiles wrongly: {line}" for line in report.miscompiled]
        if 2 in m.products and not report.wgmma and not note:
            found.append("no warp-group product, though 16-bit operands are multiplied")
    counted, held = leg.blocks_counted(m, target), leg.blocks_held(m, target, report)
    if counted >= 2 > held and not note:
        found.append(f"{report.registers} registers: one block a unit, where selection counts on {counted}")
    if entry is None:
        return [*found, f"not in the table; {REGENERATE}"]
    if entry["tiles"] != leg.described(m):
        found.append(f"tiles {leg.described(m)}, in the table {entry['tiles']}; {REGENERATE}")
        return found
    near, within = entry["measured"].get(leg.VERSION), SAME
    if near is None:
        near, within = next(iter(entry["measured"].values())), OTHER
    if target == "gfx942":  # its compiler has more registers than any tile takes, and uses them as it likes
        within = OTHER
    if abs(report.registers - near["registers"]) > within:
        found.append(f"{report.registers} registers, in the table {near['registers']}; {REGENERATE}")
    if report.spills > near["spills"] + 16 * within:
        found.append(f"{report.spills} bytes spilled, in the table {near['spills']}; {REGENERATE}")
    return found


def test_the_table_holds_what_is_compiled_and_nothing_else() -> None:
    names: set[str] = set()
    kernels: set[tuple[str, int]] = set()
    keep = []
    for case, target in PAIRS:
        found = leg.made(case, target)
        keep.append(found)
        names |= found.keys()
        kernels |= {(target, id(m.kernel)) for m in found.values()}
    assert names == table().keys(), REGENERATE
    assert len(kernels) <= 300, "a covering set, not everything"


def test_every_spill_in_the_table_has_a_reason() -> None:
    silent = [n for n, e in table().items() if any(v["spills"] for v in e["measured"].values()) and not e.get("note")]
    assert not silent


def test_every_fold_is_compiled() -> None:
    done = {
        o.fold
        for case in CASES
        if "sm_90" in case.targets
        for call in leg.record(case.make)
        for o in call.program.outputs
    }
    shipped = {
        name for name, f in folds.registered().items() if f.__module__.startswith("tilefold.") and f.jit is not None
    }
    assert shipped <= done


# ---- declared registers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", sorted(n for n, f in folds.registered().items() if f.__module__.startswith("tilefold."))
)
def test_selection_counts_what_a_fold_declares(name: str) -> None:
    """Selection counts the numbers of a state; `cost` says what a reader expects, lists without what all rows share."""
    options = (("k", 10),) if name in ("topk", "bottomk") else ()
    fold = folds.lookup(Output(name, Leaf(0, 1), options, 2 if name in ("softmax_sum", "weighted_sum") else None))
    if fold.jit is None:
        return
    counted = sum(width[0] if width else 1 for _, _, *width in generate.jit_state(fold))
    assert fold.cost.registers_per_row <= counted
    if not options:
        assert counted <= fold.cost.registers_per_row + 1, "one more for a number that a state carries along"


def test_a_list_grows_no_faster_than_selection_counts() -> None:
    found = []
    for k in (4, 32):
        with select.using(bn=64, bk=32, warps=4, stages=2):
            (call,) = leg.record(compile_cases.folds(64, folds.TopK(k)))
            (m,) = leg.kernels(call, leg.TARGETS["sm_90"], False)
        counted = leg.expected(m, "sm_90")
        assert counted is not None
        found.append((leg.measure(m.kernel, leg.TARGETS["sm_90"]).registers, counted))
    (short, counted_short), (long, counted_long) = found
    assert 0 < long - short <= counted_long - counted_short


# ---- the checks themselves -------------------------------------------------------------------------------------------


def compiled(fn: Any, out: str, cast_first: bool = False, warps: int = 4) -> Any:
    signature = {"x": "*fp16", "y": "*fp16", "out": out, "n": "i32"} | dict.fromkeys(
        ("B", "D", "CAST_FIRST"), "constexpr"
    )
    constants = {(4,): 128, (5,): 64, (6,): cast_first}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(fn, signature=signature, constexprs=constants, attrs=aligned)
    return leg.compile_now(source, leg.TARGETS["sm_90"].gpu, {"num_warps": warps})


@pytest.mark.parametrize("cast_first", [True, False])
def test_a_transposed_accumulator_in_a_product_is_refused(cast_first: bool) -> None:
    assert compiled(bad_kernels.transposed_accumulator, "*fp32", cast_first).miscompiled


def test_an_accumulator_in_a_product_is_not_refused() -> None:
    report = compiled(bad_kernels.accumulator, "*fp32")
    assert not report.miscompiled and report.wgmma


def test_a_reshape_in_a_reduction_is_not_refused() -> None:
    assert not compiled(bad_kernels.reshaped_reduction, "*i32").miscompiled


def test_spills_are_seen() -> None:
    assert compiled(bad_kernels.spilling, "*fp32").spills > 0


CARRIED = """
#mma = #ttg.nvidia_mma<{versionMajor = 3}>
#linear = #ttg.linear<{register = []}>
tt.func public @f() {
  %a = ttg.local_alloc : () -> !ttg.memdesc<64x64xf16, #shared>
  %p = ttng.warp_group_dot %a, %a, %zero : !ttg.memdesc<64x64xf16> * !ttg.memdesc<64x64xf16> -> tensor<64x64xf32, #mma>
  %l:2 = scf.for %i = %c0 to %n step %c1 iter_args(%acc = %p, %j = %c0) -> (tensor<64x64xf32, #mma>, i32) : i32 {
    %h = arith.truncf %acc : tensor<64x64xf32, #mma> to tensor<64x64xf16, #mma>
    %t = OPERATION
    %b = ttg.local_alloc %t : (tensor<64x64xf16>) -> !ttg.memdesc<64x64xf16, #shared>
    %q = ttng.warp_group_dot %b, %a, %acc : !ttg.memdesc<64x64xf16> * !ttg.memdesc<64x64xf16> -> tensor<64x64xf32, #mma>
    scf.yield %q, %j : tensor<64x64xf32, #mma>, i32
  }
}
"""


@pytest.mark.parametrize(
    ("operation", "refused"),
    [
        ("tt.trans %h {order = array<i32: 1, 0>} : tensor<64x64xf16, #mma> -> tensor<64x64xf16, #linear>", True),
        ("tt.trans %h {order = array<i32: 1, 0>} : tensor<64x64xf16, #mma> -> tensor<64x64xf16, #blocked>", True),
        ("ttg.convert_layout %h : tensor<64x64xf16, #mma> -> tensor<64x64xf16, #linear>", True),
        ("ttg.convert_layout %h : tensor<64x64xf16, #mma> -> tensor<64x64xf16, #ttg.dot_op<{parent = #mma}>>", False),
    ],
)
def test_marks_are_found_through_a_loop(operation: str, refused: bool) -> None:
    assert bool(miscompiled(CARRIED.replace("OPERATION", operation))) is refused


def _modules(call: leg.Call, **forced: bool) -> set[str]:
    with leg.on(leg.TARGETS["sm_90"], False), select.using(**forced):
        launches, _ = loops._launches(call.program, call.operands, call.batch, call.n, call.k, call.dtypes)
    return {type(launch).__module__ for launch in launches}


def test_a_fixed_order_takes_the_portable_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, gradient = leg.record(compile_cases.attention(128, causal=True, backward=True))
    one_pass = {"tilefold.execute.hopper.columns_plan"}
    assert _modules(gradient) == one_pass
    assert not _modules(gradient, ordered=True) & one_pass
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    assert not _modules(gradient) & one_pass


@pytest.mark.parametrize("shape", sweep.SHAPES, ids=lambda s: s.name)
def test_the_sweep_covers_what_selection_chooses(shape: sweep.Shape) -> None:
    meta = torch.device("meta")
    *_, call = leg.record(lambda: shape.make(meta, False)())

    def kernel(forced: dict[str, Any]) -> Any:
        with leg.on(leg.TARGETS["sm_90"], False), select.using(**forced):
            launches, _ = loops._launches(call.program, call.operands, call.batch, call.n, call.k, call.dtypes)
        return launches[0].kernel

    chosen, portable, *others = map(kernel, shape.configurations())
    assert any(k is chosen for k in others)
    assert chosen is not portable
