import json
from pathlib import Path

from fairseq_lnplace.experiments.script import earlier_cost


def test_what_a_command_took_is_not_said_of_another(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    assert earlier_cost(path, "a", "minutes") == {"minutes": None}
    path.write_text(json.dumps({"command": "a", "minutes": 3.5}))
    assert earlier_cost(path, "a", "minutes", "core_minutes") == {"minutes": 3.5, "core_minutes": None}
    assert earlier_cost(path, "a --only b", "minutes") == {"minutes": None}
