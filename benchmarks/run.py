"""Runs cases: checks each implementation, times those that are right, and prints ratios to peers and to the bound."""

from __future__ import annotations

import argparse
import datetime
import gc
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from . import peers, records, timing
from .case import Call, Case, Setting, Work
from .cases.ceilings import COPY, MATMUL
from .records import Record
from .registry import cases

SECONDS, QUICK_SECONDS = 3.0, 1.0  # of timing for one setting, all implementations together


class Ceilings:
    """The machine's own rates, measured once a run and dtype; every bound of the run is made from them."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.known = device, dict[str, float]()

    def _rate(self, case: Case, dtype: str) -> float:
        key = f"{case.name} {dtype}"
        if key not in self.known:
            settings = [s for s in case.settings if s.device == self.device.type]
            setting = next((s for s in settings if s.dtype == dtype), settings[0])
            data = case.make(setting, self.device)
            impl = next(iter(case.impls(setting, data)))
            ms, _ = timing.medians({"": _call(impl.make()).run}, self.device, 0.5)
            work = case.work(setting)
            self.known[key] = (work.bytes if case is COPY else work.flops) / ms[""]  # per millisecond
        return self.known[key]

    def bound(self, work: Work) -> float:
        flops = work.flops / self._rate(MATMUL, work.dtype) if work.flops else 0.0
        return max(flops, work.bytes / self._rate(COPY, "float32"))


def _call(made: object) -> Call:
    return made if isinstance(made, Call) else Call(made)  # type: ignore[arg-type]


def measure(
    case: Case, setting: Setting, device: torch.device, seconds: float, quick: bool, ceilings: Ceilings, skip: set[str]
) -> list[Record]:
    """One setting: every implementation is checked on fresh inputs, then the right ones are timed in turns."""
    data, work = case.make(setting, device), case.work(setting)
    order: list[str] = []
    calls: dict[str, Call] = {}
    errors: dict[str, str] = {}
    peaks: dict[str, float | None] = {}
    values: dict[str, dict[str, float]] = {}
    for impl in case.impls(setting, data):
        if quick and not impl.named and impl.name != "tilefold":
            continue
        order.append(impl.name)
        if f"{case.name}:{impl.name}" in skip:
            errors[impl.name] = "left out: it made the GPU unusable"
            continue
        try:
            call = _call(impl.make())
            call.run()  # compiles
            out, peaks[impl.name] = timing.peak(call.run, device)
            problem = (call.check or (lambda out: case.check(setting, data, out)))(out)
            if case.values:
                values[impl.name] = {key: _digits(v) for key, v in case.values(setting, data, out).items()}
            del out
        except Exception as error:  # a peer's fault is a result, not the end of the run
            problem = timing.text(error)
        if problem is None:
            calls[impl.name] = call
        else:
            errors[impl.name] = problem
            if timing.is_sticky(problem):
                break
        _free(device)
    lost = any(timing.is_sticky(e) for e in errors.values())
    ready = {} if lost else {n: c.run for n, c in calls.items()}
    timed, failed = timing.medians(ready, device, seconds, case.host) if ready else ({}, {})
    errors |= failed
    bound = None if lost else ceilings.bound(work)
    made = []
    for name in order:
        took = timed[name] * calls[name].scale if name in timed else None
        memory = peaks.get(name) if took else None
        amount = work.bytes if case.rate == "gbps" else work.flops
        record = {
            "case": case.name, "shape": dict(setting.shape), "dtype": setting.dtype, "impl": peers.label(name),
            "ms": took and _digits(took),
            case.rate: took and _digits(amount / took / (1e6 if case.rate == "gbps" else 1e9)),
            "peak_mib": None if memory is None else round(memory, 2),
            "bound_ms": bound and _digits(bound), "correct": took is not None,
        }  # fmt: skip
        record |= {"values": values[name]} if name in values else {}
        made.append(record if took else record | {"error": errors.get(name, "not timed")})
    return made


def _digits(x: float) -> float:
    """Four significant digits, which is more than a median repeats."""
    return float(f"{x:.4g}")


def _free(device: torch.device) -> None:
    """Gives memory back."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def run(
    names: Iterable[str] | None = None,
    json_path: str | Path | None = None,
    quick: bool = False,
    *,
    device: str | None = None,
    seconds: float | None = None,
    skip: Iterable[str] = (),
    run_id: str | None = None,
) -> list[Record]:
    """Runs the named cases (all if none) and prints a table for each.

    quick: only the shapes and peers that goals name, one second each. json_path: write every record to this file;
    without it they go to benchmarks/results/<machine>/, one file a case.
    """
    known = cases()
    wanted = list(names or known)
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"case: {unknown[0]!r} is unknown; it may be one of {', '.join(known)}")
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    seconds = seconds or (QUICK_SECONDS if quick else SECONDS)
    now = datetime.datetime.now(datetime.timezone.utc)
    identity = run_id or f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    common = {
        "versions": records.versions(where),
        "date": now.strftime("%Y-%m-%d"),
        "run": identity,
    }
    console, ceilings, avoided = Console(width=None if sys.stdout.isatty() else 140), Ceilings(where), set(skip)
    made: list[Record] = []
    for position, name in enumerate(wanted):
        case = known[name]
        settings = [s for s in case.settings if s.device == where.type and (s.target or not quick)]
        for setting in settings:
            try:
                new = [r | common for r in measure(case, setting, where, seconds, quick, ceilings, avoided)]
            except Exception as error:  # inputs that do not fit, say
                console.print(f"{name} {setting}: {timing.text(error)}", markup=False)
                if not timing.is_sticky(timing.text(error)):
                    continue
                rest, new = wanted[position + 1 :], []
            else:
                console.print(table(case, setting, new))
                faults = [r for r in new if timing.is_sticky(r.get("error", ""))]
                if not faults:
                    made += new
                    _write(made, where, json_path)
                    _free(where)
                    if "torch._dynamo" in sys.modules:
                        torch.compiler.reset()  # more than eight shapes of one function would run uncompiled
                    continue
                made = [r for r in made if r["case"] != name]  # the whole case again, without who spoiled it
                avoided |= {f"{name}:{r['impl'].split()[0]}" for r in faults}
                rest = wanted[position:]
            made += _in_fresh_process(rest, quick, where, seconds, avoided, identity, console) if rest else []
            _write(made, where, json_path)
            return made
    return made


