"""`tilefold bench`: the cases of `benchmarks/`, which lies beside the package in a checkout and in no wheel."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import click


def benchmarks(name: str) -> ModuleType:
    """The module benchmarks.<name> of the checkout that holds this file, else of the current folder or the path."""
    for root in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (root / "benchmarks" / "registry.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            break
    try:
        return importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] == "benchmarks":
            raise click.ClickException(
                "no benchmarks here: run this in a checkout of tilefold, which has them"
            ) from None
        raise


@click.command("bench")
@click.argument("case", nargs=-1)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the records here.")
@click.option("--quick", is_flag=True, help="Only the shapes and peers that goals name.")
@click.option("--list", "listing", is_flag=True, help="Name the cases, and run none.")
def command(case: tuple[str, ...], json_path: Path | None, quick: bool, listing: bool) -> None:
    """Run the benchmarks beside the peers that are installed, all of them or each CASE.

    Every implementation is checked in the run that times it; one whose result is wrong gets no speed, and if that is
    tilefold's the exit status is 1. Without --json the records go to benchmarks/results/<machine>/.
    """
    known = benchmarks("registry").cases()
    if listing:
        for name, one in known.items():
            click.echo(f"{name:<24}{getattr(one, 'about', '')}".rstrip())
        return
    unknown = [name for name in case if name not in known]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none; it may be one of {', '.join(known)}", param_hint="CASE")
    records = benchmarks("run").run(case or None, json_path, quick)
    wrong = [r for r in records if r["impl"].split()[0] == "tilefold" and not r["correct"]]
    for record in wrong:
        click.echo(f"{record['case']} {record['shape']}: tilefold {record.get('error', 'is not correct')}", err=True)
    sys.exit(1 if wrong or not records else 0)
