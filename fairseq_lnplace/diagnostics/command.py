"""What the measuring commands share: their options, the models they go through, and what they leave behind.

A command is a :class:`Measurement`, which says what is its own.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from fairseq import utils
from rich.console import Console
from rich.progress import track

from fairseq_lnplace.diagnostics.subjects import Subject, from_architecture, from_checkpoint, settle, state_of
from fairseq_lnplace.diagnostics.tables import Row, as_json, write
from fairseq_lnplace.diagnostics.text import Text, batches, read_text, synthetic_text
from fairseq_lnplace.errors import must_be
from fairseq_lnplace.versions import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

__all__ = ["Measurement", "Results", "Session", "number", "positive"]

# Xiong et al. 2020, appendix A.1: the model and, per stack, the depths of Figure 3
ARCHITECTURES = ("transformer_postln_iwslt_de_en", "transformer_preln_final_iwslt_de_en")
OF_MODELS = (
    "Options that are not listed here are fairseq-train's, of model, criterion and task (such as --encoder-embed-dim "
    "64, --init fairseq, --label-smoothing 0), and hold for every --arch."
)
WIDTH = 120  # columns of a table that goes into a file or a pipe


def positive(text: str) -> int:
    """Return a positive whole number, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, but is {text}")
    return int(text)


def number(holds: Callable[[float], bool], expected: str) -> Callable[[str], float]:
    """Return what reads a number for which ``holds`` is true, and which is ``expected``, for argparse."""

    def read(text: str) -> float:
        try:
            if holds(value := float(text)):
                return value
        except ValueError:
            pass
        raise argparse.ArgumentTypeError(f"must be {expected}, but is {text}")

    return read


class Results(NamedTuple):
    """What a measuring command found.

    Attributes:
        tables: rows by the name of their CSV file.
        shown: what to print, unless the tables are to be printed as JSON.
        figures: by file name.
    """

    tables: Mapping[str, Sequence[Row]]
    shown: Sequence[Table | str]
    figures: Mapping[str, Figure]


