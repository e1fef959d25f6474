"""``lnplace show PLACEMENT``: a method's equation, constants, parameters and sources, and its diagram."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding

from fairseq_lnplace import placements
from fairseq_lnplace.descriptions.describe import describe
from fairseq_lnplace.errors import flag, must_be
from fairseq_lnplace.placements.at_depth import Depth
from fairseq_lnplace.placements.options import METHOD_OPTIONS

__all__ = ["main"]

PICTURES = ("svg", "png")
SHOWN_VALUES = 8  # of a constant that differs by layer; --json has them all


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the parsed options; those of the method itself are among them."""
    parser = argparse.ArgumentParser(
        prog="lnplace show PLACEMENT",
        description="Show the placement equation with a method's slots filled in, its constants at a given depth, its "
        "parameters, options and sources.",
        epilog="example: lnplace show deepnorm --encoder-layers 18 --decoder-layers 18 --draw deepnorm.svg",
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="PLACEMENT", help="as lnplace list names it")
    parser.add_argument(
        "--encoder-layers", type=int, default=6, metavar="N", help="0 for a decoder-only model (default 6)"
    )
    parser.add_argument(
        "--decoder-layers", type=int, default=6, metavar="M", help="0 for an encoder-only model (default 6)"
    )
    parser.add_argument("--draw", type=Path, metavar="FILE", help=f"write a diagram ({' or '.join(PICTURES)})")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    for name in placements.get(words[0]).options:
        option = METHOD_OPTIONS[name]
        help_text = f"{option.help} (default {option.default})"
        if option.kind is bool:
            parser.add_argument(flag(name), action="store_true", help=help_text)
        else:
            parser.add_argument(flag(name), type=option.kind, help=help_text)
    return parser.parse_args(words)


def main(words: Sequence[str]) -> None:
    """Print the description of the placement that the first word names; draw it if asked to.

    Raises:
        LnplaceError: no such placement, impossible depths, a method's option out of range, an unknown picture format.
    """
    args = parse(words)
    for option, layers in (("--encoder-layers", args.encoder_layers), ("--decoder-layers", args.decoder_layers)):
        if layers < 0:
            raise must_be(option, "at least 0", layers)
    if args.encoder_layers == args.decoder_layers == 0:
        raise must_be("--encoder-layers", "at least 1 where --decoder-layers is 0", 0)
    if args.draw and args.draw.suffix[1:] not in PICTURES:
        raise must_be("--draw", f"a file that ends in {' or '.join(PICTURES)}", args.draw)
    depth = Depth(args.encoder_layers, args.decoder_layers)
    description = describe(args.name, depth, vars(args))
    if args.draw:
        from fairseq_lnplace.descriptions.diagram.drawing import draw  # slow to import, and seldom wanted

        draw(args.name, depth, vars(args), args.draw)
        print(f"drawn: {args.draw}", file=sys.stderr)
    if args.json:
        print(json.dumps(description, indent=2, ensure_ascii=False))
        return
    console = Console(highlight=False, markup=False)
    for title, lines in text(description):
        if lines := list(lines):
            console.print(title, style="bold")
            for line in lines:
                console.print(Padding(line, (0, 0, 0, 2), expand=False))


def text(about: dict[str, Any]) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the sections of a description: a title and its lines."""
    yield f"{about['title']} ({about['name']})", [about["citation"], f"norms: {about['norms']}"]
    for side, parts in about["equations"].items():
        yield side, (f"{part:<12}{line}" for part, line in equation_lines(parts))
    depths = "+".join(str(layers) for layers in about["depth"].values())
    yield f"constants at {depths} layers", [line for row in about["constants"] for line in constant_lines(row)]
    yield (
        f"initialisation at {depths} layers, times Xavier",
        [line for row in about["initialisation"] for line in gain_lines(row)],
    )
    yield "parameters, besides matrices and embeddings", parameter_lines(about["parameters"])
    yield "options", (f"{each['flag']} (default {each['default']}): {each['help']}" for each in about["options"])
    yield "stock fairseq", [about["stock_equivalent"] or f"no equivalent: {about['stock_obstacle']}"]
    yield "models", [", ".join(about["models"]) + f"; warm-up {'needed' if about['needs_warmup'] else 'not needed'}"]
    yield "paper and code", filter(None, [about["paper_and_code"]])
    yield "our extension", filter(None, [about["our_extension"]])
    yield "published results", [about["results"]]


def equation_lines(parts: Iterable[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield a stack's assignments, the first of each part with the part's name before it."""
    for part in parts:
        for number, line in enumerate(part["lines"]):
            yield "" if number else part["part"], line


def constant_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield a constant's meaning, and its values by stack."""
    yield f"{row['symbol']}: {row['meaning']}" + (f". {row['source']}" if row["source"] else "")
    yield from value_lines(row["values"])


def gain_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield which matrices a gain scales, and its values by stack."""
    apart = "" if row["cross_attention"] else " (cross-attention apart)"
    yield ", ".join(row["matrices"]) + apart + (f". {row['source']}" if row["source"] else "")
    yield from value_lines(row["values"])


def parameter_lines(parameters: dict[str, str]) -> Iterator[str]:
    """Yield names and shapes, a norm's weight and bias in one line."""
    for name, shape in parameters.items():
        stem, _, kind = name.rpartition(".")
        if kind != "bias" or f"{stem}.weight" not in parameters:
            both = ", .bias" if kind == "weight" and f"{stem}.bias" in parameters else ""
            yield f"{name + both:<56} {shape}"


def value_lines(values: dict[str, list[float]]) -> Iterator[str]:
    """Yield the values in each stack: one number if all its layers agree."""
    for side, numbers in values.items():
        if numbers:
            shown = [f"{number:.6g}" for number in (numbers[:1] if len(set(numbers)) == 1 else numbers)]
            cut = [*shown[: SHOWN_VALUES - 1], "…", shown[-1]] if len(shown) > SHOWN_VALUES else shown
            yield f"    {side}: {', '.join(cut)}"
