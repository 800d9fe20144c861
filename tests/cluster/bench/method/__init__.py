"""The part `method` of the bench: the runner side by side with a loop written by hand and with its peers.

Every ratio is measured in turns with what it is compared with, in fresh processes, and told with its spread. A figure
is given as soon as it is there, so that a run that is interrupted leaves what it has measured.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster.bench.figures import Figure
from cluster.bench.method.costs import costs
from cluster.bench.method.loop import loop
from cluster.bench.method.peers import Peers
from cluster.bench.method.settings import Row, Settings
from cluster.bench.method.study import study
from cluster.bench.method.tools import Place, save_model
from cluster.bench.method.versus import versus_optimum, versus_pyperf
from cluster.errors import ClusterError


class RowsMissingError(ClusterError):
    """Some rows could not be measured, for reasons that were said at the time."""

    def __init__(self, rows: list[Row]) -> None:
        """Name them."""
        super().__init__(f"Rows without a figure, because of an error: {', '.join(rows)}.")


def method(settings: Settings, say: Callable[[str], None]) -> Generator[Figure, None, None]:
    """Measure row by row; where one fails, the others are measured all the same.

    Raises:
        RowsMissingError: At the end, if one has failed.
    """
    failed = []
    with TemporaryDirectory(prefix="inferbench-method-") as name:
        where = Place(Path(name))
        for row in settings.rows:
            say(f"Measuring the row {row}.")
            try:
                yield from _row(row, where, settings, Peers(say))
            except ClusterError as error:
                say(str(error))
                failed.append(row)
    if failed:
        raise RowsMissingError(failed)


def _row(row: Row, where: Place, settings: Settings, peers: Peers) -> Iterator[Figure]:
    if row is not Row.STUDY:
        save_model(where, settings.layers)
    match row:
        case Row.LOOP:
            yield from loop(where, settings)
        case Row.COSTS:
            yield from costs(where, settings)
        case Row.OPTIMUM:
            yield from versus_optimum(where, settings, peers)
        case Row.PYPERF:
            yield from versus_pyperf(where, settings, peers)
        case Row.STUDY:
            yield from study(where.folder, settings)
