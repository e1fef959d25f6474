"""What a training runs on: nothing here changes the tokens of an update, and so what is learned."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairseq_lnplace.errors import must_be

__all__ = ["Devices", "Environment", "slots", "visible_gpus"]

Environment = Mapping[str, str]


@dataclass(frozen=True)
class Devices:
    """The devices of one training.

    Attributes:
        gpus: how many; 0 for the CPU, None to leave the devices and batches to the cell's own options.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        max_tokens: the most that one device takes at once.
        torchrun: start one process for each GPU by torchrun, not by fairseq itself.
    """

    gpus: int | None = None
    precision: str = "fp32"
    max_tokens: int = 4096
    torchrun: bool = False

    def __post_init__(self) -> None:
        if self.gpus is not None and self.gpus < 0:
            raise must_be("--gpus", "0 or more", self.gpus)
        if self.max_tokens < 1:
            raise must_be("--max-tokens", "at least 1", self.max_tokens)
        if not self.gpus and self.precision == "fp16":
            raise must_be("--precision", "fp32 or bf16 on a CPU", self.precision)
        if self.torchrun and not self.gpus:
            raise must_be("--gpus", "at least 1 with --torchrun", self.gpus)

    @property
    def settings(self) -> tuple[str, ...]:
        """What does change the numbers: the precision, where it is not fairseq's own."""
        return () if self.precision == "fp32" else (self.precision,)

    @property
    def launcher(self) -> tuple[str, ...]:
        """The command that starts fairseq-train."""
        if not self.torchrun:
            return ("fairseq-train",)
        return ("torchrun", "--standalone", "--nproc-per-node", str(self.gpus), "-m", "fairseq_cli.train")

    def options(self, tokens_per_update: int | None) -> tuple[str, ...]:
        """Return fairseq-train's options for the devices and for so many tokens in an update.

        The tokens are shared out over the GPUs, and over as few batches (``--update-freq``) as they fit into.
        """
        if self.gpus is None:
            return ()
        where = ("--distributed-world-size", str(self.gpus)) if self.gpus else ("--cpu",)
        precision = self.settings and (f"--{self.precision}",)
        if tokens_per_update is None:
            return (*where, *precision)
        devices = max(self.gpus, 1)
        batches = -(-tokens_per_update // (devices * self.max_tokens))
        tokens = tokens_per_update // (devices * batches)
        return (*where, *precision, "--max-tokens", str(tokens), "--update-freq", str(batches))


def visible_gpus() -> list[str]:
    """Return the names of this machine's GPUs, as CUDA_VISIBLE_DEVICES has them."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def slots(jobs: int, threads: int, gpus: int | None = None, names: Sequence[str] = ()) -> list[Environment]:
    """Return the environments of ``jobs`` trainings side by side, each with its threads and GPUs.

    Raises:
        LnplaceError: there are too few GPUs.
    """
    count = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
    if not gpus:
        return [count] * jobs
    if jobs * gpus > len(names):
        raise must_be("--jobs times --gpus", f"at most the {len(names)} GPUs of this machine", jobs * gpus)
    groups = (names[job * gpus : (job + 1) * gpus] for job in range(jobs))
    return [{**count, "CUDA_VISIBLE_DEVICES": ",".join(group)} for group in groups]
