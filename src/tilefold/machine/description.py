"""One machine: what it does per second and what it holds."""

from __future__ import annotations

from dataclasses import dataclass

KIB, MIB, GIB = 2**10, 2**20, 2**30

# Where a dtype has no matrix rate of its own, the first of these that has one gives it.
_STAND_INS = {
    "bfloat16": ("float16", "float32"),
    "float16": ("bfloat16", "float32"),
    "tf32": ("float32",),
    "float8_e4m3fn": ("float8_e4m3fnuz", "bfloat16", "float32"),
    "float8_e5m2": ("float8_e4m3fn", "float8_e4m3fnuz", "bfloat16", "float32"),
}


@dataclass(frozen=True)
class Machine:
    """Rates per second, capacities in bytes; a unit is an SM, a compute unit or a core.

    `matmul` holds (dtype, flop/s) pairs; float32 means full float32 accuracy, "tf32" is a dtype of its own.
    `source` says where the rates come from: "measured", "datasheet", "device" (computed from what the driver reports)
    or "derived" (a CPU, from its cores, clock and vector width).
    """

    name: str
    arch: str  # "sm_90", "gfx942", "cpu"
    units: int
    clock: float  # Hz
    matmul: tuple[tuple[str, float], ...]
    bandwidth: float  # bytes read + written
    exps: float  # exponentials (exp2 on a GPU)
    ops: float  # float32 multiply-adds outside the matrix units; compares and selects cost two
    launch: float  # seconds a kernel launch costs through its Python front end; 0 on a CPU
    memory: int
    l2: int  # the last cache that all units share
    shared: int  # on-chip bytes one block may use: shared memory, or a core's own cache
    shared_per_unit: int
    registers: int  # 32-bit registers of a unit
    registers_per_thread: int
    threads: int  # resident threads of a unit
    warp: int
    source: str

    def matmul_rate(self, dtype: str) -> float:
        """Flop/s of a matrix product whose operands have this dtype ("float32" at full accuracy, or "tf32")."""
        name, rates = dtype.removeprefix("torch."), dict(self.matmul)
        for candidate in (name, *_STAND_INS.get(name, ())):
            if candidate in rates:
                return rates[candidate]
        raise ValueError(f"dtype: {dtype!r} has no matrix rate on {self.name}; it may be one of {sorted(rates)}")

    @property
    def is_gpu(self) -> bool:
        return self.arch != "cpu"
