"""The options that a training was given, read back from its command, or from what fairseq has logged."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_lnplace import placements

__all__ = ["logged_options", "options_of", "placement_of"]

# The groups of fairseq's configuration whose name is an option of fairseq-train's, and that option.
NAMED = {
    "model": "arch",
    "task": "task",
    "criterion": "criterion",
    "optimizer": "optimizer",
    "lr_scheduler": "lr-scheduler",
}
# Those that other commands than fairseq-train read.
FOREIGN = ("common_eval", "generation", "eval_lm", "interactive", "scoring")


def placement_of(arch: str) -> str:
    """Return the placement that an architecture's name holds ("transformer_postln_tiny": "postln")."""
    return max((name for name in placements.names() if f"_{name}_" in f"{arch}_"), key=len, default="")


def options_of(command: str) -> dict[str, Any]:
    """Return the options of a command of `fairseq-train`, however it is started; the folder after it is ``data``."""
    words = shlex.split(command)
    start = next((place for place, word in enumerate(words) if word in ("fairseq-train", "fairseq_cli.train")), 0)
    options: dict[str, Any] = {}
    name, values = "data", list[str]()
    for word in [*words[start + 1 :], "--"]:
        if word.startswith("--"):
            options[name] = " ".join(values) or True
            name, _, value = word[2:].partition("=")
            values = [value] if value else []
        else:
            values.append(word)
    return options


class _AsDicts(ast.NodeTransformer):
    """Turns the ``Namespace(name=value)`` of older models, and ``inf``, into what is a Python literal."""

    def visit_Call(self, node: ast.Call) -> ast.Dict:
        """Return the call's keywords as a dict."""
        values = [self.visit(keyword.value) for keyword in node.keywords]
        return ast.Dict([ast.Constant(keyword.arg) for keyword in node.keywords], values)

    def visit_Name(self, node: ast.Name) -> ast.Constant:
        """Return the number that a name is, such as inf."""
        return ast.Constant(float(node.id))


def logged_options(path: Path) -> dict[str, Any]:
    """Return the options of the configuration that fairseq logs at its start; none where that cannot be read."""
    with path.open(encoding="utf-8", errors="replace") as file:
        line = next((line for line in file if "{'_name': None, 'common': {" in line), "")
    try:
        config = ast.literal_eval(_AsDicts().visit(ast.parse(line[line.find("{") :].strip(), mode="eval")).body)
    except (SyntaxError, ValueError):
        return {}
    options: dict[str, Any] = {}
    for group, values in config.items():
        if isinstance(values, dict) and group not in FOREIGN:
            # Older models come with all options there are; each is the other group's own.
            options = {**flat(values), **options} if group == "model" else {**options, **flat(values)}
            if values.get("_name"):
                options[NAMED.get(group, group)] = values["_name"]
    return options


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a group's values as options: ``{"encoder": {"embed_dim": 8}}`` is ``{"encoder-embed-dim": 8}``."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            options |= flat(value, f"{prefix}{name}-")
        elif value is not None and not name.endswith("_name"):
            only = value[0] if isinstance(value, list) and len(value) == 1 else value
            options[f"{prefix}{name}".replace("_", "-")] = only
    return options
