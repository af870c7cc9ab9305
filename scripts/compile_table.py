"""Writes tests/compiled/table.json: tiles, registers, spills and shared memory of what selection can emit.

    python scripts/compile_table.py            with the installed Triton; columns of other versions stay
    python scripts/compile_table.py --show     prints the table, what spills first

spills are bytes of a thread's stack; looped, for sm_90, the accesses to it in loops; there where there are any.

Notes are kept; a new spill needs one, written by hand, that says why. Configurations that are gone are dropped, and the
columns of other versions where the tiles have changed.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATH = ROOT / "tests" / "compiled" / "table.json"
sys.path[:0] = [str(ROOT / "tests" / "compiled"), str(ROOT / "src"), str(ROOT)]


def rows(number: int) -> dict[str, dict[str, Any]]:
    """The rows of one case and target."""
    import compile_leg as leg
    from compile_cases import PAIRS

    case, target = PAIRS[number]
    found = {}
    for name, m in leg.made(case, target).items():
        try:
            r = leg.measure(m.kernel, leg.TARGETS[target])
        except Exception as error:  # no row: the test fails and shows the compiler's message
            print(f"\r{name} | {leg.described(m)} | does not compile: {error!r:.200}", file=sys.stderr, flush=True)
            continue
        measured = {"registers": r.registers, "spills": r.spills, "shared": r.shared}
        if r.looped:
            measured["looped"] = r.looped
        counted = leg.expected(m, target)
        found[name] = {"tiles": leg.described(m), "counted": counted, "measured": {leg.VERSION: measured}}
        says = [*r.serialised, *r.miscompiled] + ([f"{r.spills} spilled, {r.looped} in loops"] if r.spills else [])
        if target == "sm_90" and 2 in m.products and not r.wgmma:
            says.append("no warp-group product")
        if says:
            print(f"\r{name} | {leg.described(m)} | {r.registers} registers, {says}", file=sys.stderr, flush=True)
    return found


def build(jobs: int) -> dict[str, Any]:
    from compile_cases import PAIRS

    made: dict[str, Any] = {}
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        for i, part in enumerate(pool.map(rows, range(len(PAIRS)))):
            made |= part
            print(f"\r{i + 1} of {len(PAIRS)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    before = stored()
    for name, row in made.items():
        old = before.get(name, {})
        if old.get("tiles") == row["tiles"]:
            row["measured"] = dict(sorted((old["measured"] | row["measured"]).items()))
        if old.get("note"):
            row["note"] = old["note"]
    return dict(sorted(made.items()))


def stored() -> dict[str, Any]:
    return json.loads(PATH.read_text())["configurations"] if PATH.exists() else {}


def show(table: dict[str, Any]) -> None:
    def worst(row: dict[str, Any]) -> int:
        return max(v["spills"] for v in row["measured"].values())

    for name, row in sorted(table.items(), key=lambda item: (-worst(item[1]), item[0])):
        numbers = "; ".join(
            f"{v}: {m['registers']} registers, {m['spills']} spilled ({m.get('looped', 0)} accesses in loops), "
            f"{m['shared']} shared"
            for v, m in row["measured"].items()
        )
        print(
            f"{name} | {row['tiles']} | counted {row['counted']} | {numbers}"
            + (f" | {row['note']}" if row.get("note") else "")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    table = stored() if options.show else build(options.jobs)
    if not options.show:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
        PATH.write_text(f'{{"configurations": {{\n{lines}\n}}}}\n')
    show(table)


if __name__ == "__main__":
    main()
