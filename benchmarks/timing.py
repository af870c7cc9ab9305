"""Interleaved medians, and the memory a call takes beyond what it is given."""

from __future__ import annotations

import ctypes
import gc
import re
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

FLUSH = 256 * 2**20  # bytes written before each timed call, so that no call finds its inputs in the L2
ROUNDS = {"cuda": (5, 200), "cpu": (3, 1000)}  # fewest and most
LONG_ROUND = 10.0  # seconds after which one round has to do: every call ran before, when it was checked
AHEAD = 4_000_000  # cycles, some 2 ms, that a GPU waits before a round, so that no call waits to be enqueued
Errors = dict[str, str]


class _Clock:
    """Milliseconds of one call: on the device, or with `host` until it returns to the host."""

    def __init__(self, device: torch.device, host: bool) -> None:
        self.device, self.host = device, host or device.type != "cuda"
        self.flush = None if self.host else torch.empty(FLUSH, dtype=torch.int8, device=device)

    def begin_round(self) -> None:
        if not self.host:
            torch.cuda._sleep(AHEAD)

    def start(self, run: Callable[[], Any]) -> Callable[[], float]:
        """Enqueues the call; what comes back waits for it and says how long it took."""
        if self.flush is None:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            before = time.perf_counter()
            run()
            elapsed = 1e3 * (time.perf_counter() - before)
            return lambda: elapsed
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.flush.zero_()
        begin.record()
        run()
        end.record()

        def wait() -> float:
            end.synchronize()
            return float(begin.elapsed_time(end))

        return wait


def medians(
    calls: Mapping[str, Callable[[], Any]], device: torch.device, seconds: float, host: bool = False
) -> tuple[dict[str, float], Errors]:
    """Median milliseconds of each call. All take turns, so that a clock or power change meets all alike.

    On a GPU the device's time, with the host ahead of it; with `host` the time until a call returns.
    """
    clock, alive, errors = _Clock(device, host), dict(calls), {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    fewest, most = ROUNDS[device.type]
    began, done, lasted = time.perf_counter(), 0, 0.0
    while alive and done < most and (done < fewest + 1 or time.perf_counter() - began + lasted < seconds):
        round_began, waiting = time.perf_counter(), {}
        clock.begin_round()
        for name, run in list(alive.items()):
            try:
                waiting[name] = clock.start(run)
            except Exception as error:  # a peer's fault is a result, not the end of the run
                errors[name] = text(error)
                del alive[name]
        for name, wait in waiting.items():
            times[name].append(wait())
        lasted = time.perf_counter() - round_began
        if done == 0 and lasted > LONG_ROUND:
            break
        if done == 0:  # the first round only warms up
            times = {name: [] for name in calls}
            began = time.perf_counter()
        done += 1
    return {name: statistics.median(times[name]) for name in alive}, errors


def peak(run: Callable[[], Any], device: torch.device) -> tuple[Any, float | None]:
    """The call's output, and the MiB it took at its peak beyond what was there before; None where nobody can say."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = run()
        torch.cuda.synchronize(device)
        return out, (torch.cuda.max_memory_allocated(device) - before) / 2**20
    try:
        ctypes.CDLL(None).malloc_trim(0)  # memory that malloc keeps would hide what the call takes
        Path("/proc/self/clear_refs").write_text("5")
        before = _status("VmRSS")
    except (OSError, AttributeError):
        return run(), None
    out = run()
    return out, max(0.0, (_status("VmHWM") - before) / 2**10)


def _status(field: str) -> float:
    found = re.search(rf"{field}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise OSError(f"/proc/self/status has no {field}")
    return float(found.group(1))


def text(error: BaseException) -> str:
    """One line of an error."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line}"[:300]


def is_sticky(error: str) -> bool:
    """A fault after which this process can use the GPU no more."""
    return any(mark in error for mark in ("illegal", "misaligned", "device-side assert", "unspecified launch failure"))
