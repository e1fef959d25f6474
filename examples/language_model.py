"""Trains a small language model on a text file with three placements of normalisation, and draws their gradients.

It reads bytes, so that any text will do; 300 updates of the three take about a minute on two cores.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from matplotlib import pyplot
from torch import Tensor

from fairseq_lnplace import measure, nn
from fairseq_lnplace.schedules import InverseSqrtNoWarmup

PLACEMENTS = ("postln", "preln_final", "deepnorm")


def loss(model: torch.nn.Module, batch: Tensor) -> Tensor:
    """Return the cross-entropy of each byte after those before it, in nats; ``batch`` is B x (T + 1)."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def drawn(text: Tensor, rows: int = 16, length: int = 64) -> Tensor:
    """Return a batch of random pieces of the text, B x (T + 1)."""
    return text[torch.randint(len(text) - length, (rows, 1)) + torch.arange(length + 1)]


def train(placement: str, text: Tensor, updates: int) -> torch.nn.Module:
    """Return a model after so many updates, without warm-up."""
    torch.manual_seed(1)
    model = nn.LanguageModel(256, d_model=64, nhead=4, num_layers=4, dim_feedforward=256, placement=placement)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    schedule = InverseSqrtNoWarmup(optimizer, hold_updates=100)
    nn.count_updates(model, optimizer)  # for placements that change as they train, such as branchnorm
    for update in range(1, updates + 1):
        optimizer.zero_grad()
        value = loss(model, drawn(text))
        value.backward()
        optimizer.step()
        schedule.step()
        if update % 50 == 0:
            print(f"{placement:12} update {update:4}  loss {value.item():.2f}")
    return model


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("file", type=Path)
parser.add_argument("--updates", type=int, default=300)
parser.add_argument("--plot", type=Path, default=Path("gradients.png"))
args = parser.parse_args()
text = torch.tensor(list(args.file.read_bytes()))
for placement in PLACEMENTS:
    rows = measure.gradients(train(placement, text, args.updates), [drawn(text) for _ in range(8)], loss)
    matrices = rows[rows.matrix == "fc2"]  # the feed-forwards' second, as in Xiong et al. 2020, Figure 3
    pyplot.plot(matrices.layer, matrices.norm_of_mean, marker="o", label=placement)
pyplot.legend()
pyplot.gca().set(xlabel="layer", ylabel="norm of the gradient of fc2", yscale="log", xticks=matrices.layer)
pyplot.savefig(args.plot, bbox_inches="tight")
