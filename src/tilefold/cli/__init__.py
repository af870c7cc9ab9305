"""The `tilefold` command. A subcommand's module is imported when it is called: `tilefold --help` needs no torch."""

from __future__ import annotations

import importlib

import click

__all__ = ["main"]

# command -> (module that defines it, one line of help)
COMMANDS = {
    "bench": ("tilefold.cli.bench", "Run the benchmarks beside the peers that are installed."),
    "demo": ("tilefold.cli.demo", "Embed, search and train on real sentences, beside plain PyTorch."),
    "doctor": ("tilefold.cli.doctor", "Say what was found here, what would run, and what is broken."),
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="tilefold", prog_name="tilefold")
def main() -> None:
    """Fold rows of scores tile by tile, without the N x K matrix."""
