"""What the papers claim, by experiment, each claim with who judges it on the runs at hand."""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_lnplace.experiments.comparisons import alike, no_worse, reaches, worse
from fairseq_lnplace.experiments.gradient_trends import calmed, falls, flat, rising
from fairseq_lnplace.experiments.verdicts import Judge

__all__ = ["CLAIMS", "Claim"]


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, and who judges it."""

    text: str
    source: str
    judge: Judge


XIONG = "Xiong et al. 2020"
ADAM_POST = {"optimiser": "adam", "placement": "postln"}
ADAM_PRE = {"optimiser": "adam", "placement": "preln"}
SGD_POST = {"optimiser": "sgd", "placement": "postln"}
BAD = 5.0  # margins (0.5 bits) for a training that comes to nothing

CLAIMS: dict[str, tuple[Claim, ...]] = {
    "warmup": (
        Claim(
            "Post-LN needs warm-up with Adam",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "none"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "… also where the rate without warm-up falls as 1/√t",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "none-decaying"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "An eighth of the warm-up (500 updates of 4,000) is not enough",
            f"{XIONG}, section 3.2",
            worse({**ADAM_POST, "warmup": "short"}, {**ADAM_POST, "warmup": "long"}),
        ),
        Claim(
            "Post-LN needs warm-up with SGD",
            f"{XIONG}, section 3.2",
            worse({**SGD_POST, "warmup": "none"}, {**SGD_POST, "warmup": "long"}),
        ),
        Claim(
            "Pre-LN trains as well without warm-up as with it",
            f"{XIONG}, section 4",
            no_worse({**ADAM_PRE, "warmup": "none"}, {**ADAM_PRE, "warmup": "long"}),
        ),
    ),
    "iwslt": (
        Claim(
            "Pre-LN's epoch 9 is as good as Post-LN's epoch 15",
            f"{XIONG}, section 4",
            reaches({"optimiser": "adam", "placement": "preln"}, {"optimiser": "adam", "placement": "postln"}, 0.6),
        ),
        Claim(
            "RAdam trains Post-LN without warm-up",
            f"{XIONG}, section 4",
            no_worse(
                {"optimiser": "radam", "placement": "postln"}, {"optimiser": "adam", "placement": "postln"}, margin=2
            ),
        ),
        Claim(
            "For Pre-LN there is little between RAdam and Adam",
            f"{XIONG}, section 4",
            alike({"optimiser": "radam", "placement": "preln"}, {"optimiser": "adam", "placement": "preln"}),
        ),
    ),
    "wmt": (
        Claim(
            "Pre-LN without warm-up converges faster than Post-LN with it",
            f"{XIONG}, section 4",
            reaches({"placement": "preln"}, {"placement": "postln"}, 0.9),
        ),
    ),
    "gradients": (
        Claim(
            "At initialisation Post-LN's gradients grow towards the output",
            f"{XIONG}, Figure 3(b): 0.13 … 1.66",
            rising,
        ),
        Claim("Pre-LN's stay about the same in all layers", f"{XIONG}, Figure 3(b): 0.56 … 0.29", flat),
        Claim("After warm-up Post-LN's are small", f"{XIONG}, Figure 3(b): about 0.015", calmed),
    ),
    "depth": (
        Claim(
            "In Post-LN the last layer's gradient does not depend on the depth",
            f"{XIONG}, Figure 3(c, d), Theorem 1",
            falls("postln", -0.15, 0.15),
        ),
        Claim(
            "In Pre-LN it falls as 1/√L",
            f"{XIONG}, Figure 3(c, d), Theorem 1",
            falls("preln_final", -0.75, -0.25),
        ),
    ),
    "deep": (
        Claim(
            "Post-LN fails at 12+12 layers, where Pre-LN trains",
            "Xie et al. 2023, Table 3",
            worse(
                {"placement": "postln", "layers": "l12", "warmup": "long"},
                {"placement": "preln_final", "layers": "l12", "warmup": "long"},
                BAD,
            ),
        ),
        Claim(
            "Without warm-up Post-LN fails",
            "Xie et al. 2023, Table 3",
            worse({"placement": "postln", "warmup": "none"}, {"placement": "preln_final", "warmup": "none"}, BAD),
        ),
        *(
            Claim(
                f"At 12+12 layers {title} beats Pre-LN",
                source,
                worse({"placement": "preln_final", "layers": "l12"}, {"placement": placement, "layers": "l12"}, 0.2),
            )
            for placement, title, source in (
                ("resi_dual", "ResiDual", "Xie et al. 2023, Table 3"),
                ("admin", "Admin", "Xie et al. 2023, Table 3"),
                ("deepnorm", "DeepNorm", "Xie et al. 2023, Table 3"),
                ("b2t", "B2T", "Takase et al. 2023, at 18+18 layers on WMT"),
            )
        ),
        Claim(
            "ResiDual needs no warm-up",
            "Xie et al. 2023, Table 3",
            no_worse({"placement": "resi_dual", "warmup": "none"}, {"placement": "resi_dual", "warmup": "long"}),
        ),
    ),
    "bert": (
        Claim(
            "Pre-LN without warm-up comes to Post-LN's loss in three quarters of the updates",
            f"{XIONG}, Figure 5(a)",
            reaches({"pretraining": "preln"}, {"pretraining": "postln"}, 0.75),
        ),
        Claim(
            "At Pre-LN's rate Post-LN fails in spite of warm-up",
            f"{XIONG}, section 4",
            worse({"pretraining": "postln-high"}, {"pretraining": "postln"}, BAD),
        ),
    ),
    "finetune": (
        Claim(
            "Pre-LN, pre-trained without warm-up, fine-tunes as well as Post-LN",
            f"{XIONG}, Figures 5(b) and 5(c)",
            no_worse({"pretrained": "preln"}, {"pretrained": "postln"}),
        ),
    ),
    "transfer": (
        Claim(
            "Pre-trained alike, the two come to about the same loss",
            "Su 2022, article 9009",
            alike({"pretraining": "preln-warmup"}, {"pretraining": "postln"}),
        ),
        Claim(
            "… and fine-tuned, Post-LN is the better one",
            "Su 2022, article 9009",
            worse({"pretrained": "preln-warmup"}, {"pretrained": "postln"}),
        ),
    ),
}
