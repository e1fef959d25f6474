#!/usr/bin/env bash
# Measures training beside OpenNMT-py 3.5.1 and JoeyNMT 2.3.0: same text, sizes and options, in turn, in CPU seconds of
# one thread. Prints a table; logs, configurations and results.json go to runs/toolkits/. Takes about half an hour.
#
#   bash scripts/bench_toolkits.sh [OPTIONS]
#
# --data DIR     folder that `lnplace prepare` made (data/prepared/quickstart)
# --dest DIR     where the results go (runs/toolkits)
# --updates N    of each training, 10 of them untimed (110)
# --rounds N     rounds, the toolkits in turn in each (3)
#
# LNPLACE_TOOLKITS  where the other toolkits' environments go (runs/toolkits-environments); each gets this project's
#                   torch, whatever its own metadata asks for
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
    sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0
fi

# environment NAME TOOLKIT NEEDS... — make the toolkit's environment, unless it is there.
environment() {
    local place=$environments/$1 toolkit=$2
    shift 2
    [[ ! -e $place/ready ]] || return 0
    say "installing $toolkit" >&2
    "$VENV/bin/python" -m venv --clear "$place"
    "$place/bin/pip" install --quiet "$(grep '^torch==' "$ROOT/requirements.txt")" "$@" ||
        fail "what $toolkit needs could not be installed; what pip says above tells why."
    # Without its dependencies, whose pins hold torch back.
    "$place/bin/pip" install --quiet --no-deps "$toolkit" || fail "$toolkit could not be installed."
    touch "$place/ready"
}

set_up
environments=${LNPLACE_TOOLKITS:-$ROOT/runs/toolkits-environments}
environment opennmt OpenNMT-py==3.5.1 numpy configargparse tensorboard pyonmttok pyyaml sacrebleu rapidfuzz \
    pyahocorasick ctranslate2 spacy fasttext-wheel 'setuptools<81'
environment joeynmt joeynmt==2.3.0 numpy pillow tensorboard sacrebleu sacremoses sentencepiece subword-nmt matplotlib \
    pyyaml datasets packaging pandas importlib_metadata 'setuptools<81'
exec "$VENV/bin/python" -m fairseq_lnplace.bench.toolkits --data "$ROOT/data/prepared/quickstart" \
    --dest "$ROOT/runs/toolkits" --environments "$environments" "$@"
