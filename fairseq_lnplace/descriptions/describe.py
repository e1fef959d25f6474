"""A method in words and numbers, all of it derived from its description."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from fairseq_lnplace import placements
from fairseq_lnplace.descriptions.parameters import extra_parameters, parameters
from fairseq_lnplace.errors import flag
from fairseq_lnplace.placements import equation, stock
from fairseq_lnplace.placements.at_depth import Depth, slots_of
from fairseq_lnplace.placements.options import METHOD_OPTIONS, method_options
from fairseq_lnplace.placements.spec import ONE, Constant, Gains, Options, Placement, Side

__all__ = ["describe", "short_citation", "summary"]

MODEL_KINDS = ("encoder-decoder", "decoder-only", "encoder-only")  # each method has architectures of every kind
ROLES = ("query", "key", "value", "output", "fc1", "fc2", "embedding")


def describe(name: str, depth: Depth | None = None, given: Options | None = None) -> dict[str, Any]:
    """Return everything about a method, ready for JSON.

    Args:
        name: the method.
        depth: the depth to show it at; 6+6 where not given.
        given: the method's options; the rest have their defaults.

    Raises:
        LnplaceError: there is no such method, or an option is another's or out of its range.
    """
    depth = depth or Depth()
    placement = placements.get(name)
    options = method_options(name, placement.options, given or {})
    form = placement.resolved(options)
    return {
        **summary(form, options),
        "citation": form.citation,
        "depth": asdict(depth),
        "equations": {side: sections(form, options, depth, side) for side in depth.sides},
        "constants": constants(form, options, depth),
        "initialisation": gains(form, options, depth),
        "parameters": parameters(form, options, depth),
        "options": [option(each) for each in form.options],
        **stock_equivalent(form, options, depth),
        "models": list(MODEL_KINDS),
        "paper_and_code": form.paper_differs,
        "our_extension": form.extension,
    }


def summary(placement: Placement, options: Options | None = None) -> dict[str, Any]:
    """Return a method's row in the table of all methods; without ``options`` they are the defaults."""
    return {
        "name": placement.name,
        "title": placement.title,
        "citation": short_citation(placement.citation),
        "norms": equation.where(placement),
        "extra_parameters": extra_parameters(placement, options),
        "needs_warmup": placement.needs_warmup,
        "results": placement.results,
    }


def short_citation(citation: str) -> str:
    """Return authors, year and identifier of a citation that reads "[code, ]authors year, title, identifier"."""
    parts = citation.split(", ")
    authors = next((part for part in parts if re.search(r" \d{4}$", part)), parts[0])
    return ", ".join(dict.fromkeys((authors, parts[-1])))


def sections(placement: Placement, options: Options, depth: Depth, side: Side) -> list[dict[str, Any]]:
    """Return a stack's equations: its start, its layers, its end."""
    positions, branches = depth.positions(side), depth.branches(side)
    lines = [{"part": "start", "lines": equation.stack_start(placement)}]
    if placement.history != "none":
        lines.append({"part": "inputs", "lines": equation.history(placement)})
    for first, last in equation.layer_ranges(placement, options, positions[-1]):
        layer = list(slots_of(placement.at(positions[first - 1], options), branches))
        text = [line for branch, slots in layer for line in equation.update(placement, slots, branch)]
        if any(slots.layer_skip for _, slots in layer):
            text.insert(0, "x_in = x")
        inner = [line for branch, slots in layer for line in equation.inside(placement, slots, branch)]
        inner += equation.scores(placement, placement.mean_scores(positions[0], options) != 0)
        lines.append({"part": equation.range_name(first, last), "lines": text})
        if inner:
            lines.append({"part": "where", "lines": inner})
    return [*lines, {"part": "end", "lines": equation.stack_end(placement)}]


def source(value: Constant) -> str:
    """Return where a constant comes from: the first line of its function's documentation."""
    return (value.__doc__ or "").split("\n")[0].rstrip(".")


def constants(placement: Placement, options: Options, depth: Depth) -> list[dict[str, Any]]:
    """Return the factors in the equation with their start values: by stack, one for every layer that has the factor."""
    rows: dict[equation.Symbol, dict[str, dict[int, float]]] = {}
    for side in depth.sides:
        for position in depth.positions(side):
            for _, slots in slots_of(placement.at(position, options), depth.branches(side)):
                for symbol in equation.symbols(placement, slots):
                    values = rows.setdefault(symbol, {}).setdefault(side, {})
                    if symbol.start is not None:
                        values[position.layer] = symbol.start(position, options)
    return [
        {
            "symbol": symbol.name,
            "meaning": symbol.meaning,
            "values": {side: list(values.values()) for side, values in by_side.items()},
            "source": "" if symbol.start is None else source(symbol.start),
        }
        for symbol, by_side in rows.items()
    ]


def gains(placement: Placement, options: Options, depth: Depth) -> list[dict[str, Any]]:
    """Return the factors on the initialisation that are not 1, with the matrices that they scale."""
    by_gain: dict[Constant, list[str]] = {}
    for role in ROLES:
        gain: Constant = getattr(placement.gains, role)
        if gain is not ONE:
            by_gain.setdefault(gain, []).append(role)
    return [
        {
            "matrices": roles,
            "cross_attention": placement.gains.cross_attention,
            "values": {side: [gain(each, options) for each in depth.positions(side)] for side in depth.sides},
            "source": source(gain),
        }
        for gain, roles in by_gain.items()
    ]


def option(name: str) -> dict[str, Any]:
    """Return an option's flag, default and help."""
    each = METHOD_OPTIONS[name]
    return {"flag": flag(name), "default": each.default, "help": each.help}


def stock_equivalent(placement: Placement, options: Options, depth: Depth) -> dict[str, str | None]:
    """Return stock fairseq's options for the same equation at this depth, or what keeps stock from it."""
    obstacles = [stock.obstacle(placement, options, depth.positions(side)) for side in depth.sides]
    if reason := next(filter(None, obstacles), None):
        return {"stock_equivalent": None, "stock_obstacle": reason}
    arch = "transformer" if len(depth.sides) == 2 else "roberta" if depth.encoder_layers else "transformer_lm"
    first = placement.at(depth.positions(depth.sides[0])[0], options).self_attention
    flags = [f"--{side}-normalize-before" for side in depth.sides if stock.normalize_before(first)]
    if flags and not placement.final_norm:
        flags.append("--no-decoder-final-norm")
    text = " ".join([f"--arch {arch}", *flags])
    if placement.gains != Gains():
        text += ", the initialisation apart"
    if stock.has_factors(first):
        text += ", once its factors are folded into the neighbouring weights (lnplace export)"
    return {"stock_equivalent": text, "stock_obstacle": None}
