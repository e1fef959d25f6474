import pytest
from made_up_runs import outcome

from fairseq_lnplace.report.crosstab import crosstab, half_width, markdown


def test_the_interval_is_students() -> None:
    """t at 0.975 for 1, 2 and 5 degrees of freedom, from printed tables: 12.706, 4.303, 2.571."""
    assert half_width([1.0, 3.0]) == pytest.approx(12.706 * 2**0.5 / 2**0.5, rel=1e-4)
    assert half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-4)
    assert half_width([1, 2, 3, 4, 5, 6]) == pytest.approx(2.571 * 3.5**0.5 / 6**0.5, rel=1e-3)


def test_levels_across_and_down_with_published_values() -> None:
    levels = [
        {"placement": p, "lr": r, "warmup": w} for p in ("post", "pre") for r in ("low",) for w in ("none", "long")
    ]
    outcomes = [outcome(each, [9.0, 5.0 + number], bleu=number) for number, each in enumerate(levels)][:3]
    outcomes.append(outcome({"pretraining": "x"}, [1.0]))
    published = [{"levels": {"placement": "post", "warmup": "long"}, "bleu": 34}]
    table = crosstab(outcomes, {"rows": ["placement", "lr"], "columns": ["warmup"]}, published)
    assert table.caption == "valid loss / BLEU, in brackets as published"
    assert markdown(table) == (
        "| placement | lr | none | long |\n"
        "| --- | --- | --- | --- |\n"
        "| post | low | 5.00 / 0.0 | 6.00 / 1.0 (34) |\n"
        "| pre | low | 7.00 / 2.0 |  |\n"
    )


def test_seeds_share_an_entry_and_what_did_not_finish_is_told() -> None:
    seeds = [outcome({"x": "a", "y": "b"}, [5.0], accuracy=score) for score in (60.0, 62.0, 64.0)]
    diverged = outcome({"x": "c", "y": "b"}, [8.0, float("nan")], state="diverged", accuracy=20.0)
    table = crosstab([*seeds, diverged], {"rows": ["x"], "columns": ["y"]})
    assert table.lines == [["a", "5.00 ± 0.00 / 62.0 ± 5.0"], ["c", "8.00 / 20.0 (diverged)"]]
    assert table.caption.startswith("valid loss / accuracy, ± half of the 95 % interval")
