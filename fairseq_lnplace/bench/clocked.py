"""Run a module as a command, and time its optimizer: ``python clocked.py RECORD FIRST LAST MODULE ARGUMENTS…``.

Every toolkit's training runs under this, in its own environment, so it imports torch and nothing of this package. In
RECORD it leaves the process's CPU seconds between the ends of updates FIRST and LAST, whatever stands around them.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def main(record: str, first: str, last: str, module: str, *arguments: str) -> None:
    """Run the module and time it."""
    ends: list[float] = []

    def end_of_update(*_: Any) -> None:
        ends.append(time.process_time())
        if len(ends) == int(last):
            Path(record).write_text(str(ends[-1] - ends[int(first) - 1]))

    register_optimizer_step_post_hook(end_of_update)
    sys.path[0], sys.argv = os.getcwd(), [module, *arguments]  # as under `python -m`, not this file's folder
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
