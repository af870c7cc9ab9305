"""The machine at hand. A known GPU brings its rates and reports its own capacities; an unknown one is computed from
what its driver says; a CPU from its cores, clock, vector width and caches.
"""

from __future__ import annotations

import functools
import os
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .description import GIB, KIB, MIB, Machine
from .known import KNOWN, LAUNCH

if TYPE_CHECKING:
    import torch

# Dense 16-bit matrix flop and float32 multiply-adds, a clock and unit, by compute capability.
_BY_CAPABILITY = {
    (8, 0): (2048, 64), (8, 6): (512, 128), (8, 7): (1024, 128), (8, 9): (512, 128),
    (9, 0): (4096, 128), (10, 0): (8192, 128), (10, 3): (8192, 128), (11, 0): (4096, 128), (12, 0): (512, 128),
}  # fmt: skip
_FALLBACK_BANDWIDTH = 1e12  # bytes/s of a GPU whose driver reports no memory clock


def of(device: torch.device | str = "cpu") -> Machine:
    """The machine description of a torch device: "cpu", "cuda", "cuda:1"; other devices get this CPU's."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return this_cpu()
    return _gpu(torch.cuda.current_device() if device.index is None else device.index)


@functools.cache
def _gpu(index: int) -> Machine:
    import torch

    return from_properties(torch.cuda.get_device_properties(index))


def from_properties(p: Any) -> Machine:
    """A GPU from its device properties (torch.cuda.get_device_properties); attributes that are missing are guessed."""
    arch = (getattr(p, "gcnArchName", "") or "").split(":")[0] or f"sm_{p.major}{p.minor}"
    if not arch.startswith("gfx"):
        arch = f"sm_{p.major}{p.minor}"
    own = {
        "units": p.multi_processor_count,
        "memory": p.total_memory,
        "l2": getattr(p, "L2_cache_size", 0) or 4 * MIB,
        "shared": getattr(p, "shared_memory_per_block_optin", 0) or 48 * KIB,
        "shared_per_unit": getattr(p, "shared_memory_per_multiprocessor", 0) or 48 * KIB,
        "registers": getattr(p, "regs_per_multiprocessor", 0) or 65536,
        "threads": getattr(p, "max_threads_per_multi_processor", 0) or 2048,
        "warp": getattr(p, "warp_size", 0) or (64 if arch.startswith("gfx") else 32),
    }
    for machine in KNOWN:
        if machine.arch == arch and machine.name in re.split(r"[^A-Za-z0-9]+", p.name):
            part = own["units"] / machine.units  # a slice of a card, or a sibling with fewer units
            return machine if part == 1 else replace(_scaled(machine, part), name=p.name, **own)
    return _unknown(p, arch, own)


def _scaled(machine: Machine, part: float) -> Machine:
    matmul = tuple((dtype, rate * part) for dtype, rate in machine.matmul)
    return replace(machine, matmul=matmul, exps=machine.exps * part, ops=machine.ops * part)


def _unknown(p: Any, arch: str, own: dict[str, int]) -> Machine:
    clock = getattr(p, "clock_rate", 0) * 1e3 or 1.5e9  # the driver counts in kHz
    capability = (p.major, p.minor)
    if arch.startswith("gfx"):
        flop, lanes = 1024, 128
    else:
        older = [c for c in _BY_CAPABILITY if c <= capability]
        flop, lanes = _BY_CAPABILITY[max(older)] if older else (256, 64)
    bus, memory_clock = getattr(p, "memory_bus_width", 0), getattr(p, "memory_clock_rate", 0) * 1e3
    rate, vector = own["units"] * clock * flop, own["units"] * clock * lanes
    return Machine(
        name=p.name, arch=arch, clock=clock,
        matmul=(("bfloat16", rate), ("float16", rate), ("tf32", rate / 2), ("float32", 2 * vector),
                ("float64", vector / 32)),
        bandwidth=2 * memory_clock * bus / 8 or _FALLBACK_BANDWIDTH,
        exps=own["units"] * clock * 16, ops=vector, launch=LAUNCH,
        registers_per_thread=512 if arch.startswith("gfx") else 255, source="device", **own,
    )  # fmt: skip


@functools.cache
def this_cpu() -> Machine:
    """This CPU. Rates are derived, within a factor of two: cores x clock x vector width, two multiply-adds a clock."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = _read("/proc/cpuinfo")
    clock = _clock(info)
    lanes = 16 if "avx512f" in info else 8 if "avx2" in info else 4
    fma = cores * clock * lanes * 2
    return Machine(
        name="this CPU", arch="cpu", units=cores, clock=clock,
        matmul=(("float32", 2 * fma), ("float64", fma), ("tf32", 2 * fma)),
        bandwidth=10e9 * min(cores, 16),  # one core sustains about 10 GB/s; sockets saturate
        exps=fma / 20,  # a vectorised exp is about 20 vector instructions
        ops=fma, launch=0.0,
        memory=_memory(), l2=_cache(3) or _cache(2) or 8 * MIB, shared=_cache(2) or 1 * MIB,
        shared_per_unit=_cache(2) or 1 * MIB,
        registers=lanes * 32, registers_per_thread=lanes * 32, threads=1, warp=lanes, source="derived",
    )  # fmt: skip


def _clock(info: str) -> float:
    found = [float(mhz) for mhz in re.findall(r"cpu MHz\s*:\s*([\d.]+)", info)]
    khz = _read("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq").strip()
    return float(khz) * 1e3 if khz.isdigit() else max(found, default=2500.0) * 1e6


def _memory() -> int:
    found = re.search(r"MemTotal:\s*(\d+) kB", _read("/proc/meminfo"))
    return int(found.group(1)) * KIB if found else 8 * GIB


def _cache(level: int) -> int:
    """Bytes of the data cache of this level that core 0 sees; 0 if the system does not say."""
    if platform.system() != "Linux":
        return 0
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        size = _read(index / "size").strip()
        if _read(index / "level").strip() == str(level) and _read(index / "type").strip() != "Instruction":
            return int(size.rstrip("KM")) * (MIB if size.endswith("M") else KIB)
    return 0


def _read(path: Path | str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
