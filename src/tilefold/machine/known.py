"""Machines by name. H200 rates marked measured are medians on one card, 2026-11-30, torch 2.11 and cuBLAS: 8192-cubed
matrix products and a large device copy. The others are vendors' dense datasheet figures, which no program reaches
(the H200's bf16 reaches 72 % of its own), so compare predictions of one machine only.
"""

from __future__ import annotations

from .description import GIB, KIB, MIB, Machine

T = 1e12
LAUNCH = 11e-6  # seconds, one kernel through Triton's JITFunction.run

_HOPPER_CLOCK = 1.83e9  # the clock behind the datasheet's matrix rates


def _exps(units: int, clock: float) -> float:
    return units * clock * 16  # 16 a clock and unit on every machine here


def _ops(units: int, clock: float, lanes: int = 128) -> float:
    return units * clock * lanes


H200 = Machine(
    name="H200", arch="sm_90", units=132, clock=_HOPPER_CLOCK,
    matmul=(("bfloat16", 715 * T), ("float16", 695 * T), ("tf32", 364 * T), ("float32", 51 * T), ("float64", 67 * T),
            ("float8_e4m3fn", 1979 * T)),  # float64 and float8: datasheet
    bandwidth=4.26 * T, exps=_exps(132, _HOPPER_CLOCK), ops=_ops(132, _HOPPER_CLOCK), launch=LAUNCH,
    memory=141 * 10**9, l2=50 * MIB, shared=227 * KIB, shared_per_unit=228 * KIB,
    registers=65536, registers_per_thread=255, threads=2048, warp=32, source="measured",
)  # fmt: skip

H100 = Machine(
    name="H100", arch="sm_90", units=132, clock=_HOPPER_CLOCK,
    matmul=(("bfloat16", 989 * T), ("float16", 989 * T), ("tf32", 495 * T), ("float32", 67 * T), ("float64", 67 * T),
            ("float8_e4m3fn", 1979 * T)),
    bandwidth=3.35 * T, exps=_exps(132, _HOPPER_CLOCK), ops=_ops(132, _HOPPER_CLOCK), launch=LAUNCH,
    memory=80 * 10**9, l2=50 * MIB, shared=227 * KIB, shared_per_unit=228 * KIB,
    registers=65536, registers_per_thread=255, threads=2048, warp=32, source="datasheet",
)  # fmt: skip

A100 = Machine(
    name="A100", arch="sm_80", units=108, clock=1.41e9,
    matmul=(("bfloat16", 312 * T), ("float16", 312 * T), ("tf32", 156 * T), ("float32", 19.5 * T),
            ("float64", 19.5 * T)),
    bandwidth=2.04 * T, exps=_exps(108, 1.41e9), ops=_ops(108, 1.41e9, 64), launch=LAUNCH,
    memory=80 * 10**9, l2=40 * MIB, shared=163 * KIB, shared_per_unit=164 * KIB,
    registers=65536, registers_per_thread=255, threads=2048, warp=32, source="datasheet",
)  # fmt: skip

B200 = Machine(
    name="B200", arch="sm_100", units=148, clock=1.85e9,
    matmul=(("bfloat16", 2250 * T), ("float16", 2250 * T), ("tf32", 1125 * T), ("float32", 75 * T),
            ("float64", 37 * T), ("float8_e4m3fn", 4500 * T)),
    bandwidth=8.0 * T, exps=_exps(148, 1.85e9), ops=_ops(148, 1.85e9), launch=LAUNCH,
    memory=180 * 10**9, l2=126 * MIB, shared=227 * KIB, shared_per_unit=228 * KIB,
    registers=65536, registers_per_thread=255, threads=2048, warp=32, source="datasheet",
)  # fmt: skip

MI300X = Machine(
    name="MI300X", arch="gfx942", units=304, clock=2.1e9,
    matmul=(("bfloat16", 1307 * T), ("float16", 1307 * T), ("tf32", 654 * T), ("float32", 163 * T),
            ("float64", 163 * T), ("float8_e4m3fnuz", 2615 * T)),
    bandwidth=5.3 * T, exps=_exps(304, 2.1e9), ops=_ops(304, 2.1e9), launch=LAUNCH,
    memory=192 * GIB, l2=4 * MIB, shared=64 * KIB, shared_per_unit=64 * KIB,  # 4 MiB of L2 for each of eight dies
    registers=131072, registers_per_thread=512, threads=2048, warp=64, source="datasheet",
)  # fmt: skip

KNOWN = (H200, H100, A100, B200, MI300X)
