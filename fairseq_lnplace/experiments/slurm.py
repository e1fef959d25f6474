"""An experiment as a Slurm job array: one task for each cell, with the cells that start from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from string import Template

from fairseq_lnplace.errors import must_be
from fairseq_lnplace.experiments.runner import Run

__all__ = ["job_script"]

SCRIPT = Template(
    """\
#!/usr/bin/env bash
#SBATCH --job-name=lnplace-$name
#SBATCH --array=0-$last
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=$threads
#SBATCH --gres=gpu:$gpus
#SBATCH --output=slurm-%A_%a.log
#SBATCH --requeue
# Each task trains and evaluates the cells of its line; a task that starts again goes on where it stopped.
set -euo pipefail
cd $cwd
cells=(
$cells
)
read -ra only <<<"$${cells[SLURM_ARRAY_TASK_ID]}"
exec $command --jobs 1 --no-report --only "$${only[@]}" $extra
"""
)


def job_script(name: str, runs: Sequence[Run], gpus: int, threads: int, cwd: Path, command: Sequence[str]) -> str:
    """Return the job script.

    Args:
        name: of the job.
        gpus: of each task, as ``threads``.
        cwd: where the command was called.
        command: the call of scripts/reproduce.sh that each task repeats for its own cells, without a report.

    Raises:
        LnplaceError: there is nothing to train.
    """
    if not runs:
        raise must_be("--slurm", f"left out, as {name} trains nothing", "given")
    lines: dict[str, list[str]] = {}
    for run in runs:
        lines.setdefault(run.cell.after or run.cell.name, []).append(run.cell.name)
    split = command.index("--") if "--" in command else len(command)
    own, extra = list(command[:split]), list(command[split:])
    text = SCRIPT.template if gpus else SCRIPT.template.replace("#SBATCH --gres=gpu:$gpus\n", "")
    return Template(text).substitute(
        name=name,
        last=len(lines) - 1,
        threads=threads,
        gpus=gpus,
        cwd=shlex.quote(str(cwd)),
        cells="\n".join(f"    {shlex.quote(' '.join(names))}" for names in lines.values()),
        command=shlex.join(own),
        extra=shlex.join(extra),
    )
