"""Makes the checkpoints of this version that every later one must read, with the logits that they give.

    python tests/stored/make.py

It writes `tests/stored/<version>/<kind>_<placement>.pt`, a checkpoint as `fairseq-train` writes it, and beside it
`<kind>_<placement>.logits.pt`: plain tensors, the model's inputs and targets and its logits in evaluation. A version's
folder is never written twice: its files show what that version did, and code made since cannot tell.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from fairseq.logging import metrics

sys.path.append(str(Path(__file__).resolve().parents[1]))  # where pytest finds the helpers, too
from helpers import KINDS, fill_in, sample_of, tiny_trainer

from fairseq_lnplace import __version__

FOLDER = Path(__file__).resolve().parent
# Stock's own two equations, and one placement for each thing of its own that a checkpoint may hold: a measured profile,
# scores handed from layer to layer, a second stream and its norm, and weights of all earlier outputs.
PLACEMENTS = ("postln", "preln_final", "admin", "realformer", "resi_dual", "dlcl")
# Those that have had other forms since 0.1.0, of translation alone. (0.1.0's were made after it, by its own code.)
OF_MANY_FORMS = ("normformer", "periln", "hybridnorm", "keel")
UPDATES = 2  # the first of them measures Admin's profile


def logits_path(checkpoint: Path) -> Path:
    """Return where the logits of a stored checkpoint are."""
    return checkpoint.with_suffix(".logits.pt")


def make(path: Path, kind: str, placement: str) -> None:
    """Train a tiny model and write its checkpoint to ``path``, and its logits beside it."""
    metrics.reset()  # they are global, and a checkpoint holds them: here those of this training alone
    trainer = tiny_trainer(Path("checkpoints"), placement, kind)  # fairseq's default, since checkpoints hold it
    # From its usual start, BERT's logits would hardly show what its attention does after so few updates.
    fill_in(trainer.model).float()
    for name, buffer in trainer.model.named_buffers():
        if name.endswith(("profile.done", "_float_tensor")):
            buffer.zero_()  # so that Admin measures; of the other, fairseq leaves what it finds in memory
    for seed in range(UPDATES):
        trainer.train_step([sample_of(kind, seed=seed)])
    trainer.consolidate_optimizer()
    # As of fairseq's own iterator within an epoch: at its end, meters would not be read again.
    iterator = {"version": 2, "epoch": 1, "iterations_in_epoch": UPDATES, "shuffle": True, "len": 2 * UPDATES}
    trainer.save_checkpoint(str(path), {"train_iterator": iterator, "val_loss": None})
    torch.save(with_logits(trainer.model, sample_of(kind, seed=UPDATES)), logits_path(path))


@torch.no_grad()
def with_logits(model: Any, sample: dict[str, Any]) -> dict[str, Any]:
    """Return what is stored of a batch: the model's inputs by name, the targets, and the logits."""
    net_input = sample["net_input"]
    return {"net_input": net_input, "target": sample["target"], "logits": model.eval()(**net_input)[0]}


def main() -> None:
    """Make all checkpoints of this version."""
    torch.set_num_threads(1)
    folder = FOLDER / __version__
    if folder.exists():
        sys.exit(f"{folder} is there already, and a version's checkpoints are made once")
    folder.mkdir()
    for kind in KINDS:
        for placement in PLACEMENTS + (OF_MANY_FORMS if kind == "translation" else ()):
            make(folder / f"{kind}_{placement}.pt", kind, placement)
    files = [*folder.iterdir()]
    print(f"{len(files)} files of {sum(file.stat().st_size for file in files):,} bytes in {folder}")


if __name__ == "__main__":
    main()
