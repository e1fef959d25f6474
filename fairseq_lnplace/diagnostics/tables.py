"""Rows of measurements: averaged over seeds, shown in a terminal, written as JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from fairseq_lnplace.files import new_file, write_json
from fairseq_lnplace.measure.subject import Row

__all__ = ["Row", "as_json", "over_seeds", "table", "write"]


def over_seeds(rows: Sequence[Row], keys: Sequence[str], values: Sequence[str]) -> list[Row]:
    """Return one row for each combination of ``keys``, in order of appearance.

    Each of the ``values`` is averaged over the rows that have it, and has its standard deviation beside it, under its
    name with ``_std``; both are None where no row has it.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    averaged = []
    for group, members in groups.items():
        summary: Row = dict(zip(keys, group, strict=True))
        for name in values:
            found = [row[name] for row in members if row.get(name) is not None]
            summary[name] = statistics.fmean(found) if found else None
            finite = all(map(math.isfinite, found))
            summary[f"{name}_std"] = (statistics.pstdev(found) if finite else math.nan) if found else None
        averaged.append(summary)
    return averaged


def table(rows: Sequence[Row], columns: Mapping[str, str], title: str = "", caption: str = "") -> Table:
    """Return the rows as a table for a terminal; ``columns`` gives the heading of each value that is shown."""
    shown = Table(title=title, caption=caption, title_justify="left", caption_justify="left")
    for name, heading in columns.items():
        numeric = any(isinstance(row.get(name), int | float) for row in rows)
        shown.add_column(heading, justify="right" if numeric else "left", no_wrap=numeric, overflow="fold")
    for row in rows:
        shown.add_row(*(_cell(row.get(name)) for name in columns))
    return shown


def _cell(value: Any) -> str:
    """Return a value with three significant digits, or a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def write(dest: Path, name: str, about: Row, tables: Mapping[str, Sequence[Row]]) -> list[Path]:
    """Write ``DEST/NAME.json`` with everything, and a CSV file for each table; return the paths.

    A number that is not finite becomes null, and an empty cell.
    """
    tidy = _finite(tables)
    paths = [dest / f"{name}.json"]
    write_json(paths[0], {**about, **tidy})
    for key, rows in tidy.items():
        path = dest / f"{key}.csv"
        with new_file(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(
                file, list(dict.fromkeys(field for row in rows for field in row)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
        paths.append(path)
    return paths


def _finite(tables: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Return the tables with None for each number that is not finite: JSON has no word for it."""

    def value_of(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: [{field: value_of(row[field]) for field in row} for row in rows] for key, rows in tables.items()}


def as_json(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the tables as JSON, for a pipe."""
    return json.dumps(_finite(tables), indent=2)
