#!/usr/bin/env bash
# Sets up what is missing, checks the scripts, the style and the types, and runs the tests; the first failure ends it.
#
#   bash scripts/test.sh [PYTEST-ARGUMENTS...]     for example: bash scripts/test.sh -m 'not slow'
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

set_up
cd "$ROOT"
say "shellcheck"
shellcheck --external-sources --source-path=SCRIPTDIR scripts/*.sh .ci/run
say "ruff"
ruff check .
ruff format --check .
say "mypy"
mypy
say "pytest"
# One process for each core, of one thread: the tests are tiny, and torch's threads would only stand in each other's way.
OMP_NUM_THREADS=1 exec pytest --numprocesses auto "$@"
