"""What the measuring commands share: their options, the models they go through, and what they leave behind."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

__all__ = ["Session", "parser_of", "positive"]

# Xiong et al. 2020, appendix A.1: the model and, per stack, the depths of Figure 3
ARCHITECTURES = ("transformer_postln_iwslt_de_en", "transformer_preln_final_iwslt_de_en")
WIDTH = 120  # columns of a table that goes into a file or a pipe


def positive(text: str) -> int:
    """Return a positive whole number, for argparse."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a positive whole number, but is {text}")
    return int(text)


def parser_of(what: str, description: str, example: str, batch_count: int, tokens: int) -> argparse.ArgumentParser:
    """Return the parser of ``lnplace diagnose WHAT``; options it does not know are left for fairseq-train's."""
    parser = argparse.ArgumentParser(
        prog=f"lnplace diagnose {what}",
        description=f"{description} Options that are not listed here are fairseq-train's, of model, criterion and "
        "task (such as --encoder-embed-dim 64, --init fairseq, --label-smoothing 0), and hold for every --arch.",
        epilog=f"example: {example}",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
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
    add_outputs(parser, what)
    return parser


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

    def __init__(self, what: str, args: argparse.Namespace, extra: Sequence[str] = ()) -> None:
        logging.getLogger("fairseq").setLevel(logging.WARNING)
        self.what, self.args = what, args
        self.extra = [word for word in extra if word != "--"]
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

    def finish(
        self,
        tables: Mapping[str, Sequence[Row]],
        shown: Sequence[Table | str],
        figures: Mapping[str, Figure],
        note: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the tables and figures, and print what is to be shown.

        Args:
            tables: rows by the name of their CSV file.
            shown: what to print, unless the tables are to be printed as JSON.
            figures: by file name.
            note: what else the JSON file is to say.
        """
        from fairseq_lnplace.diagnostics.plots.panels import save  # matplotlib is slow to import

        dest: Path = self.args.dest
        settings = {name: value for name, value in vars(self.args).items() if name not in ("dest", "json")}
        about = {
            "settings": json.loads(json.dumps(settings, default=str)),
            "fairseq_options": self.extra,
            "versions": versions("fairseq", "torch"),
            **(note or {}),
        }
        paths = write(dest, self.what, about, tables)
        for name, figure in figures.items():
            paths += save(figure, dest, name)
        if self.args.json:
            print(as_json(tables))
            return
        for part in shown:
            self.console.print(part)
        self.console.print(f"{', '.join(path.name for path in paths)} are in {dest}", soft_wrap=True)


def described(subject: Subject, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one model with its name, placement, state and seed in front."""
    who = {"label": subject.label, "placement": subject.placement, "state": subject.state, "seed": subject.seed}
    return [{**who, **row} for row in rows]


def check(args: argparse.Namespace) -> None:
    """Check, before any work, what all measurements of models ask for.

    Raises:
        LnplaceError: results cannot be written, or two checkpoints cannot be told apart.
    """
    check_dest(args.dest)
    states = [state_of(path) for path in args.checkpoint]
    if len(set(states)) < len(states):
        raise must_be("--checkpoint", "files that differ in the name of their folder or their own", ", ".join(states))


def check_dest(dest: Path) -> None:
    """Check that results can be written.

    Raises:
        LnplaceError: something else has the folder's name.
    """
    if dest.exists() and not dest.is_dir():
        raise must_be("--dest", "a folder", f"{dest}, which is a file")
