#!/usr/bin/env bash
# Makes IWSLT14 German-English ready for fairseq, as the papers used it: 160,239 / 7,283 / 6,750 pairs, lower-cased, 10,000
# joint byte-pair merges. Downloads about 20 MB.
#
#   bash scripts/prepare_iwslt14_de_en.sh [OPTIONS]
#
# --variant V     moses (the default), as the papers: Moses' words, lower-cased, and subword-nmt's byte-pair encoding;
#                 or sentencepiece, from raw text with its case
# --vocab-size N  merges, or pieces with sentencepiece (10000)
# --dest DIR      the folder to make (data/prepared/iwslt14.de-en, with sentencepiece iwslt14.de-en-sentencepiece)
# --archive FILE  de-en.tgz of IWSLT14, if you have it, instead of downloading it
# --url URL       where to download it from, instead of the places known; may be given several times, tried in order
# --sha256 SUM    what the archive's SHA-256 must be
# --downloads DIR keeps the archive and the text (data/downloads)
# --workers N     processes that binarise (the machine's cores)
#
# The folder's path is all that goes to stdout. A second call sees what is done, and goes on where one stopped.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The first is where fairseq's own script takes it from now; the second, the organisers', has said "not found" for years.
URLS=(
    https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz
    https://wit3.fbk.eu/archive/2014-01/texts/de/en/de-en.tgz
)

variant=moses vocab_size=10000 dest='' archive='' urls=() sha256='' downloads=$ROOT/data/downloads workers=$(nproc)
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --variant | --vocab-size | --dest | --archive | --url | --sha256 | --downloads | --workers)
            [[ $# -ge 2 ]] || fail "$1 needs a value."
            ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --variant) variant=$2 ;;
        --vocab-size) vocab_size=$2 ;;
        --dest) dest=$2 ;;
        --archive) archive=$2 ;;
        --url) urls+=("$2") ;;
        --sha256) sha256=$2 ;;
        --downloads) downloads=$2 ;;
        --workers) workers=$2 ;;
    esac
    shift 2
done
choose_variant "$variant" lower-cased --lowercase
name=iwslt14.de-en
[[ $variant == moses ]] || name+=-sentencepiece
dest=${dest:-$ROOT/data/prepared/$name} note="IWSLT14 German-English$how"
if already_made "$dest" "\"note\": \"$note\"," "\"vocab_size\": $vocab_size,"; then
    echo "$dest"
    exit 0
fi
[[ -x $VENV/bin/lnplace ]] || set_up >&2

work=$downloads/iwslt14.de-en
mkdir -p "$work"
if [[ -z $archive ]]; then
    archive=$work/de-en.tgz
    [[ ${#urls[@]} -gt 0 ]] || urls=("${URLS[@]}")
    download "$archive" "${urls[@]}"
fi
check_archive "$archive" "$sha256"

text=$work/text-${sum:0:8}
if [[ ! -e $text ]]; then
    scratch_folder "$work"
    unpack "$archive"
    say "taking the text out, some minutes" >&2
    lnplace corpus --iwslt14 "$scratch/unpacked" --dest "$text"
    rm -r "$scratch/unpacked"
fi
say "preparing $note, some minutes" >&2
lnplace prepare --source-lang de --target-lang en "${encoding[@]}" --vocab-size "$vocab_size" --note "$note" \
    --train "$text/train" --valid "$text/valid" --test "$text/test" --workers "$workers" --dest "$dest"
echo "$dest"
