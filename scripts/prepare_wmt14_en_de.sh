#!/usr/bin/env bash
# Makes WMT14 English-German ready for fairseq, as the papers used it: about 4.5 million pairs, less those that are uneven or
# long, newstest2013 and newstest2014, 37,000 joint byte-pair merges. Downloads some 2 GB, and takes some 20 GB and hours.
#
#   bash scripts/prepare_wmt14_en_de.sh [OPTIONS]
#
# --variant V     moses (the default), as the papers: Moses' words, hyphens split, and subword-nmt's byte-pair encoding;
#                 or sentencepiece, from raw text
# --vocab-size N  merges, or pieces with sentencepiece (37000; fairseq's script takes 40000)
# --news-commentary V  v9 (the default), of WMT14; or v12, of WMT17, which fairseq's script takes without --icml17
# --valid SET     newstest2013 (the default), as the papers; or split, as fairseq's script: every 100th training pair
# --dest DIR      the folder to make (data/prepared/wmt14.en-de, with sentencepiece wmt14.en-de-sentencepiece)
# --archive FILE  one of the archives, if you have it, instead of downloading it; may be given several times
# --mirror URL    where to download the archives from, by their names, before the places known; may be given several times
# --sha256 FILE   what the archives' SHA-256 must be, as sha256sum writes them: a sum and a name a line
# --downloads DIR keeps the archives and the text (data/downloads)
# --workers N     processes that binarise (the machine's cores)
#
# The folder's path is all that goes to stdout. A second call sees what is done, and goes on where one stopped.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

variant=moses vocab_size=37000 commentary=v9 valid=newstest2013 dest='' archives=() mirrors=() sums=''
downloads=$ROOT/data/downloads workers=$(nproc)
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --variant | --vocab-size | --news-commentary | --valid | --dest | --archive | --mirror | --sha256 | --downloads | \
            --workers)
            [[ $# -ge 2 ]] || fail "$1 needs a value."
            ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --variant) variant=$2 ;;
        --vocab-size) vocab_size=$2 ;;
        --news-commentary) commentary=$2 ;;
        --valid) valid=$2 ;;
        --dest) dest=$2 ;;
        --archive) archives+=("$2") ;;
        --mirror) mirrors+=("${2%/}") ;;
        --sha256) sums=$2 ;;
        --downloads) downloads=$2 ;;
        --workers) workers=$2 ;;
    esac
    shift 2
done
# The archives, and where the organisers keep each.
declare -A place=(
    [training-parallel-europarl-v7.tgz]=https://www.statmt.org/wmt13
    [training-parallel-commoncrawl.tgz]=https://www.statmt.org/wmt13
    [dev.tgz]=https://data.statmt.org/wmt17/translation-task
    [test-full.tgz]=https://www.statmt.org/wmt14
)
case $commentary in
    v9) place[training-parallel-nc-v9.tgz]=https://www.statmt.org/wmt14 ;;
    v12) place[training-parallel-nc-v12.tgz]=https://data.statmt.org/wmt17/translation-task ;;
    *) fail "--news-commentary must be v9 or v12, but is $commentary." ;;
esac
[[ $valid == newstest2013 || $valid == split ]] || fail "--valid must be newstest2013 or split, but is $valid."
choose_variant "$variant" "hyphens split" --split-hyphens
name=wmt14.en-de
[[ $variant == moses ]] || name+=-sentencepiece
dest=${dest:-$ROOT/data/prepared/$name} note="WMT14 English-German, News Commentary $commentary, valid $valid$how"
if already_made "$dest" "\"note\": \"$note\"," "\"vocab_size\": $vocab_size,"; then
    echo "$dest"
    exit 0
fi
for archive in "${archives[@]}"; do
    [[ -v place[$(basename "$archive")] ]] || fail "$(basename "$archive") is none of the archives: ${!place[*]}."
    place[$(basename "$archive")]=''
done
[[ -x $VENV/bin/lnplace ]] || set_up >&2

work=$downloads/wmt14.en-de
mkdir -p "$work"
for archive in "${!place[@]}"; do
    [[ -n ${place[$archive]} ]] || continue
    urls=("${mirrors[@]/%//$archive}" "${place[$archive]}/$archive")
    download "$work/$archive" "${urls[@]}"
    archives+=("$work/$archive")
done
found=()
for archive in "${archives[@]}"; do
    wanted=''
    [[ -z $sums ]] || wanted=$(awk -v name="$(basename "$archive")" '$2 == name || $2 == "*" name { print $1 }' "$sums")
    check_archive "$archive" "$wanted"
    found+=("$sum")
done

text=$work/text-$commentary-$valid-$(printf '%s\n' "${found[@]}" | sort | sha256sum | cut -c 1-8)
if [[ ! -e $text ]]; then
    scratch_folder "$work"
    unpack "${archives[@]}"
    say "taking the text out, some minutes" >&2
    lnplace corpus --wmt14 "$scratch/unpacked" --news-commentary "$commentary" --valid-set "$valid" --dest "$text"
    rm -r "$scratch/unpacked"
fi
say "preparing $note, some hours" >&2
lnplace prepare --source-lang en --target-lang de "${encoding[@]}" --vocab-size "$vocab_size" --note "$note" \
    --max-pieces 250 --max-ratio 1.5 --workers "$workers" \
    --train "$text/train" --valid "$text/valid" --test "$text/test" --dest "$dest"
echo "$dest"
