"""Everything that needs a GPU, in one run: tests, the sanitizer, benchmarks if asked; then gpu/receipt.json.

    python scripts/gpu_check.py                                  tests and sanitizer; writes gpu/receipt.json
    python scripts/gpu_check.py --out DIR --bench [CASE ...]     receipt.json, tests.xml and bench.json into DIR

A red run writes no receipt, and its benchmarks (only with --even-if-red) go to bench.red.json, which no one publishes.
Kernels are hashed before the run, so that the receipt signs what was tested.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import receipt

ROOT = receipt.ROOT
TESTS, SANITIZE = Path("tests/gpu"), Path("tests/gpu/sanitize.py")
TARGETS = ["copy", "matmul", "logsumexp", "attention_fwd", "attention_bwd", "argmax", "knn"]  # about 150 s, quick
SANITIZER_ERROR = 99


def step(title: str, command: list[str], seconds: float) -> int:
    """Runs a command from the root with its output shown; 124 if it outlasts its time."""
    print(f"\n== {title}: {' '.join(command)}  ({seconds:.0f} s at most)", flush=True)
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    began = time.monotonic()
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}, timeout=seconds
        ).returncode
    except subprocess.TimeoutExpired:
        code = 124
    print(f"== {title}: exit {code} after {time.monotonic() - began:.0f} s", flush=True)
    return code


def counts(junit: Path) -> dict[str, int]:
    """Test counts of a JUnit file; a file that is missing or cut short counts as one error."""
    try:
        suites = list(ET.parse(junit).getroot().iter("testsuite"))
    except (OSError, ET.ParseError):
        return {"passed": 0, "failed": 0, "errors": 1, "skipped": 0}
    total = {key: sum(int(s.get(key, 0)) for s in suites) for key in ("tests", "failures", "errors", "skipped")}
    passed = total["tests"] - total["failures"] - total["errors"] - total["skipped"]
    return {"passed": passed, "failed": total["failures"], "errors": total["errors"], "skipped": total["skipped"]}


def versions() -> dict[str, str]:
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__}
    try:
        import triton
    except ImportError:
        pass
    else:
        found["triton"] = triton.__version__
    if torch.cuda.is_available():
        found |= {"cuda": torch.version.cuda or "", "device": torch.cuda.get_device_name()}
    return found


def sanitize(seconds: float) -> str:
    """ "clean", "errors", "not installed", ...: memcheck over a small script."""
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if tool is None:
        return "not installed"
    if not (ROOT / SANITIZE).exists():
        return f"no {SANITIZE}"
    command = [tool, "--tool", "memcheck", "--error-exitcode", str(SANITIZER_ERROR), sys.executable, str(SANITIZE)]
    code = step("sanitizer", command, seconds)
    return {0: "clean", SANITIZER_ERROR: "errors", 124: "outlasted its time"}.get(code, f"exit {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a folder for what is written (default: gpu/ and the results)")
    parser.add_argument("--bench", nargs="*", metavar="CASE", help=f"also measure; without names {' '.join(TARGETS)}")
    parser.add_argument("--full", action="store_true", help="every shape and peer, not only those that goals name")
    parser.add_argument("--bench-first", action="store_true", help="measure before the tests")
    parser.add_argument("--even-if-red", action="store_true", help="measure although tests fail")
    parser.add_argument("--tests", nargs="*", default=[str(TESTS)], metavar="ARG", help="arguments for pytest")
    parser.add_argument("--seconds", type=float, default=560, help="for everything")
    parser.add_argument("--no-sanitizer", action="store_true")
    a = parser.parse_args()
    deadline: float = time.monotonic() + a.seconds
    out = (a.out or ROOT / "gpu").resolve()
    out.mkdir(parents=True, exist_ok=True)
    signed = receipt.functions()

    def left() -> float:
        return max(1.0, deadline - time.monotonic())

    def bench(red: bool) -> None:
        path = out / f"bench{'.red' if red else ''}.json"
        command = [sys.executable, "-m", "benchmarks.run", *(a.bench or TARGETS), "--json", str(path)]
        step("benchmarks", command + ([] if a.full else ["--quick"]), left())

    if a.bench is not None and a.bench_first:
        bench(red=True)  # renamed below if the tests turn out green
    junit = (out if a.out else Path(tempfile.mkdtemp())) / "tests.xml"
    junit.unlink(missing_ok=True)
    # most of the time goes into compiling: several processes where pytest-xdist is there
    parallel = ["-n", str(min(8, max(1, (os.cpu_count() or 2) // 2)))] if importlib.util.find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", "-q", "--maxfail=20", *parallel, *a.tests, f"--junitxml={junit}"]
    code = step("tests", command, left())
    tests = counts(junit)
    memcheck = "left out" if a.no_sanitizer else sanitize(min(180.0, left()))
    red = code != 0 or tests["passed"] == 0 or tests["failed"] + tests["errors"] > 0 or memcheck == "errors"
    if a.bench is not None and a.bench_first and not red:
        (out / "bench.red.json").replace(out / "bench.json")
    if a.bench is not None and not a.bench_first and (not red or a.even_if_red):
        bench(red)
    record: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d"),
        "versions": versions(),
        "tests": tests,
        "sanitizer": memcheck,
        "functions": signed,
    }
    print(f"\n{'RED' if red else 'green'}: {tests}, sanitizer {memcheck}, {len(signed)} kernel functions")
    if not red:
        (out / "receipt.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"wrote {out / 'receipt.json'}")
        if a.out is None:
            receipt.write_pending(None)
    sys.exit(red)


if __name__ == "__main__":
    main()
