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
# The report is looked at in a browser, which the tests take from the system; they say so where they go without.
if ! command -v chromium >/dev/null && command -v apt-get >/dev/null && [[ $(id -u) -eq 0 ]]; then
    say "installing chromium"
    export DEBIAN_FRONTEND=noninteractive
    if ! { apt-get -qq update && apt-get -qq install --yes --no-install-recommends chromium; } >/dev/null; then
        say "chromium could not be installed"
    fi
fi
say "pytest"
# One process for each core, of one thread: the tests are tiny, and torch's threads would only stand in each other's way.
# The end-to-end tests take minutes and come first, so a process with nothing left takes over from the other.
OMP_NUM_THREADS=1 exec pytest --numprocesses auto --dist worksteal "$@"