@dataclass(frozen=True)
class Measurement:
    """What is one measuring command's own.

    Attributes:
        name: what follows ``lnplace diagnose``; the files bear it, too.
        description: what is measured.
        example: one command line.
        results: measures.
        add_options: adds options of its own to the parser.
        check: raises, before any work, where options do not go together.
        batches: how many are averaged over, and the target tokens of each, where the user says nothing; None where it
            goes through no models.
    """

    name: str
    description: str
    example: str
    results: Callable[[Session], Results]
    add_options: Callable[[argparse.ArgumentParser], object]
    check: Callable[[argparse.Namespace], object] = lambda args: None
    batches: tuple[int, int] | None = None

    def parse(self, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Return the options, and those that are left for fairseq-train where models are measured."""
        parser = argparse.ArgumentParser(
            prog=f"lnplace diagnose {self.name}",
            description=f"{self.description} {OF_MODELS}" if self.batches else self.description,
            epilog=f"example: {self.example}",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
            allow_abbrev=False,
        )
        if not self.batches:
            self.add_options(parser)
            add_outputs(parser, self.name)
            return parser.parse_args(words), []
        add_models(parser, *self.batches)
        add_outputs(parser, self.name)
        self.add_options(parser)
        args, extra = parser.parse_known_args(words)
        return args, [word for word in extra if word != "--"]

    def run(self, words: Sequence[str]) -> None:
        """Measure, print the tables, write and draw.

        Raises:
            LnplaceError: an option, an architecture, a checkpoint or the data is wrong.
        """
        args, extra = self.parse(words)
        check_dest(args.dest)
        if self.batches:
            check_states(args.checkpoint)
        self.check(args)
        session = Session(self.name, args, extra)
        session.finish(self.results(session))


def add_models(parser: argparse.ArgumentParser, batch_count: int, tokens: int) -> None:
    """Add which models are measured, and on what."""
    parser.add_argument("--arch", nargs="+", metavar="ARCH", help="measured at initialisation (default: the paper's)")
    parser.add_argument("--checkpoint", nargs="+", type=Path, default=[], metavar="FILE", help="measured as trained")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder that `lnplace prepare` made; else random text")
    parser.add_argument("--subset", default="train", metavar="SPLIT", help="of --data")
    parser.add_argument("--batches", type=positive, default=batch_count, metavar="N", help="to average over")
    parser.add_argument("--batch-tokens", type=positive, default=tokens, metavar="N", help="target tokens of each")
    parser.add_argument(
        "--seeds", type=positive, default=1, metavar="N", help="initialisations, each on its own batches"
    )
    parser.add_argument("--cpu", action="store_true", help="even if there is a GPU")


def add_outputs(parser: argparse.ArgumentParser, what: str) -> None:
    """Add where the results go."""
    dest = Path("runs") / "diagnose" / what
    parser.add_argument("--dest", type=Path, default=dest, metavar="DIR", help="for tables and figures")
    parser.add_argument("--json", action="store_true", help="print the tables as JSON")


class Session:
    """One call of a measuring command.

    Args:
        what: the command's name, which the files bear.
        args: its own options.
        extra: fairseq-train's.
    """

    def __init__(self, what: str, args: argparse.Namespace, extra: Sequence[str]) -> None:
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        self.what, self.args, self.extra = what, args, extra
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH

    def text(self) -> Text:
        """Return what is measured on."""
        return read_text(self.args.data, self.args.subset) if self.args.data else synthetic_text()

    def subjects(self, layers: int | None = None) -> Iterator[tuple[Subject, list[dict[str, Any]]]]:
        """Yield every model, ready to be measured, with its batches.

        Args:
            layers: measure the architectures alone, with so many layers in every stack.

        Raises:
            LnplaceError: there are options for architectures and none is measured.
        """
        args = self.args
        archs = dict.fromkeys(args.arch or ([] if args.checkpoint else ARCHITECTURES))
        if self.extra and not archs:
            raise must_be(self.extra[0], "left out without --arch, as checkpoints have options of their own", "given")
        text = self.text()
        initial = [(arch, seed) for arch in archs for seed in range(1, args.seeds + 1)]
        trained = [] if layers else [(path, 1) for path in args.checkpoint]
        for model, seed in self.tracked([*initial, *trained]):
            if isinstance(model, Path):
                subject = from_checkpoint(model, text)
            else:
                subject = from_architecture(model, self.extra, text, seed, layers)
            samples = list(batches(text, subject.kind, args.batches, args.batch_tokens, seed))
            if torch.cuda.is_available() and not args.cpu:
                subject.model.cuda()
                samples = [utils.move_to_cuda(sample) for sample in samples]
            settle(subject, samples)
            yield subject, samples

    def tracked(self, items: Sequence[Any]) -> Iterator[Any]:
        """Yield the items under a progress bar on stderr."""
        console = Console(file=sys.stderr)
        return iter(
            track(items, f"measuring {self.what}", console=console, transient=True, disable=not console.is_terminal)
        )

    def measured(
        self, measure: Callable[[Subject, list[dict[str, Any]]], Mapping[str, Sequence[Row]]], layers: int | None = None
    ) -> dict[str, list[Row]]:
        """Return the tables of all models, with each one's name, placement, state and seed in front of its rows.

        Args:
            measure: returns the tables of a model on its batches.
            layers: as of :meth:`subjects`.

        Raises:
            LnplaceError: as of :meth:`subjects`.
        """
        tables: dict[str, list[Row]] = {}
        for subject, samples in self.subjects(layers):
            who = {"label": subject.label, "placement": subject.placement, "state": subject.state, "seed": subject.seed}
            for name, rows in measure(subject, samples).items():
                tables.setdefault(name, []).extend({**who, **row} for row in rows)
        return tables

    def title(self, what: str, over: str = "") -> str:
        """Return a heading that says what was measured on which text, ``over`` its batches."""
        args = self.args
        return f"{what} on {self.text().name}: {over}{args.batches} batches of {args.batch_tokens} tokens"

    def finish(self, results: Results) -> None:
        """Write the tables and figures, and print what is to be shown."""
        from fairseq_lnplace.diagnostics.plots.panels import save  # matplotlib is slow to import

        dest: Path = self.args.dest
        settings = {name: value for name, value in vars(self.args).items() if name not in ("dest", "json")}
        about = {
            "settings": json.loads(json.dumps(settings, default=str)),
            "fairseq_options": self.extra,
            "versions": versions("fairseq", "torch"),
        }
        paths = write(dest, self.what, about, results.tables)
        for name, figure in results.figures.items():
            paths += save(figure, dest, name)
        if self.args.json:
            print(as_json(results.tables))
            return
        for part in results.shown:
            self.console.print(part)
        self.console.print(f"{', '.join(path.name for path in paths)} are in {dest}", soft_wrap=True)


def check_states(checkpoints: Sequence[Path]) -> None:
    """Check that checkpoints can be told apart.

    Raises:
        LnplaceError: two have one name.
    """
    states = [state_of(path) for path in checkpoints]
    if len(set(states)) < len(states):
        raise must_be("--checkpoint", "files that differ in the name of their folder or their own", ", ".join(states))


def check_dest(dest: Path) -> None:
    """Check that results can be written.

    Raises:
        LnplaceError: something else has the folder's name.
    """
    if dest.exists() and not dest.is_dir():
        raise must_be("--dest", "a folder", f"{dest}, which is a file")
