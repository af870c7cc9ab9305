"""Seconds of a first call on a GPU: in a process that compiles, and in a later one that finds Triton's cache.

    python -m benchmarks.first_call [--json FILE]

Each call runs in a process of its own, after PyTorch has started the device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CALLS = ("logsumexp", "argmax", "attention", "topk", "linear_cross_entropy")


def call(name: str) -> float:
    """The first call's seconds, in this process."""
    import torch

    import tilefold as tf

    x = torch.randn(40000, 128, device="cuda", dtype=torch.bfloat16)  # rows for all units: one kernel, no merge
    y = x[:1000]
    labels = torch.zeros(40000, dtype=torch.int64, device="cuda")
    (x @ y.mT).sum().item()
    began = time.perf_counter()
    match name:
        case "logsumexp":
            tf.scores(x, y).logsumexp(-1)
        case "argmax":
            tf.scores(x, y).argmax(-1)
        case "attention":
            tf.attention(*[t.expand(1, 1, -1, -1) for t in (x, y, y)])
        case "topk":
            tf.scores(x, y).topk(10)
        case "linear_cross_entropy":
            tf.linear_cross_entropy(x, y, labels)
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure() -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {"TRITON_CACHE_DIR": cache, "TILEFOLD_CACHE": cache}
        for name in CALLS:
            command = [sys.executable, "-m", "benchmarks.first_call", "--call", name]
            cold, warm = (float(subprocess.check_output(command, env=env, text=True)) for _ in range(2))
            found[name] = {"compiles_s": round(cold, 2), "cached_s": round(warm, 2)}
            print(name, found[name], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--call", choices=CALLS, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.call:
        print(call(a.call))
        return
    found = measure()
    if a.json:
        a.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
