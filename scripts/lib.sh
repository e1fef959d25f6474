# shellcheck shell=bash
# What the scripts share: strict mode, the repository's root, the environment's place, and words for success and failure.
# Each script sources this file first; none depends on the folder it is called from.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${LNPLACE_VENV:-$ROOT/.venv}
[[ $VENV == /* ]] || VENV=$PWD/$VENV
# shellcheck disable=SC2034 # the sourcing scripts name themselves by it
SCRIPT=$(basename "$0" .sh)

# say WORDS... — one line about what happens now.
say() { echo "$SCRIPT: $*"; }

# fail WORDS... — one sentence on stderr, and the script ends with status 1.
fail() {
    echo "$SCRIPT: $*" >&2
    exit 1
}

# set_up — make the environment if it is not there, and put its commands first.
set_up() {
    bash "$ROOT/scripts/setup.sh"
    PATH="$VENV/bin:$PATH"
}
