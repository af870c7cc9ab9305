"""The kernels of docs/levels compile for Hopper into what their page says."""

from __future__ import annotations

import compile_leg as leg
from triton.compiler import ASTSource

from benchmarks.cases.levels import level

D = 128
UNITS = 65536  # registers of a unit


def report(number: int, signature: dict[str, str], constants: dict[str, int], warps: int, stages: int) -> leg.Report:
    fn = level(number).kernel
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(fn, signature | dict.fromkeys(constants, "constexpr"), constants, aligned)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}
    return leg.compile_now(source, leg.TARGETS["sm_90"].gpu, options)


def test_plain_kernel_compiles_to_warp_group_products() -> None:
    m = level(3)
    signature = {"x_ptr": "*fp16", "y_ptr": "*fp16", "out_ptr": "*fp32", "n": "i32", "k": "i32"}
    made = report(3, signature, {"D": D, "BN": m.BN, "BK": m.BK, "BD": D}, 4, 3)
    assert made.wgmma and not made.spills and not made.serialised


def test_two_blocks_of_the_tuned_kernel_share_a_unit() -> None:
    bn, bk, warps, stages = level(4).TILES
    x, y = (f"tensordesc<fp16[{b},{D}]>" for b in (bn, bk))
    signature = {"x_desc": x, "y_desc": y, "out_ptr": "*fp32", "n": "i32", "k": "i32"}
    made = report(4, signature, {"BN": bn, "BK": bk}, warps, stages)
    assert made.wgmma and not made.spills and not made.serialised
    assert 2 * made.registers * warps * 32 <= UNITS and 2 * made.shared <= leg.TARGETS["sm_90"].machine.shared
