"""Time and peak memory of a block: torch's own counters on a GPU, the kernel's on Linux, time alone elsewhere."""

from __future__ import annotations

import ctypes
import gc
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

PROC = Path("/proc/self")


@dataclass
class Cost:
    seconds: float = 0.0
    peak_mib: float | None = None  # above what was held before; None where it can't be measured


@contextmanager
def measured(device: str) -> Iterator[Cost]:
    """Fill in the Cost when the block ends. On the CPU, run the block once before: code pages count as memory."""
    cost = Cost()
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before: float | None = torch.cuda.memory_allocated() / 2**20
    else:
        before = _start_peak()
    started = time.perf_counter()
    yield cost
    if device != "cpu":
        torch.cuda.synchronize()
    cost.seconds = time.perf_counter() - started
    after = torch.cuda.max_memory_allocated() / 2**20 if device != "cpu" else _status("VmHWM")
    cost.peak_mib = max(after - before, 0.0) if before is not None and after is not None else None


def _start_peak() -> float | None:
    """Give free memory back, forget the process's peak so far, and return what it holds now, in MiB."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):  # not glibc: what it keeps for itself hides from the peak
        pass
    try:
        (PROC / "clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _status(key: str) -> float | None:
    try:
        found = re.search(rf"^{key}:\s+(\d+) kB", (PROC / "status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) / 1024 if found else None
