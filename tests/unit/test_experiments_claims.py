"""Verdicts on runs made up for the purpose."""

from pathlib import Path
from typing import Any

import pytest
from made_up_runs import outcome

from fairseq_lnplace.experiments.claims import CLAIMS
from fairseq_lnplace.experiments.comparisons import alike, no_worse, reaches, worse
from fairseq_lnplace.experiments.gradient_trends import falls
from fairseq_lnplace.experiments.grid import read_grid
from fairseq_lnplace.experiments.outcomes import Outcome, Results
from fairseq_lnplace.experiments.verdicts import Verdict

ONE, OTHER = {"w": "none"}, {"w": "long"}


def judged(judge: Any, one: list[Outcome], other: list[Outcome]) -> Verdict:
    verdict: Verdict = judge(Results([*one, *other]))
    return verdict


@pytest.mark.parametrize(
    ("one", "other", "verdicts"),
    [  # of: worse, no worse, alike
        ([8.0], [5.0], ("confirmed", "contradicted", "contradicted")),
        ([5.0], [8.0], ("contradicted", "confirmed", "contradicted")),
        ([5.0], [5.05], ("cannot tell", "confirmed", "confirmed")),
        ([5.0, 5.3], [5.1, 5.2], ("cannot tell", "confirmed", "confirmed")),
        ([5.0, 5.8], [5.1, 5.2], ("cannot tell",) * 3),  # seeds that overlap, means that do not
        ([5.5, 5.8], [5.1, 5.2], ("confirmed", "contradicted", "contradicted")),
    ],
)
def test_losses_are_compared_over_seeds(one: list[float], other: list[float], verdicts: tuple[str, ...]) -> None:
    ones = [outcome(ONE, [9.0, loss, 9.5]) for loss in one]
    others = [outcome(OTHER, [loss]) for loss in other]
    found = tuple(judged(judge(ONE, OTHER), ones, others).verdict for judge in (worse, no_worse, alike))
    assert found == verdicts


def test_every_setting_they_share_has_to_agree() -> None:
    def runs(low: float, high: float) -> list[Outcome]:
        return [outcome({**ONE, "lr": "low"}, [low]), outcome({**ONE, "lr": "high"}, [high])]

    others = [outcome({**OTHER, "lr": lr}, [5.0]) for lr in ("low", "high")]
    assert judged(worse(ONE, OTHER), runs(6, 6), others).verdict == "confirmed"
    mixed = judged(worse(ONE, OTHER), runs(5, 6), others)
    assert mixed.verdict == "cannot tell"
    assert mixed.evidence == "loss 5.00 against 5.00 (lr low); loss 6.00 against 5.00 (lr high)"
    alone = judged(worse(ONE, OTHER), runs(6, 6), [outcome({**OTHER, "lr": "medium"}, [5.0])])
    assert alone == Verdict("cannot tell", "the cells it takes are not there")


def test_bleu_and_accuracy_come_before_the_loss() -> None:
    ones, others = [outcome(ONE, [5.0], bleu=3.0)], [outcome(OTHER, [6.0], bleu=9.0)]
    assert judged(worse(ONE, OTHER), ones, others) == Verdict("confirmed", "BLEU 3.0 against 9.0")
    ones, others = [outcome(ONE, [5.0], accuracy=60.0)], [outcome(OTHER, [6.0], accuracy=70.0)]
    assert judged(worse(ONE, OTHER), ones, others) == Verdict("confirmed", "accuracy 60.0 % against 70.0 %")


def test_a_diverged_training_is_worse_and_an_unfinished_one_does_not_count() -> None:
    ones, others = [outcome(ONE, [4.0], state="diverged")], [outcome(OTHER, [6.0], bleu=9.0)]
    assert judged(worse(ONE, OTHER), ones, others).verdict == "confirmed"
    ones = [outcome(ONE, [8.0], state="interrupted")]
    assert judged(worse(ONE, OTHER), ones, others).verdict == "cannot tell"


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [([6, 4.9, 4], "confirmed"), ([6, 5.5, 4], "cannot tell"), ([6, 5.5, 5.2, 5.1], "contradicted")],
)
def test_how_soon_a_loss_is_reached(losses: list[float], verdict: str) -> None:
    others = [outcome(OTHER, [7.0, 6.0, 5.0])]
    assert judged(reaches(ONE, OTHER, 0.7), [outcome(ONE, losses)], others).verdict == verdict


def gradients(**placements: list[float]) -> Results:
    """Norms of W² by layer, "_after" in a name standing for a checkpoint, and by depth."""
    rows, depths = [], []
    for name, norms in placements.items():
        state = "runs/x" if name.endswith("_after") else "initialisation"
        who = {"placement": name.removesuffix("_after"), "state": state}
        for layer, norm in enumerate(norms, 1):
            place = {"side": "decoder", "layer": layer, "matrix": "fc2", "norm_of_mean": norm}
            rows += [{**who, **place}, {**who, **place, "side": "encoder", "norm_of_mean": 99.0}]
            depths.append({**who, "depth": 2 * layer, "norm_of_mean": norm})
    return Results([], {"gradients": {"gradients": rows, "depths": depths}})


def test_the_papers_own_gradients_confirm_its_claims() -> None:
    figure = gradients(  # 3(b)
        postln=[0.13, 0.20, 0.37, 0.58, 1.10, 1.66],
        preln_final=[0.56, 0.43, 0.41, 0.37, 0.31, 0.29],
        postln_after=[0.015, 0.015, 0.015, 0.017, 0.013, 0.014],
    )
    assert [claim.judge(figure).verdict for claim in CLAIMS["gradients"]] == ["confirmed"] * 3
    upside_down = gradients(postln=[1.66, 1.1, 0.5], preln_final=[0.1, 0.5, 0.9], postln_after=[0.1, 0.1, 0.4])
    assert [claim.judge(upside_down).verdict for claim in CLAIMS["gradients"]] == ["contradicted"] * 3
    assert [claim.judge(Results([])).verdict for claim in CLAIMS["gradients"]] == ["cannot tell"] * 3


def test_the_power_of_the_depth() -> None:
    norms = gradients(postln=[1.6] * 4, preln_final=[depth**-0.5 for depth in (2, 4, 6, 8)])
    assert [claim.judge(norms).verdict for claim in CLAIMS["depth"]] == ["confirmed"] * 2
    assert falls("preln_final", -0.4, 0)(norms).verdict == "contradicted"


def test_every_claim_finds_its_cells() -> None:
    """At full scale each claim on trainings compares something."""
    folder = Path(read_grid.__code__.co_filename).parent
    for name in CLAIMS.keys() - {"gradients", "depth"}:
        cells = read_grid(folder / f"{name}.yaml", "full").cells
        results = Results([outcome(dict(cell.levels), [5.0]) for cell in cells])
        for claim in CLAIMS[name]:
            assert "not there" not in claim.judge(results).evidence, claim.text
