"""What `fairseq_lnplace.pth` runs at the start of every Python process: wait for fairseq or hydra.

Only builtins are used here and nothing of this package is imported, so that a process which never imports fairseq pays
well under a millisecond. The first import of fairseq or hydra brings in `fairseq_lnplace.compat`, alone: the package
around it imports torch and registers the models, which must wait until somebody asks for it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType


class Watcher:
    """A finder that finds nothing, but starts `fairseq_lnplace.compat` when fairseq or hydra is looked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Hand `fairseq`, `fairseq_cli` and `hydra` to compat's finder; leave every other name alone."""
        if name not in ("fairseq", "fairseq_cli", "hydra"):
            return None
        compat = load_compat()
        if compat is None:
            return None
        compat.activate()  # which takes this finder's place
        spec: ModuleSpec | None = compat.FINDER.find_spec(name, path, target)
        return spec


def load_compat() -> ModuleType | None:
    """Return the module `fairseq_lnplace.compat`, without importing its parent; None where the package is gone.

    It is the one beside this file: another package of the name may come before on the path by now.
    """
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec
    from os.path import dirname

    name = "fairseq_lnplace.compat"
    if name not in sys.modules:
        spec = PathFinder.find_spec(name, [dirname(load_compat.__code__.co_filename)])
        if spec is None or spec.loader is None:
            return None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


# Once: where lib64 is a link to lib, Python reads the same .pth file twice.
if not any(type(finder).__name__ == "Watcher" for finder in sys.meta_path):
    sys.meta_path.insert(0, Watcher())