def _write(made: list[Record], where: torch.device, json_path: str | Path | None) -> None:
    """After every setting: a run that is cut short keeps what it has."""
    if json_path is not None:
        records.dump(made, Path(json_path))
    elif made:
        records.save(made, records.machine_slug(where))


def _in_fresh_process(
    names: Sequence[str],
    quick: bool,
    device: torch.device,
    seconds: float,
    skip: set[str],
    run_id: str,
    console: Console,
) -> list[Record]:
    """The rest of a run after a fault that spoiled this process's GPU context, without who made it."""
    console.print(f"the GPU context is lost; going on in a new process without {', '.join(sorted(skip))}", markup=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rest.json"
        command = [sys.executable, "-m", "benchmarks.run", *names, "--json", str(path), "--device", str(device)]
        command += ["--seconds", str(seconds), "--run", run_id, *(["--quick"] if quick else [])]
        for one in sorted(skip):
            command += ["--skip", one]
        subprocess.run(command, check=False)
        return records.load(path)


def table(case: Case, setting: Setting, made: list[Record]) -> Table:
    """One setting's records. A ratio above 1 means that tilefold is faster than the peer."""
    unit = {"tflops": "TFLOP/s", "gbps": "GB/s"}[case.rate]
    shown = Table(title=f"{case.name}  {setting}", title_justify="left", title_style="bold", box=None)
    more = records.value_names(made)
    for head in ("", "ms", unit, "of bound", "tilefold is", "MiB extra", *more):
        shown.add_column(head, justify="left" if not head else "right")
    own = next((r["ms"] for r in made if r["impl"] == "tilefold"), None)
    for r in made:
        if r["ms"] is None:
            shown.add_row(r["impl"], f"[red]no speed: {r['error'][:90]}".replace("[/", "(/"))
            continue
        ratio = f"{r['ms'] / own:.2f} x" if own and r["impl"] != "tilefold" else ""
        memory = "" if r["peak_mib"] is None else f"{r['peak_mib']:.1f}"
        share = f"{r['bound_ms'] / r['ms']:.2f}" if r["bound_ms"] else ""
        values = [f"{r['values'][key]:.4g}" for key in more]
        shown.add_row(r["impl"], f"{r['ms']:.4g}", f"{r[case.rate]:.4g}", share, ratio, memory, *values)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"cases, all if none: {', '.join(cases())}")
    parser.add_argument("--json", type=Path, help="write every record here, not to benchmarks/results/<machine>/")
    parser.add_argument("--quick", action="store_true", help="only the shapes and peers that goals name")
    parser.add_argument("--seconds", type=float, help=f"of timing for a shape ({SECONDS}, quick {QUICK_SECONDS})")
    parser.add_argument("--device", help="cpu or cuda")
    parser.add_argument("--skip", action="append", default=[], metavar="CASE:IMPL")
    parser.add_argument("--run", help="the run's id")
    a = parser.parse_args()
    run(a.names, a.json, a.quick, device=a.device, seconds=a.seconds, skip=a.skip, run_id=a.run)


if __name__ == "__main__":
    main()
