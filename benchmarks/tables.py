"""Tables of README and docs, generated from the results.

A page holds `<!-- bench:logsumexp -->...<!-- /bench -->`, or `<!-- bench:logsumexp@h200 -->` for one machine;
`python -m benchmarks.tables README.md docs/*.md` fills them in, `--check` only says which are stale.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from .records import RESULTS, Record, load, setting_of, value_names

_BLOCK = re.compile(r"(<!-- bench:([a-z_]+)(?:@([a-z0-9-]+))? -->\n?)(.*?)(<!-- /bench -->)", re.DOTALL)
_UNITS = {"tflops": "TFLOP/s", "gbps": "GB/s"}


def render(case: str, machine: str | None = None, results: Path = RESULTS) -> str:
    """The markdown of one case: a table a machine, GPUs first."""
    folders = [results / machine] if machine else sorted(results.iterdir(), key=lambda p: (p.name[:3] == "cpu", p.name))
    parts = []
    for folder in folders:
        if found := load(folder / f"{case}.json"):
            parts.append(_caption(folder.name, found) + "\n\n" + _table(found))
    return "\n\n".join(parts) if parts else "*not measured yet*"


def _caption(machine: str, found: list[Record]) -> str:
    name = found[0]["versions"].get("device") or f"CPU, {machine.split('-')[1]} cores"
    versions = {f"{n} {v}" for r in found for n, v in r["versions"].items() if n in ("torch", "triton")}
    dates = sorted({r["date"] for r in found})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{name}, {', '.join(sorted(versions))}, {when}"


def _table(found: list[Record]) -> str:
    unit = next(key for key in _UNITS if key in found[0])
    more = value_names(found)
    heads = ["ms", _UNITS[unit], "of the bound", "tilefold is", "extra MiB", *more]
    lines = ["| | | " + " | ".join(heads) + " |", "|---|---|" + "--:|" * len(heads)]
    for setting in dict.fromkeys(setting_of(r) for r in found):
        group = [r for r in found if setting_of(r) == setting]
        own = next((r["ms"] for r in group if r["impl"] == "tilefold"), None)
        for i, r in enumerate(group):
            cells = [_shape(r) if i == 0 else "", r["impl"], *_cells(r, own, unit, more)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _shape(r: Record) -> str:
    shape = ", ".join(
        key if value is True else f"{key}={value}" for key, value in r["shape"].items() if value is not False
    )
    return f"{shape}, {r['dtype']}"


def _cells(r: Record, own: float | None, unit: str, more: list[str]) -> list[str]:
    if r["ms"] is None:
        return ["no correct result", "", "", "", "", *("" for _ in more)]
    ratio = "" if own is None or r["impl"] == "tilefold" else f"{r['ms'] / own:.2f} ×"
    bound = f"{r['bound_ms'] / r['ms']:.2f}" if r["bound_ms"] else ""
    memory = "" if r["peak_mib"] is None else f"{r['peak_mib']:,.1f}"
    values = [f"{r['values'][key]:,.4g}" for key in more]
    return [f"{r['ms']:,.4g}", f"{r[unit]:,.4g}", bound, ratio, memory, *values]


def update(text: str, results: Path = RESULTS) -> str:
    """The page with every block filled in."""
    return _BLOCK.sub(lambda m: f"{m[1].rstrip()}\n{render(m[2], m[3], results)}\n{m[5]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables", description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    stale = [page for page in arguments.pages if update(page.read_text()) != page.read_text()]
    for page in stale:
        print(f"{page}: {'stale' if arguments.check else 'updated'}")
        if not arguments.check:
            page.write_text(update(page.read_text()))
    sys.exit(bool(stale and arguments.check))


if __name__ == "__main__":
    main()
