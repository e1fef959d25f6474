"""`lnplace diagnose theory`: the simulation against numpy and finite differences, and against the paper's numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_lnplace.cli import main
from fairseq_lnplace.diagnostics.theory import (
    WORDS,
    Setup,
    decay_rows,
    exponent,
    exponent_rows,
    lemma_rows,
    simulate,
    theorem_rows,
)


def normed(x: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True))


@pytest.mark.parametrize("placement", ["postln", "preln_final"])
def test_one_layer_equals_numpy(placement: str) -> None:
    setup = Setup(placement, depth=1, width=5, tokens=3, correlation=0.25, seed=7)
    draw = torch.Generator().manual_seed(7)
    shared, own, value, first, second, output = (
        torch.randn(*shape, generator=draw).double().numpy()
        for shape in ((1, 5), (3, 5), (5, 5), (5, 5), (5, 5), (5, WORDS))
    )
    words = torch.randint(WORDS, (3,), generator=draw).numpy()
    root = np.sqrt(5)
    x0 = np.sqrt(0.25) * shared + np.sqrt(0.75) * own

    def run(w2: Any) -> tuple[float, Any]:
        if placement == "postln":
            x = normed(x0 + (x0 @ value / root).mean(0))
            inner = x + np.maximum(x @ first / root, 0) @ w2
        else:
            x = x0 + (normed(x0) @ value / root).mean(0)
            inner = x + np.maximum(normed(x) @ first / root, 0) @ w2
        logits = normed(inner) @ output / root
        return float(np.mean(np.log(np.exp(logits).sum(-1)) - logits[range(3), words])), (inner**2).sum(-1)

    gradient = np.zeros((5, 5))
    for i, j in np.ndindex(5, 5):
        step = np.zeros((5, 5))
        step[i, j] = 1e-5
        gradient[i, j] = (run(second / root + step)[0] - run(second / root - step)[0]) / 2e-5
    found = simulate(setup)
    assert found.gradients == [pytest.approx(np.linalg.norm(gradient), rel=1e-4)]
    np.testing.assert_allclose(found.squares[0].numpy(), run(second / root)[1], rtol=1e-5)


@pytest.mark.parametrize(("correlation", "expected"), [(0.0, 15.1), (0.5, 18.9), (1.0, 21.5)])
def test_pre_ln_grows_as_the_check_with_512_features_did(correlation: float, expected: float) -> None:
    rows = lemma_rows(128, 14, 64, correlation, seeds=8)
    last = next(row for row in rows if row["lemma"] == 2 and row["placement"] == "preln_final" and row["layer"] == 14)
    assert (last["low"], last["high"]) == (8, 22)
    assert last["measured"] == pytest.approx(expected, rel=0.12)


def test_lemmas_hold() -> None:
    rows = lemma_rows(128, 6, 16, 0.0, seeds=4)
    assert {row["lemma"] for row in rows} == {1, 2, 3}
    assert all(row["holds"] for row in rows)
    post = [row["measured"] for row in rows if row.get("placement") == "postln"]
    assert len(post) == 6
    assert sum(post) / 6 == pytest.approx(1.5, abs=0.1)
    assert [row["low"] for row in rows if row["lemma"] == 1] == [0.125, 0.5, 2.0]


def test_theorem_exponents() -> None:
    rows = theorem_rows([4, 8, 16, 32], [16, 32, 64], 16, 0.0, seeds=4)
    fitted = {(row["placement"], row["power_of"]): row for row in exponent_rows(rows)}
    assert fitted["postln", "depth"]["fitted"] == pytest.approx(0, abs=0.12)
    assert fitted["preln_final", "depth"]["fitted"] == pytest.approx(-0.5, abs=0.12)
    assert all(row["holds"] for row in fitted.values())
    one = next(row for row in rows if (row["placement"], row["depth"], row["width"]) == ("preln_final", 4, 64))
    assert one["bound"] == pytest.approx(64 * (4.1588830833596715 / 4) ** 0.5)
    assert one["gaussian_delta"] == pytest.approx(0.92311634)  # exp(-64 * 0.01 / 8)


def test_a_gradient_that_grows_faster_than_the_bound_is_told() -> None:
    grows = [
        {"placement": placement, "depth": depth, "width": width, "gradient": width * depth**0.5}
        for placement in ("postln", "preln_final")
        for depth, width in ((2, 8), (8, 8), (8, 4))
    ]
    assert [(row["power_of"], row["holds"]) for row in exponent_rows(grows)] == [("depth", False), ("width", True)] * 2


def test_gradients_by_layer_stand_beside_appendix_f() -> None:
    """Appendix F leaves the branch's Jacobian out; it gives back what the norm takes, (1 + 1/2) * 2/3 = 1."""
    rows = decay_rows(8, 64, 16, 0.5, seeds=6)
    post, pre = ([row for row in rows if row["placement"] == name] for name in ("postln", "preln_final"))
    assert [row["layer"] for row in post] == list(range(1, 9))
    assert post[0]["predicted"] == pytest.approx(post[-1]["gradient"] * (2 / 3) ** 3.5)
    assert 0.6 < post[0]["gradient"] / post[-1]["gradient"] < 1.3
    assert 1.2 < pre[0]["gradient"] / pre[-1]["gradient"] < 4


def test_exponent_of_a_power_law() -> None:
    assert exponent([1, 2, 4], [3, 3 * 2**-0.5, 1.5]) == pytest.approx(-0.5)


def test_command_writes_tables_and_a_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--depths", "2", "4", "--widths", "8", "16", "--tokens", "4", "--seeds", "1", "--dest", str(tmp_path)]
    assert main(["diagnose", "theory", *words]) == 0
    assert "power of" in capsys.readouterr().out
    tables = {f"{name}.csv" for name in ("lemmas", "theorem", "exponents", "decay")}
    assert {path.name for path in tmp_path.iterdir()} == tables | {"theory.json", "theory.png", "theory.svg"}
    record = json.loads((tmp_path / "theory.json").read_text())
    assert {(row["depth"], row["width"]) for row in record["theorem"]} == {(2, 16), (4, 16), (4, 8)}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--depths", "4"], "`--depths` must be two"), (["--widths", "1", "4"], "`--widths` must be at least 2")],
)
def test_a_mistake_is_one_sentence(words: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "theory", *words]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert sentence in err
