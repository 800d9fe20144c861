"""Shows figures to people: one table of all of them, one of requests by kind, and where they were measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cluster.bench.figures import Figure, Requests

_WIDTH: Final = 160
"""For output that goes to a file; a terminal has a width of its own."""
_VERDICTS: Final = {True: "[green]met[/]", False: "[bold red]missed[/]", None: "-"}


def console() -> Console:
    """Return where tables are printed: standard output."""
    plain = Console()
    return plain if plain.is_terminal else Console(width=_WIDTH)


def figures_table(figures: Sequence[Figure]) -> Table:
    """Return the table of all figures."""
    table = Table("figure", title="What was measured", title_justify="left")
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("aim", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("how")
    for figure in figures:
        table.add_row(
            figure.name,
            figure.value_text,
            figure.unit,
            figure.aim_text,
            _VERDICTS[figure.met],
            escape(figure.detail) or "-",
        )
    return table


def figure_line(figure: Figure) -> str:
    """Return a figure in one line, for those that are shown as soon as they are measured."""
    aim = "" if figure.met is None else f" (aim {figure.aim_text}: {_VERDICTS[figure.met]})"
    return f"{escape(figure.name)}: {figure.value_text} {figure.unit}{aim}; {escape(figure.detail) or '-'}"


def requests_table(runs: Mapping[str, Requests]) -> Table:
    """Return the requests of whole runs by verb and resource; the keys are the runs' titles."""
    table = Table("request", title="Requests of one run, watches left out", title_justify="left")
    for title in runs:
        table.add_column(title, justify="right")
    total: Requests = sum(runs.values(), start=Requests())
    for (verb, resource), _ in total.most_common():
        table.add_row(f"{verb} {resource}", *(str(found[verb, resource]) for found in runs.values()))
    table.add_section()
    table.add_row("all", *(str(found.total()) for found in runs.values()))
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Return where and with what the figures were measured."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    return table
