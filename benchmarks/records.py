"""Results as data: one JSON file a case under results/<machine>/, a list of records.

Keys of a record: case, shape, dtype, impl, ms, tflops or gbps, peak_mib, bound_ms, correct, versions, date, run;
`error` where there is no speed, and `values` where a case says more of an output. Only records of one run are compared.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
Record = dict[str, Any]


def machine_slug(device: torch.device) -> str:
    """The folder of a machine: "h200", or "cpu-2-cores"."""
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device).lower().replace("nvidia", "").replace("amd", "")
        return re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    return f"cpu-{torch.get_num_threads()}-cores"


def versions(device: torch.device) -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for name in ("tilefold", "triton"):
        try:
            found[name] = __import__(name).__version__
        except Exception:  # absent, broken, or without a version: the record simply lacks it
            continue
    if device.type == "cuda":
        found["cuda"], found["device"] = torch.version.cuda or "", torch.cuda.get_device_name(device)
    return found


def load(path: Path) -> list[Record]:
    records: list[Record] = json.loads(path.read_text()) if path.exists() else []
    return records


def dump(records: list[Record], path: Path) -> None:
    """One record a line, so that a new run is a readable diff."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")


def setting_of(record: Record) -> str:
    return json.dumps([record["shape"], record["dtype"]])


def value_names(records: list[Record]) -> list[str]:
    return list(dict.fromkeys(key for r in records for key in r.get("values", ())))


def save(records: list[Record], machine: str, results: Path = RESULTS) -> list[Path]:
    """Merges into the case files: a setting that was measured again loses its older records, the others keep theirs."""
    paths = []
    for case in dict.fromkeys(r["case"] for r in records):
        new = [r for r in records if r["case"] == case]
        measured = {setting_of(r) for r in new}
        path = results / machine / f"{case}.json"
        dump([r for r in load(path) if setting_of(r) not in measured] + new, path)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Merge files of `python -m benchmarks.run --json` into the results.")
    parser.add_argument("machine", help="the folder, say h200")
    parser.add_argument("files", nargs="+", type=Path)
    arguments = parser.parse_args()
    for path in arguments.files:
        if ".red." in path.name:
            sys.exit(f"{path}: measured beside failing tests; no speed is published for such a build")
        for saved in save(load(path), arguments.machine):
            print(saved)


if __name__ == "__main__":
    main()
