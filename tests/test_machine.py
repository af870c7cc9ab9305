"""Machine descriptions and the roofline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilefold.machine import H200, KNOWN, MI300X, Counts, of, roofline, this_cpu
from tilefold.machine.detect import from_properties


def properties(**more: Any) -> SimpleNamespace:
    base = {"name": "NVIDIA H200", "major": 9, "minor": 0, "multi_processor_count": 132, "total_memory": 150 * 10**9}
    return SimpleNamespace(**(base | more))


@pytest.mark.parametrize("machine", [*KNOWN, this_cpu()], ids=lambda m: m.name)
def test_every_machine_has_positive_rates_and_capacities(machine: Any) -> None:
    numbers = {k: v for k, v in vars(machine).items() if isinstance(v, (int, float)) and k != "launch"}
    assert all(v > 0 for v in numbers.values())
    assert all(machine.matmul_rate(d) > 0 for d in ("bfloat16", "float16", "tf32", "float32", "float64"))
    assert machine.is_gpu is (machine.launch > 0)
    assert hash(machine) == hash(machine)


def test_known_gpu_is_recognised_by_name() -> None:
    assert from_properties(properties()) is H200
    gfx = properties(
        name="AMD Instinct MI300X", major=9, minor=4, gcnArchName="gfx942:sramecc+", multi_processor_count=304
    )
    assert from_properties(gfx) is MI300X


def test_slice_of_a_known_gpu_has_its_share_of_the_rates() -> None:
    half = from_properties(properties(multi_processor_count=66))
    assert half.units == 66 and half.matmul_rate("bfloat16") == H200.matmul_rate("bfloat16") / 2


def test_unknown_gpu_is_computed_from_what_its_driver_reports() -> None:
    machine = from_properties(
        properties(
            name="NVIDIA L40S",
            major=8,
            minor=9,
            multi_processor_count=142,
            clock_rate=2520000,
            memory_clock_rate=9001000,
            memory_bus_width=384,
            L2_cache_size=96 * 2**20,
        )  # fmt: skip
    )
    assert machine.source == "device" and machine.arch == "sm_89"
    assert machine.bandwidth == pytest.approx(864e9, rel=0.01)
    assert machine.matmul_rate("bfloat16") == pytest.approx(183e12, rel=0.01)


def test_cpu_is_derived() -> None:
    assert of("cpu") is this_cpu() and this_cpu().source == "derived"


def test_dtype_without_a_rate_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="int8.*H200.*bfloat16"):
        H200.matmul_rate("int8")


def test_roofline_is_the_slowest_resource() -> None:
    n, k = 8192, 131072
    wide = roofline(H200, Counts((("bfloat16", 2.0 * n * k * 4096),), bytes=1.2e9, exps=n * k, launches=1))
    assert wide.bound == "matmul" and wide.seconds == pytest.approx(12.3e-3, rel=0.01)
    tiny = roofline(H200, Counts((("bfloat16", 2.0 * 64**3),), bytes=24576, launches=2))
    assert tiny.bound == "launch" and tiny.seconds == pytest.approx(22e-6)
    assert "bound by launch" in str(tiny)


def test_counts_add_dtype_by_dtype() -> None:
    a, b = Counts((("bfloat16", 1.0),), bytes=2, launches=1), Counts((("bfloat16", 3.0), ("float32", 4.0)), exps=5)
    assert a + b == Counts((("bfloat16", 4.0), ("float32", 4.0)), bytes=2, exps=5, launches=1)
