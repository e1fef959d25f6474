"""``lnplace list``: every method in one table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from fairseq_lnplace import placements
from fairseq_lnplace.descriptions.describe import summary

__all__ = ["markdown"]

HELP = "list every placement: where norms stand, what it costs, what is published"
EXAMPLE = "lnplace list --markdown"

HEADS = ("Placement", "Method", "Norms", "Parameters", "Warm-up", "Published results")
LEGEND = (
    "Norms: in = on the branch's input, out = on its output, add = after the add, inner = before the sub-layer's last "
    "matrix, qkv = on queries, keys and values, layers = on what is read from each layer below; embedding and final = "
    "of the stack. SA, CA, FFN: self-attention, cross-attention, feed-forward.",
    "Parameters: more (or fewer) than Post-LN's in an encoder / a decoder layer, in the first one where it differs, "
    "and once a stack of L layers; d = width, f = feed-forward width, H = heads.",
    "Warm-up: whether training is known to need it. `lnplace show PLACEMENT` tells the rest.",
)
NARROW = 100  # columns; below, the results have no room


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``lnplace list``."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the table as JSON")
    form.add_argument("--markdown", action="store_true", help="print the table as the README has it")


def run(args: argparse.Namespace) -> None:
    """Print the table."""
    rows = [summary(placements.get(name)) for name in placements.names()]
    if args.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    elif args.markdown:
        print(markdown(rows))
    else:
        console = Console(highlight=False)
        console.print(table(rows, console.width))
        for line in LEGEND:
            console.print(line, style="dim")


def parameters(row: dict[str, Any]) -> str:
    """Return the extra parameters of a row in one cell."""
    extra = row["extra_parameters"]
    layers = dict.fromkeys((extra["encoder_layer"], extra["decoder_layer"]))
    first = {extra[part]: None for part in ("encoder_first_layer", "decoder_first_layer") if part in extra}
    text = " / ".join(layers) + (f"; first layer {' / '.join(first)}" if first else "")
    return text + ("" if extra["stack"] == "0" else f"; stack {extra['stack']}")


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a row's cells, as HEADS names them; name and citation are in one cell, on two lines."""
    warmup = "yes" if row["needs_warmup"] else "no"
    return row["name"], f"{row['title']}\n{row['citation']}", row["norms"], parameters(row), warmup, row["results"]


def table(rows: Sequence[dict[str, Any]], width: int) -> Table:
    """Return the table for a terminal of so many columns; a narrow one goes without the results."""
    shown = len(HEADS) if width >= NARROW else -1
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=False, padding=(0, 1, 0, 0))
    for head in HEADS[:shown]:
        grid.add_column(head, no_wrap=head == "Placement", style="bold" if head == "Placement" else "", overflow="fold")
    for row in rows:
        grid.add_row(*cells(row)[:shown])
    return grid


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table and its legend in Markdown."""
    lines = [" | ".join(HEADS), " | ".join("---" for _ in HEADS)]
    for row in rows:
        name, method, *others = cells(row)
        lines.append(" | ".join([f"`{name}`", method.replace("\n", ", "), *others]))
    return "\n".join([*(f"| {line} |" for line in lines), "", *(f"{line}  " for line in LEGEND)]).rstrip()
