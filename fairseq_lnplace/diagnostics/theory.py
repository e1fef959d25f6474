"""The theory of Xiong et al. 2020 (2002.04745), section 3.3, simulated in its own set-up.

One head with W^Q = W^K = 0 (attention is the mean over the tokens), square matrices with entries N(0, 1/d), no biases,
LayerNorm without gain, Gaussian input. The loss is the cross-entropy of a Gaussian output matrix against random words,
averaged over the tokens. Nothing of the package's models is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, layer_norm

from fairseq_lnplace.diagnostics.tables import Row, over_seeds
from fairseq_lnplace.measure.activation_rows import POST_INNER, outside, pre_bounds

__all__ = ["Setup", "decay_rows", "exponent", "exponent_rows", "lemma_rows", "simulate", "theorem_rows"]

PLACEMENTS = ("postln", "preln_final")
WORDS = 64
EPSILON = 0.1
# of the theorem's bounds, d √(ln d) and d √(ln d / L): the powers of L and of d
BOUND_DEPTH = {"postln": 0.0, "preln_final": -0.5}
BOUND_WIDTH = 1.0


@dataclass(frozen=True)
class Setup:
    """A simulated model and its input.

    Attributes:
        placement: postln, or preln_final.
        depth: the number of layers L.
        width: the number of features d.
        tokens: the length n of the sequence.
        correlation: between any two tokens of the input.
        seed: of everything random.
    """

    placement: str
    depth: int
    width: int
    tokens: int
    correlation: float
    seed: int


@dataclass(frozen=True)
class Simulated:
    """What one simulation gave, by layer from 1.

    Attributes:
        squares: ‖·‖² of every token: of x^{post,5}_l in Post-LN, of x_{l+1} in Pre-LN; L tensors of n numbers.
        gradients: ‖dL/dW^{2,l}‖_F.
    """

    squares: list[Tensor]
    gradients: list[float]


def simulate(setup: Setup) -> Simulated:
    """Run one model forward and backward."""
    draw = torch.Generator().manual_seed(setup.seed)
    d = setup.width

    def gaussian(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    def norm(x: Tensor) -> Tensor:
        return layer_norm(x, [d], eps=1e-12)

    shared, own = math.sqrt(setup.correlation), math.sqrt(1 - setup.correlation)
    x = shared * gaussian(1, d) + own * gaussian(setup.tokens, d)
    post = setup.placement == "postln"
    squares, matrices = [], []
    for _ in range(setup.depth):
        value, first, second = (gaussian(d, d) / math.sqrt(d) for _ in range(3))
        matrices.append(second.requires_grad_())
        attended = x if post else norm(x)
        x = x + (attended @ value).mean(0, keepdim=True)
        x = norm(x) if post else x
        x = x + (x if post else norm(x)).matmul(first).relu() @ second
        squares.append(x.detach().square().sum(-1))
        x = norm(x) if post else x
    logits = (x if post else norm(x)) @ (gaussian(d, WORDS) / math.sqrt(d))
    loss = cross_entropy(logits, torch.randint(WORDS, (setup.tokens,), generator=draw))
    gradients = torch.autograd.grad(loss, matrices)
    return Simulated(squares, [float(gradient.norm()) for gradient in gradients])


def lemma_rows(width: int, depth: int, tokens: int, correlation: float, seeds: int) -> list[Row]:
    """Return what Lemmas 1 to 3 say beside what is measured: ``low`` and ``high`` are the lemma's numbers.

    ``holds`` allows for sampling: 10 % beyond the lemma's numbers.
    """
    draw = torch.Generator().manual_seed(1)
    rows: list[Row] = []
    for sigma in (0.5, 1.0, 2.0):
        drawn = sigma * torch.randn(1000, width, generator=draw)
        square = float(drawn.relu().square().sum(-1).mean()) / width
        half = sigma**2 / 2
        rows.append(
            {"lemma": 1, "what": f"E‖ReLU(X)‖²/d, σ = {sigma:g}", "low": half, "high": half, "measured": square}
        )
    for placement in PLACEMENTS:
        runs = [simulate(Setup(placement, depth, width, tokens, correlation, seed)) for seed in range(1, seeds + 1)]
        for layer in range(1, depth + 1):
            square = float(torch.cat([run.squares[layer - 1] for run in runs]).mean()) / width
            low, high = (POST_INNER, POST_INNER) if placement == "postln" else pre_bounds(layer)
            what = f"E‖x‖²/d, {placement}, layer {layer}"
            rows.append(
                {"lemma": 2, "what": what, "low": low, "high": high, "measured": square, "placement": placement}
            )
            rows[-1]["layer"] = layer
    for sigma in (0.5, 1.0, 2.0):
        x = sigma * torch.randn(width, generator=draw)
        jacobian = torch.func.jacrev(lambda y: layer_norm(y, [width], eps=1e-12))(x)
        norm = float(torch.linalg.matrix_norm(jacobian, 2))
        bound = math.sqrt(width) / float(x.norm())
        rows.append({"lemma": 3, "what": f"‖J_LN(x)‖₂ and √d/‖x‖, σ = {sigma:g}", "low": bound, "high": bound})
        rows[-1]["measured"] = norm
    for row in rows:
        row["holds"] = row["low"] * 0.9 <= row["measured"] <= row["high"] * 1.1
    return rows


def theorem_rows(
    depths: Sequence[int], widths: Sequence[int], tokens: int, correlation: float, seeds: int
) -> list[Row]:
    """Return the gradient of the last layer's W2 beside Theorem 1's bound, without its constant.

    All depths are run at the largest width, all widths at the largest depth, each over the seeds. ``delta`` is the
    share of tokens whose ‖·‖² is further than 0.1 from its mean, relatively; ``gaussian_delta`` is exp(-d ε²/8).
    """
    pairs = sorted({*((depth, max(widths)) for depth in depths), *((max(depths), width) for width in widths)})
    rows: list[Row] = []
    for placement in PLACEMENTS:
        for depth, width in pairs:
            for seed in range(1, seeds + 1):
                run = simulate(Setup(placement, depth, width, tokens, correlation, seed))
                delta = outside(run.squares[-1], EPSILON)
                rows.append(
                    {
                        "placement": placement,
                        "depth": depth,
                        "width": width,
                        "gradient": run.gradients[-1],
                        "delta": delta,
                    }
                )
    rows = over_seeds(rows, ("placement", "depth", "width"), ("gradient", "delta"))
    for row in rows:
        d = row["width"]
        row["bound"] = d * math.sqrt(math.log(d)) * row["depth"] ** BOUND_DEPTH[row["placement"]]
        row["ratio"] = row["gradient"] / row["bound"]
        row["gaussian_delta"] = math.exp(-d * EPSILON**2 / 8)
        row["label"] = row["placement"]
    return rows


def exponent(xs: Iterable[float], ys: Iterable[float]) -> float:
    """Return the p of the least-squares fit of ln y = p ln x + constant."""
    return float(np.polyfit(np.log(list(xs)), np.log(list(ys)), 1)[0])


def exponent_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the fitted powers of depth and width of :func:`theorem_rows`, beside the bounds'.

    ``holds``: a bound from above holds where the gradient does not grow faster, to 0.1.
    """
    fitted = []
    width, depth = max(row["width"] for row in rows), max(row["depth"] for row in rows)
    for placement in PLACEMENTS:
        own = [row for row in rows if row["placement"] == placement]
        for name, fixed, value, bound in (
            ("depth", "width", width, BOUND_DEPTH[placement]),
            ("width", "depth", depth, BOUND_WIDTH),
        ):
            points = [row for row in own if row[fixed] == value]
            power = exponent([row[name] for row in points], [row["gradient"] for row in points])
            fit = {"placement": placement, "power_of": name, "fitted": power, "bound": bound}
            fitted.append({**fit, "holds": power <= bound + 0.1})
    return fitted


