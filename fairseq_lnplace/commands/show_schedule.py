"""``lnplace show schedule``: learning rate against updates, as a table and a picture."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from fairseq.dataclass.utils import eval_str_list

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.files import new_file
from fairseq_lnplace.plugin import lr_schedulers
from fairseq_lnplace.plugin.lr_schedulers.curve import add_schedule_options, curve, schedule_names

__all__ = ["main"]

_PICTURES = ("png", "svg", "pdf")
_ = lr_schedulers  # imported for what it registers


def _whole(text: str) -> int:
    """Return a positive whole number, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, but is {text}")
    return int(text)


def _common() -> argparse.ArgumentParser:
    """Return the options that are the same for every schedule."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        "--lr", type=eval_str_list, help="as fairseq-train takes it; --compare inherits it (default 5e-4)"
    )
    parser.add_argument("--updates", type=_whole, default=20000, help="last update (default 20000)")
    parser.add_argument("--updates-per-epoch", type=_whole, default=1000, help="length of an epoch (default 1000)")
    parser.add_argument(
        "--compare", action="append", default=[], metavar="'NAME OPTIONS'", help="a further schedule; may be repeated"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help=f"write a picture ({', '.join(_PICTURES)})")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


def _rates(schedule: Sequence[str], common: argparse.Namespace) -> list[float]:
    """Return the learning rates of a schedule given as its name and options."""
    parser = argparse.ArgumentParser(
        prog="lnplace show schedule",
        description="Draw the learning rate that a schedule of fairseq or of this package sets before each update. "
        "`lnplace show schedule NAME --help` lists a schedule's own options.",
        epilog="example: lnplace show schedule inverse_sqrt_nowarmup --lr 5e-4 --hold-updates 4000 --updates 20000 "
        "--compare 'inverse_sqrt --warmup-updates 4000' --plot schedule.png",
        parents=[_common()],
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar="NAME", help=f"as --lr-scheduler takes it: {', '.join(schedule_names())}")
    if schedule and not schedule[0].startswith("-"):
        add_schedule_options(parser, schedule[0])
    options = parser.parse_args(schedule)
    options.lr = options.lr or common.lr or [5e-4]
    return curve(options.name, options, common.updates, common.updates_per_epoch)


def _milestones(updates: int) -> list[int]:
    """Return 0, 1, 2, 5, 10, 20, 50 and so on up to ``updates``, which is always the last."""
    steps = (digit * 10**power for power in range(len(str(updates))) for digit in (1, 2, 5))
    return [0, *(step for step in steps if step < updates), updates]


def _plot(path: Path, curves: dict[str, list[float]]) -> None:
    """Draw every curve over the updates; nothing is left behind if that fails."""
    from matplotlib.figure import Figure  # slow to import, and seldom wanted

    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot(xlabel="updates", ylabel="learning rate")
    for behind, (label, rates) in zip(range(len(curves), 0, -1), curves.items(), strict=True):
        axes.plot(rates, label=label, linewidth=2 * behind)  # thicker below, so that curves that coincide all show
    axes.set_ylim(bottom=0)
    axes.ticklabel_format(axis="y", scilimits=(0, 0))
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center")
    with new_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=150)


def main(words: Sequence[str]) -> None:
    """Print the table and draw the picture.

    Raises:
        LnplaceError: no such schedule, options it does not take, or a picture in an unknown format.
    """
    args, schedule = _common().parse_known_args(words)
    if args.plot and args.plot.suffix[1:] not in _PICTURES:
        raise must_be("--plot", f"a file that ends in one of {', '.join(_PICTURES)}", args.plot)
    schedules = [schedule, *(shlex.split(text) for text in args.compare)]
    curves = {shlex.join(words): _rates(words, args) for words in schedules}
    if args.plot:
        _plot(args.plot, curves)

    rows = [{"update": t, **{label: rates[t] for label, rates in curves.items()}} for t in _milestones(args.updates)]
    if args.json:
        print(json.dumps(rows, indent=2))
        return
    for label in curves:
        print(label)
    for row in rows:
        update, *rates = row.values()
        print(f"{update:>8}", *(f"{rate:>10.3e}" for rate in rates))
