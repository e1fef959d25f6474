#!/usr/bin/env bash
# Trains one small model three times (Pre-LN without warm-up, Post-LN without and with it) on German-English text, and
# ends with BLEU, a table and a picture in runs/quickstart/. Does the set-up and makes the data if they are not there.
#
#   bash scripts/quickstart.sh [OPTIONS] [-- OPTIONS OF FAIRSEQ-TRAIN]
#
# --fast          one epoch each and no BLEU
# --generated     synthetic text; without apt that is what happens anyway
# --packages DIR  take LibreOffice's two help packages from DIR instead of downloading them
# --data DIR      other data that `lnplace prepare` made
# --dest DIR      where the results go (runs/quickstart, or runs/quickstart-fast)
# --device D      cpu, cuda (which adds --fp16) or auto (cuda if there is one)
# --jobs N        models trained side by side (3)
# --threads N     of each (the machine's cores, shared out)
# --dry-run       print the three fairseq-train commands and train nothing
#
# Ctrl-C stops it; the same command goes on where it stopped, and does nothing twice.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

said='bash scripts/quickstart.sh'
for word in "$@"; do said+=" $(printf %q "$word")"; done
data='' dest=$ROOT/runs/quickstart text=() options=()
while [[ $# -gt 0 && $1 != -- ]]; do
    case $1 in
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --generated) text=(--generated) && shift && continue ;;
        --fast) options+=("$1") dest=$dest-fast && shift && continue ;;
        --dry-run) options+=("$1") && shift && continue ;;
        --packages | --data | --dest | --device | --jobs | --threads) [[ $# -ge 2 ]] || fail "$1 needs a value." ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --packages) text=(--packages "$2") ;;
        --data) data=$2 ;;
        *) options+=("$1" "$2") ;;
    esac
    shift 2
done

set_up
if [[ -z $data ]]; then
    [[ ${#text[@]} -gt 0 ]] || command -v apt-get >/dev/null || text=(--generated)
    data=$ROOT/data/prepared/quickstart
    [[ ${text[*]} != --generated ]] || data+=-synthetic
    bash "$ROOT/scripts/prepare_demo.sh" --min-words 4 --max-words 20 --dest "$data" "${text[@]}" >/dev/null
fi
exec "$VENV/bin/python" -m fairseq_lnplace.commands.quickstart --data "$data" --dest "$dest" --said "$said" \
    "${options[@]}" "$@"
