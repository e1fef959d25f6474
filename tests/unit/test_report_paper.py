"""Figure 3 of Xiong et al. 2020 stands beside what was measured of the same placements."""

from pathlib import Path
from typing import Any

from fairseq_lnplace.report.measured import Measured, measured_panels


def row(placement: str, **more: Any) -> dict[str, Any]:
    who = {"label": f"transformer_{placement}", "placement": placement, "state": "initialisation"}
    return {**who, "side": "decoder", "norm_of_mean": 0.5, **more}


def test_published_lines_beside_ours() -> None:
    matrices = [row("postln", layer=layer, matrix="fc2") for layer in (1, 2)]
    depths = [row(placement, depth=depth) for placement in ("postln", "keel") for depth in (6, 12)]
    content = {"settings": {}, "gradients": matrices, "depths": depths}
    by_layer, by_depth = measured_panels(Measured("gradients", Path(), content), [], "m")
    (lines,) = by_layer.frames
    assert [(line.title, line.published) for line in lines] == [
        ("transformer_postln", False),
        ("postln in Xiong et al. 2020, initialisation", True),
        ("postln in Xiong et al. 2020, after warm-up", True),
    ]
    assert lines[1].ys.tolist() == [0.13, 0.20, 0.37, 0.58, 1.10, 1.66]
    assert (by_depth.xlabel, by_layer.xlabel) == ("depth of the decoder", "decoder layer")
    (lines,) = by_depth.frames
    assert [line.xs.tolist() for line in lines if not line.published] == [[6, 12]] * 2
    assert [line.ys.tolist() for line in lines if line.published] == [[1.6] * 5], "of KEEL the paper knows nothing"
