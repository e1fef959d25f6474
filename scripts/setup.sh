#!/usr/bin/env bash
# Makes the Python environment: the tested requirements, the released fairseq and this package, editable.
#
#   bash scripts/setup.sh
#
# LNPLACE_VENV  where the environment goes (default: .venv beside this folder)
# PYTHON        the Python 3.10 to 3.13 to make it with (default: the first such of python3, python3.13, ..., python3.10)
#
# A second call sees that all is done, ends at once and downloads nothing; a call after an interruption goes on.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

FAIRSEQ=fairseq==0.12.2
STAMP=$VENV/lnplace-setup

# supported PYTHON — whether it runs and is a version that we test.
supported() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }

# choose_python — the Python to make the environment with.
choose_python() {
    local candidate candidates=(python3 python3.13 python3.12 python3.11 python3.10)
    if [[ -n ${PYTHON:-} ]]; then candidates=("$PYTHON"); fi
    for candidate in "${candidates[@]}"; do
        if supported "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "${candidates[0]} is not a Python 3.10 to 3.13; install one (Debian, Ubuntu: apt-get install python3) or set PYTHON."
}

# state PYTHON — what the environment depends on, as one word: change any of it and set-up runs again.
state() {
    (
        cd "$ROOT"
        "$1" -I -c '
import hashlib, sys
state = hashlib.sha256(repr((sys.version_info[:2], sys.argv[1:])).encode())
for name in ("requirements.txt", "setup.py", "fairseq_lnplace/fairseq_lnplace.pth"):
    state.update(open(name, "rb").read())
print(state.hexdigest())' "$FAIRSEQ" "$ROOT"
    )
}

# need_tools PYTHON — everything that a build from source asks for, before anything is begun.
need_tools() {
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$1 comes without pip and venv; install them (Debian, Ubuntu: apt-get install python3-venv)."
    command -v "${CXX:-c++}" >/dev/null || command -v g++ >/dev/null ||
        fail "building fairseq takes a C++ compiler; install one (Debian, Ubuntu: apt-get install g++) or set CXX."
    "$1" -c 'import os, sysconfig; os.stat(os.path.join(sysconfig.get_path("include"), "Python.h"))' 2>/dev/null ||
        fail "building fairseq takes Python's headers; install them (Debian, Ubuntu: apt-get install python3-dev)."
}

# install WHAT PIP-ARGUMENTS... — run the environment's pip quietly; WHAT names it in the message.
install() {
    local what=$1
    shift
    say "installing $what"
    (
        cd "$ROOT" # where the constraints are named without a path, which pip would split at its spaces
        "$VENV/bin/python" -m pip install --quiet "$@"
    ) || fail "$what could not be installed; what pip says above tells why."
}

if [[ -z ${PYTHON:-} ]] && supported "$VENV/bin/python"; then
    python=$VENV/bin/python
else
    python=$(choose_python)
fi
if [[ -e $STAMP && -x $VENV/bin/python && $(<"$STAMP") == "$(state "$python")" ]]; then
    exit 0
fi

need_tools "$python"
if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || [[ $(state "$VENV/bin/python") != "$(state "$python")" ]]; then
    if [[ -e $VENV && ! -e $VENV/pyvenv.cfg ]]; then
        fail "$VENV is there but is no Python environment; move it away or set LNPLACE_VENV to another place."
    fi
    say "making $VENV with $("$python" --version)"
    "$python" -m venv --clear "$VENV" || fail "$python could not make an environment in $VENV."
fi
rm -f "$STAMP"
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
# What is built from source is built with the tested versions: older pips hand the first variable down to that build, newer
# ones read the second.
export PIP_CONSTRAINT=requirements.txt PIP_BUILD_CONSTRAINT=requirements.txt
install "the tested requirements (some minutes, torch is large)" --requirement requirements.txt
# Without its dependencies, whose old pins no current pip accepts, and built apart from torch: beside it, fairseq's set-up
# would build extensions whose sources its release lacks.
install "$FAIRSEQ, built from source (about a minute)" --no-deps "$FAIRSEQ"
unset PIP_BUILD_CONSTRAINT # nothing is built apart here, and pip refuses the one beside the other
install "fairseq_lnplace from $ROOT" --no-deps --no-build-isolation --editable .
"$VENV/bin/python" -c 'import fairseq' >/dev/null || fail "fairseq does not import; $VENV/bin/lnplace doctor may tell why."
state "$VENV/bin/python" >"$STAMP.part" && mv "$STAMP.part" "$STAMP"
say "ready: source \"$VENV/bin/activate\", or call what lies in $VENV/bin"
