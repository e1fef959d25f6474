"""Lets the released fairseq 0.12.2 run on today's Python, numpy and torch, without editing a file of it.

A finder on `sys.meta_path` wraps the execution of the few modules named in `REPAIRS`; every other import passes by.
Each repair looks at the thing itself and leaves alone what is whole, so that a newer fairseq needs no change here.
The finder is started by `fairseq_lnplace.pth` (see `startup.py`) or, in a checkout that is not installed, by
`fairseq_lnplace/__init__.py`. Nothing here may import the package's own `__init__`, torch or fairseq at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

from fairseq_lnplace.compat.checkpoints import load_checkpoint, load_safely
from fairseq_lnplace.compat.defaults import allow_instances
from fairseq_lnplace.compat.fast_path import switch_off
from fairseq_lnplace.compat.hydra_train import in_hydra_train
from fairseq_lnplace.compat.ngrams import look_at_the_words
from fairseq_lnplace.compat.numpy_names import add_names
from fairseq_lnplace.compat.one_sentence import in_every_command
from fairseq_lnplace.compat.options import compare_kinds, count_devices, need_gpu, need_warmup
from fairseq_lnplace.compat.quiet import quieten
from fairseq_lnplace.compat.read_ahead import end_readers
from fairseq_lnplace.compat.score import read_files
from fairseq_lnplace.compat.tasks import ask_for_multi_models, let_models_win, name_args
from fairseq_lnplace.compat.user_dir import tell_which_copy
from fairseq_lnplace.compat.whole_words import find_pieces

__all__ = ["FINDER", "REPAIRS", "activate", "after_fairseq", "load_checkpoint"]

Execute = Callable[[ModuleType], None]

_waiting: list[Callable[[], None]] = []  # for fairseq


def execute_fairseq(module: ModuleType, execute: Execute) -> None:
    """Execute fairseq's own `__init__`, which imports all that registers, then call what waits for it."""
    quieten(module, execute)
    while _waiting:
        _waiting.pop()()


# Each repair executes the module, by the function that it is given, and mends what it finds broken.
REPAIRS: dict[str, Callable[[ModuleType, Execute], None]] = {
    "fairseq": execute_fairseq,
    "fairseq.checkpoint_utils": load_safely,
    "fairseq.data.data_utils": add_names,
    "fairseq.data.iterators": end_readers,
    "fairseq.data.language_pair_dataset": add_names,
    "fairseq.data.token_block_dataset": add_names,
    "fairseq.dataclass.configs": allow_instances,
    "fairseq.distributed.utils": count_devices,
    "fairseq.modules.dynamic_crf_layer": add_names,
    "fairseq.modules.transformer_layer": switch_off,
    "fairseq.optim.fp16_optimizer": need_gpu,
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule": need_warmup,
    "fairseq.tasks.denoising": let_models_win,
    "fairseq.tasks.masked_lm": find_pieces,
    "fairseq.tasks.multilingual_denoising": let_models_win,
    "fairseq.tasks.multilingual_translation": ask_for_multi_models,
    "fairseq.tasks.semisupervised_translation": ask_for_multi_models,
    "fairseq.tasks.translation_from_pretrained_bart": name_args,
    "fairseq.utils": tell_which_copy,
    "fairseq.ngram_repeat_block": look_at_the_words,
    "fairseq.options": compare_kinds,
    "fairseq_cli": in_every_command,
    "fairseq_cli.hydra_train": in_hydra_train,
    "fairseq_cli.score": read_files,
    "hydra.conf": allow_instances,
}


class _Finder:
    """Finds the modules of `REPAIRS` as the other finders do, and has them executed by their repair."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the others' spec with a wrapped `exec_module`, or None for a module that needs nothing."""
        if name not in REPAIRS:
            return None
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            # On the loader's instance, which belongs to this one module: its other methods stay as they are.
            repair, execute = REPAIRS[name], spec.loader.exec_module
            spec.loader.exec_module = lambda module: repair(module, execute)  # type: ignore[method-assign]
        return spec


FINDER = _Finder()


def activate() -> None:
    """Install the finder, once, and repair what is imported already."""
    if FINDER in sys.meta_path:
        return
    # In place of the finder that waits for the first import of fairseq, if an installation has started one.
    sys.meta_path[:] = [FINDER, *(finder for finder in sys.meta_path if type(finder).__name__ != "Watcher")]
    for name in REPAIRS.keys() & sys.modules.keys():
        REPAIRS[name](sys.modules[name], lambda _: None)


def after_fairseq(call: Callable[[], None]) -> None:
    """Call a function as soon as fairseq is imported, which may be now."""
    fairseq = sys.modules.get("fairseq")
    if fairseq is None or getattr(fairseq.__spec__, "_initializing", False):
        _waiting.append(call)
    else:
        call()