def decay_rows(depth: int, width: int, tokens: int, correlation: float, seeds: int) -> list[Row]:
    """Return ‖dL/dW^{2,l}‖_F of every layer beside appendix F's factors on the last one's, as ``predicted``.

    They are (2/3)^((L-l)/2) in Post-LN and 1 in Pre-LN. The simulation does not decay so in Post-LN: the heuristic
    leaves out the Jacobian of the feed-forward, which gives back what the norm takes, (1 + 1/2) * 2/3 = 1. What decays
    is the part of the gradient in which tokens differ, in attention, and here tokens soon resemble each other.
    """
    rows: list[Row] = []
    for placement in PLACEMENTS:
        for seed in range(1, seeds + 1):
            run = simulate(Setup(placement, depth, width, tokens, correlation, seed))
            rows += [
                {"label": placement, "placement": placement, "layer": layer, "gradient": gradient}
                for layer, gradient in enumerate(run.gradients, 1)
            ]
    rows = over_seeds(rows, ("label", "placement", "layer"), ("gradient",))
    last = {row["placement"]: row["gradient"] for row in rows if row["layer"] == depth}
    for row in rows:
        decay = (2 / 3) ** ((depth - row["layer"]) / 2) if row["placement"] == "postln" else 1.0
        row["predicted"] = last[row["placement"]] * decay
    return rows
