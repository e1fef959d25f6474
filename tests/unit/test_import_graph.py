"""The package's architecture, as its sources import each other: no circles, inwards only, no fairseq in the core."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "fairseq_lnplace"
ADAPTERS_NEEDS = {"fairseq", "fairseq_cli", "hydra", "omegaconf"}
CORE = ("__init__", "errors", "placements", "layers", "nn", "schedules", "measure")
CORE_MAY_USE = {*CORE, "files"}
# How the package's own `__init__` reaches the adapter: when fairseq is imported, or somebody asks for it.
DOORS = {("fairseq_lnplace", "fairseq_lnplace.plugin"), ("fairseq_lnplace", "fairseq_lnplace.compat")}

# Sub-packages and modules from the innermost outwards: each row may import from those above it alone.
ORDER = (
    "startup errors",
    "checkpoints cli doctor files heap placements schedules",
    "compat layers palette",
    "nn measure",
    "plugin descriptions",
    "__init__",
    "versions averaging export",
    "corpus",
    "scoring",
    "evaluation",
    "bench diagnostics runs",
    "experiments",
    "report",
    "commands",
    "__main__",
)

LONGEST_FILE = 300
MOST_PARAMETERS = 6
MOST_POSITIONAL = 3

Graph = Mapping[str, set[str]]


# ------------------------------------------------------------------------------------------------ the graph


def modules(package: Path) -> dict[str, Path]:
    """Return the sources of a package by the names of their modules."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = [package.name, *path.relative_to(package).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that only a type checker sees."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            for other in child.orelse:
                yield other
                yield from nodes(other)
        else:
            yield child
            yield from nodes(child)


