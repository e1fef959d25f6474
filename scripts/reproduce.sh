#!/usr/bin/env bash
# Reproduces an experiment of the papers: trains, evaluates and measures its cells, and ends with a report.
# Does the set-up and makes the data if they are not there.
#
#   bash scripts/reproduce.sh EXPERIMENT [OPTIONS] [-- OPTIONS OF FAIRSEQ-TRAIN]
#   bash scripts/reproduce.sh warmup                              minutes on a laptop
#   bash scripts/reproduce.sh warmup --scale full --gpus 2        the paper's models and data, two GPUs a cell
#
# --help tells the experiments and options. scripts/reproduce_EXPERIMENT.sh is short for the same.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

set_up
exec "$VENV/bin/python" -m fairseq_lnplace.commands.reproduce --root "$ROOT" "$@"
