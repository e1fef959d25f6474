"""`fairseq-hydra-train`: our errors as one sentence, and schedules and criterions that can be named."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from fairseq_lnplace.compat.one_sentence import print_sentence, sentence_of

__all__ = ["in_hydra_train", "without_defaults"]


def in_hydra_train(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute `fairseq_cli.hydra_train` and wrap its two entries.

    Our errors leave it as an exit, since Hydra prints every exception itself.
    """
    execute(module)
    train, command = module._hydra_main, module.cli_main

    def train_or_exit(*args: Any, **kwargs: Any) -> Any:
        try:
            return train(*args, **kwargs)
        except Exception as error:
            sentence = sentence_of(error)
            if sentence is None:
                raise
            print_sentence(sentence)
            sys.exit(1)

    def named_groups() -> Any:
        sys.argv[1:] = without_defaults(sys.argv[1:])
        return command()

    vars(module).update(_hydra_main=train_or_exit, cli_main=named_groups)


def without_defaults(arguments: list[str]) -> list[str]:
    """Return Hydra's arguments so that `+lr_scheduler._name=X`, and the same of `criterion`, means X.

    fairseq's configuration has a default in these two groups. Hydra will not add a second `_name` to it, and where the
    name is overridden, the default's other options stay and are refused. So the default goes. A configuration of the
    user's own (--config-name, --config-dir) is left alone.
    """
    if any(re.match(r"--config-(name|dir)|-c[nd]", argument) for argument in arguments):
        return arguments
    for group in ("criterion", "lr_scheduler"):
        named = any(re.match(rf"\+{{0,2}}{group}\._name=", argument) for argument in arguments)
        chosen = any(re.match(rf"~?{group}(=|$)", argument) for argument in arguments)
        if named and not chosen:
            own = re.compile(rf"\+{{0,2}}({group}\..*)")
            arguments = [f"~{group}", *(own.sub(r"+\1", argument) for argument in arguments)]
    return arguments
