"""Reads the operator's own table of instance types: a file, as a rule of a ConfigMap that is mounted as a folder."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from inferbench_operator.core.instance_table import MAX_BYTES, with_table, without_table
from inferbench_operator.models.instances import Catalogue, packaged_catalogue

_logger = logging.getLogger(__name__)


class TableFile:
    """Reads the file anew when it has changed. Its contents are compared: the kubelet swaps a link to its folder."""

    def __init__(self, path: Path) -> None:
        """Remember where the file is, or will be."""
        self._path = path
        self._seen: bytes | str | None = None
        self._last: Catalogue | None = None
        """The last one that could be read as a whole."""

    def news(self) -> Catalogue | None:
        """Return the catalogue with the table over it, if the file is not what it was when this was last asked."""
        found = self._read()
        if found == self._seen:
            return None
        self._seen = found
        base = packaged_catalogue()
        catalogue = without_table(base, found) if isinstance(found, str) else with_table(base, found)
        if catalogue.problem and self._last:
            # A slip of the pen must not take all prices away.
            catalogue = replace(self._last, problem=catalogue.problem)
        elif not catalogue.problem:
            self._last = catalogue
        for sentence in (catalogue.problem, *catalogue.problems.values()):
            if sentence:
                _logger.warning("%s", sentence)
        if not catalogue.problem:
            _logger.info("The operator's table of instance types has been taken from %s.", self._path)
        return catalogue

    def _read(self) -> bytes | str:
        """Return what is in the file, or why that can't be said."""
        try:
            if not self._path.is_file():
                return f"{self._path} is no file"
            with self._path.open("rb") as file:
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            return f"{self._path} can't be read ({error.strerror})"
