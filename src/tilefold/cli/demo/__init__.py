"""`tilefold demo`: a real model on real sentences, three uses of the scores of all pairs, each beside plain PyTorch.

Embeds sentences with all-MiniLM-L6-v2, whose attention is tf.attention; finds each one's neighbours with tf.knn; takes
a contrastive loss over all of them, with gradients. The plain way computes the same and writes the scores out. Exit
status 1 if the two disagree by more than rounding.
"""

from __future__ import annotations

import os
import sys
from textwrap import shorten
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console

    from tilefold.cli.demo.jobs import Answer, Done, Row

NEAR_COPY = 0.85  # cosine above which a neighbour says the same thing in the same words


@click.command("demo")
@click.option("--sentences", "count", default=8192, show_default=True, type=click.IntRange(64), help="How many.")
@click.option(
    "--device",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "cpu", "cuda"]),
    help="auto: a GPU if there is one.",
)
def command(count: int, device: str) -> None:
    """Embed, search and train on real sentences, beside plain PyTorch."""
    from rich.console import Console

    console = Console()
    try:
        answer = run(console, count, device)
    except ModuleNotFoundError as error:
        console.print(
            f"The demo needs the package [bold]{error.name}[/]: pip install 'tilefold\\[demo]', or make demo."
        )
        sys.exit(2)
    show_neighbours(console, answer)
    show_table(console, answer.rows)
    wrong = [row for row in answer.rows if not row.difference <= row.tolerance]
    for row in wrong:
        console.print(f"[red]{row.what}: the two ways differ by {row.difference:.1e}, more than {row.tolerance:.0e}[/]")
    sys.exit(1 if wrong else 0)


def run(console: Console, count: int, device: str) -> Answer:
    # Everything is in site-packages; without this, loading asks the network for news first.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Threads that spin while they wait made it ten times slower on two cores that others used too (2026-11). Read when
    # torch loads, and nothing has imported it yet.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<46}"), BarColumn(24), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:

        def step(what: str, total: int) -> Done:
            task = progress.add_task(what, total=total)
            return lambda n=1: progress.advance(task, n)

        first = step("importing torch and tilefold", 1)
        from tilefold.cli.demo import jobs

        first()
        return jobs.run(step, count, device)


def show_neighbours(console: Console, answer: Answer) -> None:
    from rich.markup import escape

    def line(i: int) -> str:
        return escape(shorten(answer.text[i], 70, placeholder=" …"))

    console.print(
        f"\n[bold]{len(answer.text):,} sentences on {answer.device}.[/] Three of them, and what is nearest:\n"
    )
    # the clearest finds: a near neighbour that is no near copy, and none of these three the neighbour of another
    clear = answer.values[:, 1].masked_fill(answer.values[:, 1] > NEAR_COPY, 0)
    shown: set[int] = set()
    examples = 0
    for i in clear.argsort(descending=True).tolist():
        near = answer.indices[i, :4].tolist()
        if not shown.isdisjoint(near):
            continue
        console.print(f"  {line(i)}", highlight=False, style="bold")
        for value, j in zip(answer.values[i, :4].tolist(), near):
            if j != i:
                console.print(f"    {value:.2f}  {line(j)}", highlight=False)
        shown.update(near)
        examples += 1
        if examples == 3:
            break
    console.print()


def show_table(console: Console, rows: list[Row]) -> None:
    from rich.table import Table

    def mib(peak: float | None) -> str:
        return "not measured" if peak is None else f"{peak:,.0f} MiB"

    table = Table(title="tilefold, beside the same work with the scores written out", title_justify="left")
    table.add_column("computed")
    for row in rows:
        table.add_column(row.what, justify="right")
    table.add_row("largest intermediate never written", *(f"{row.score_bytes / 2**20:,.1f} MiB" for row in rows))
    table.add_row("peak memory, tilefold", *(mib(row.ours.peak_mib) for row in rows))
    table.add_row("peak memory, written out", *(mib(row.plain.peak_mib) for row in rows))
    table.add_row("time, tilefold", *(f"{row.ours.seconds:.2f} s" for row in rows))
    table.add_row("time, written out", *(f"{row.plain.seconds:.2f} s" for row in rows))
    table.add_row("largest difference", *(f"{row.difference:.1e}" for row in rows))
    console.print(table)
    notes = "; ".join(f"{row.what}: {row.note}" for row in rows)
    console.print(f"Peak memory is above what was held before. {notes}.", highlight=False)