def imported(name: str, path: Path, inside: Iterable[str]) -> set[str]:
    """Return what a module imports, anywhere in it; of this package the modules, of others their full names."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in nodes(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                full = f"{base}.{alias.name}"
                found.add(full if full in inside else base)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            found |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    return found - {name}


def graph_of(package: Path) -> dict[str, set[str]]:
    """Return what each module imports."""
    sources = modules(package)
    return {name: imported(name, path, sources) for name, path in sources.items()}


def within(graph: Graph) -> dict[str, set[str]]:
    """Return the part of a graph that is about its own modules."""
    return {name: {each for each in others if each in graph} for name, others in graph.items()}


def circle(graph: Graph) -> list[str]:
    """Return one circle of a graph, its first name at the end again; nothing where there is none."""
    done: set[str] = set()

    def search(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in done:
            for other in sorted(graph.get(name, ())):
                if found := search(other, [*way, name]):
                    return found
            done.add(name)
        return []

    return next(filter(None, (search(name, []) for name in sorted(graph))), [])


def part(name: str) -> str:
    """Return the sub-package or module right below the package that a module is of."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def parts_of(graph: Graph) -> dict[str, set[str]]:
    """Return which parts of the package import which others."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, others in within(graph).items():
        found[part(name)] |= {part(each) for each in others} - {part(name)}
    return dict(found)


def reached(graph: Graph, starts: Iterable[str]) -> dict[str, str]:
    """Return all that modules bring along, but through a door, and what imports it; packages come with their parts."""
    found = dict.fromkeys(starts, "")
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        parents = [name.rpartition(".")[0]] if name.count(".") > 1 else []
        for other in [*graph.get(name, ()), *parents]:
            if other not in found and other and (name, other) not in DOORS:
                found[other] = name
                waiting.append(other)
    return found


GRAPH = graph_of(PACKAGE)


# ---------------------------------------------------------------------------------------------------- the rules


def test_no_circle_of_modules() -> None:
    assert circle(within(GRAPH)) == []


def test_no_circle_of_parts() -> None:
    assert circle(parts_of(GRAPH)) == []


def test_every_part_has_its_place() -> None:
    placed = [name for row in ORDER for name in row.split()]
    assert sorted(placed) == sorted({part(name) for name in GRAPH})


@pytest.mark.parametrize("name", sorted({part(name) for name in GRAPH}))
def test_imports_point_inwards(name: str) -> None:
    ranks = {each: rank for rank, row in enumerate(ORDER) for each in row.split()}
    outwards = sorted(each for each in parts_of(GRAPH).get(name, ()) if ranks[each] >= ranks[name])
    doors = {part(to) for _, to in DOORS} if name == "__init__" else set()
    assert set(outwards) - doors == set()


@pytest.mark.parametrize("name", CORE)
def test_no_fairseq_in_the_core_nor_in_what_it_brings_along(name: str) -> None:
    brought = reached(GRAPH, [module for module in GRAPH if part(module) == name])
    assert {module: by for module, by in brought.items() if module.split(".")[0] in ADAPTERS_NEEDS} == {}
    assert {part(module) for module in brought if module in GRAPH} <= CORE_MAY_USE


def test_the_adapter_is_where_fairseq_is() -> None:
    """A check of the check: it finds fairseq where it is."""
    assert any(each.split(".")[0] == "fairseq" for each in reached(GRAPH, ["fairseq_lnplace.plugin.encoder"]))


def test_forwards_have_few_parameters() -> None:
    too_many = []
    for name, path in modules(PACKAGE).items():
        if part(name) in ("layers", "nn"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.FunctionDef) and node.name == "forward" and parameters(node) > MOST_PARAMETERS:
                    too_many.append(f"{name}:{node.lineno} has {parameters(node)}")
    assert too_many == []


def parameters(function: ast.FunctionDef) -> int:
    """Return how many parameters a method has besides its first."""
    given = function.args
    return len([*given.posonlyargs, *given.args, *given.kwonlyargs]) + bool(given.vararg) + bool(given.kwarg) - 1


def test_arguments_beyond_the_third_are_named() -> None:
    """In the core, where the package calls itself; torch's own functions have no names for many."""
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules(PACKAGE).items()}
    own = {
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    calls = [
        (name, node.lineno)
        for name, tree in trees.items()
        if part(name) in ("layers", "nn")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in own
        if len(node.args) > MOST_POSITIONAL
    ]
    assert calls == []


def test_no_file_is_long() -> None:
    lengths = {name: len(path.read_text("utf-8").splitlines()) for name, path in modules(PACKAGE).items()}
    del lengths["fairseq_lnplace.placements.methods"]  # a table, to be read side by side
    assert {name: length for name, length in lengths.items() if length > LONGEST_FILE} == {}


# ------------------------------------------------------------------------------------------- the rules can fail


def made(folder: Path, sources: Mapping[str, str]) -> Graph:
    """Return the graph of a package p of these sources, by the names of their files without ending."""
    for name, text in {"__init__": "", **sources}.items():
        path = folder / "p" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return graph_of(folder / "p")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("import p.b", "import p.a", True),
        ("from p import b", "def f():\n    if f:\n        from p.a import x", True),
        ("from . import b", "from .a import x", True),
        ("import importlib\nimportlib.import_module('p.b')", "import p.a as other", True),
        ("from p.b import x", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import y", False),
        ("from p.b import x", "import a, b", False),
    ],
)
def test_circles_are_found_wherever_they_hide(a: str, b: str, expected: bool, tmp_path: Path) -> None:
    assert circle(within(made(tmp_path, {"a": a, "b": b}))) == (["p.a", "p.b", "p.a"] if expected else [])


def test_circles_of_parts_and_what_is_brought_along_are_found(tmp_path: Path) -> None:
    sources = {
        "one/__init__": "",
        "one/x": "from p.two.y import z",
        "two/__init__": "import fairseq.tasks",
        "two/y": "",
        "two/w": "from p.one.v import u",
        "one/v": "",
    }
    graph = made(tmp_path, sources)
    assert circle(within(graph)) == []
    assert circle(parts_of(graph)) == ["one", "two", "one"]
    assert reached(graph, ["p.one.x"])["fairseq.tasks"] == "p.two"
