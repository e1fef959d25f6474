#!/usr/bin/env bash
# Makes real German-English text ready for fairseq: LibreOffice's help out of two Debian packages (5 MB).
#
#   bash scripts/prepare_demo.sh [OPTIONS]
#
# --variant V     sentencepiece, from raw text (the default); or moses, as the papers: Moses' words, lower-cased, and
#                 subword-nmt's byte-pair encoding
# --min-words N   fewest words on either side (3)
# --max-words N   most words on either side (50)
# --vocab-size N  pieces, or merges with moses, of the joint vocabulary (4000; 500 for generated text)
# --dest DIR      the folder to make (data/prepared/demo, or data/prepared/synthetic for generated text; with -moses)
# --packages DIR  take libreoffice-help-de_*.deb and libreoffice-help-en-us_*.deb from DIR instead of downloading them
# --generated     make synthetic text out of a grammar instead; without apt that is what happens anyway
#
# The folder's path is all that goes to stdout. A second call sees that all is done and ends at once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

variant=sentencepiece min_words=3 max_words=50 vocab_size='' dest='' packages='' generated=''
arguments=("$@")
while [[ $# -gt 0 ]]; do
    case $1 in
        --generated) generated=yes && shift && continue ;;
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --variant | --min-words | --max-words | --vocab-size | --dest | --packages)
            [[ $# -ge 2 ]] || fail "$1 needs a value."
            ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --variant) variant=$2 ;;
        --min-words) min_words=$2 ;;
        --max-words) max_words=$2 ;;
        --vocab-size) vocab_size=$2 ;;
        --dest) dest=$2 ;;
        --packages) packages=$2 ;;
    esac
    shift 2
done
if [[ -n $generated ]]; then
    name=synthetic text="synthetic text" vocab_size=${vocab_size:-500}
else
    name=demo text="LibreOffice help" vocab_size=${vocab_size:-4000}
fi
note="$text, $min_words to $max_words words"
choose_variant "$variant" lower-cased --lowercase
dest=${dest:-$ROOT/data/prepared/$name$suffix}
note+=$how

if already_made "$dest" "\"note\": \"$note\"," "\"vocab_size\": $vocab_size,"; then
    echo "$dest"
    exit 0
fi

if [[ -z $generated$packages ]] && ! command -v apt-get >/dev/null; then
    say "there is no apt here, so a grammar makes the text up instead" >&2
    exec bash "${BASH_SOURCE[0]}" --generated "${arguments[@]}"
fi
[[ -x $VENV/bin/lnplace ]] || set_up >&2

scratch_folder
if [[ -n $generated ]]; then
    from=(--generated 30000)
else
    help_pages "$packages"
    from=(--pages "$scratch/help")
fi
lnplace corpus "${from[@]}" --min-words "$min_words" --max-words "$max_words" --dest "$scratch/corpus"
lnplace prepare --source-lang de --target-lang en "${encoding[@]}" --vocab-size "$vocab_size" --note "$note" \
    --train "$scratch/corpus/train" --valid "$scratch/corpus/valid" --test "$scratch/corpus/test" --dest "$dest"
echo "$dest"
