"""What a benchmark is asked to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from fairseq_lnplace.bench.data import made_up
from fairseq_lnplace.bench.sides import Side, sides_of
from fairseq_lnplace.bench.timing import Clock
from fairseq_lnplace.errors import must_be

__all__ = ["Setting"]


@dataclass(frozen=True)
class Setting:
    """The options that all benchmarks share.

    Attributes:
        archs: our architectures.
        against: the baseline: "stock" or one of ours.
        data: a prepared folder; None makes one up.
        max_tokens: the pieces in a batch, with padding.
        batches: the batches of a round.
        rounds: how often each side works through them.
        threads: the CPU threads of torch.
        cpu: whether to use no GPU.
        compiled: whether our sides run under --compile, too.
        extra: further options of fairseq-train for every side.
    """

    archs: tuple[str, ...]
    against: str = "stock"
    data: Path | None = None
    max_tokens: int = 4096
    batches: int = 3
    rounds: int = 5
    threads: int = 1
    cpu: bool = False
    compiled: bool = False
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("max_tokens", "batches", "rounds", "threads"):
            if getattr(self, name) < 1:
                raise must_be(f"--{name.replace('_', '-')}", "at least 1", getattr(self, name))
        if self.data is not None and not any(self.data.glob("*.*-*.*.idx")):
            raise must_be("--data", "a folder that `lnplace prepare` made", self.data)

    @property
    def clock(self) -> Clock:
        """The clock of the device that is measured."""
        cuda = torch.cuda.is_available() and not self.cpu
        return Clock(torch.device("cuda" if cuda else "cpu"), self.threads)

    @contextmanager
    def sides(self) -> Iterator[list[Side]]:
        """Give the sides, the baseline first; data that were made up are gone afterwards."""
        torch.set_num_threads(self.threads)
        with TemporaryDirectory() as folder:
            extra = (*self.extra, *("--cpu",) * self.cpu)
            yield sides_of(self.archs, self.against, self.data or made_up(Path(folder)), extra, self.compiled)
