#!/usr/bin/env bash
# Makes plain English text ready for a masked language model (--task masked_lm), and for the demo a task to fine-tune on.
#
#   bash scripts/prepare_bert.sh --text FILE... [OPTIONS]
#   bash scripts/prepare_bert.sh --demo [OPTIONS]
#
# --text FILE...  one sentence a line, a blank line between documents; every 200th document is for validation (199:1)
# --demo          the English side of LibreOffice's help instead (33,000 sentences), and beside it, in DEST-application,
#                 9,104 of its sentences to tell by the application that they are about (--task sentence_prediction)
# --variant V     moses (the default), as the paper: Moses' words, lower-cased, and subword-nmt's byte-pair encoding;
#                 or sentencepiece, from raw text
# --vocab-size N  merges, or pieces with sentencepiece (32000; 3000 for the demo)
# --dest DIR      the folder to make (data/prepared/bert, or data/prepared/bert-demo)
# --packages DIR  for the demo, take libreoffice-help-{de,en-us}_*.deb from DIR instead of downloading them
# --workers N     processes that binarise (the machine's cores)
#
# The paper's text, English Wikipedia and BookCorpus (3.4 billion words), may not be handed on. For Wikipedia get
# enwiki-latest-pages-articles.xml.bz2 from dumps.wikimedia.org, take the text out with WikiExtractor, and cut it into
# sentences with spaCy, as the paper did; BookCorpus has to be asked for.
#
# The folders' paths are all that goes to stdout. A second call sees what is done, and goes on where one stopped.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

text=() demo='' variant=moses vocab_size='' dest='' packages='' workers=$(nproc)
while [[ $# -gt 0 ]]; do
    case $1 in
        --demo) demo=yes && shift && continue ;;
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --text)
            shift
            while [[ $# -gt 0 && $1 != --* ]]; do text+=("$1") && shift; done
            [[ ${#text[@]} -gt 0 ]] || fail "--text needs a value."
            continue
            ;;
        --variant | --vocab-size | --dest | --packages | --workers) [[ $# -ge 2 ]] || fail "$1 needs a value." ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --variant) variant=$2 ;;
        --vocab-size) vocab_size=$2 ;;
        --dest) dest=$2 ;;
        --packages) packages=$2 ;;
        --workers) workers=$2 ;;
    esac
    shift 2
done
choose_variant "$variant" lower-cased --lowercase
if [[ -n $demo ]]; then
    [[ ${#text[@]} -eq 0 ]] || fail "--demo has its own text; leave out --text, or --demo."
    name=bert-demo note="LibreOffice help, English$how" vocab_size=${vocab_size:-3000}
else
    [[ ${#text[@]} -gt 0 ]] || fail "say where the text is with --text FILE..., or take --demo; --help tells more."
    name=bert note="$(basename -a -- "${text[@]}" | paste -sd ' '), 199:1$how" vocab_size=${vocab_size:-32000}
fi
dest=${dest:-$ROOT/data/prepared/$name}
settings=("\"note\": \"$note\"," "\"vocab_size\": $vocab_size,")
folders=("$dest" ${demo:+"$dest-application"})

missing=''
for folder in "${folders[@]}"; do
    already_made "$folder" "${settings[@]}" || missing=yes
done
if [[ -n $missing ]]; then
    [[ -x $VENV/bin/lnplace ]] || set_up >&2
    scratch_folder
    if [[ -n $demo ]]; then
        help_pages "$packages"
        lnplace corpus --english --pages "$scratch/help" --dest "$scratch/corpus"
        test_text=(--test "$scratch/corpus/test.txt")
    else
        lnplace corpus --text "${text[@]}" --dest "$scratch/corpus"
        test_text=()
    fi
    encoding+=(--vocab-size "$vocab_size" --note "$note")
    [[ -e $dest ]] || lnplace prepare-text --train "$scratch/corpus/train.txt" --valid "$scratch/corpus/valid.txt" \
        "${test_text[@]}" "${encoding[@]}" --workers "$workers" --dest "$dest"
    [[ -z $demo || -e $dest-application ]] || lnplace prepare-classes --train "$scratch/corpus/train" \
        --valid "$scratch/corpus/valid" --test "$scratch/corpus/test" --model-data "$dest" --note "$note" \
        --dest "$dest-application"
fi
printf '%s\n' "${folders[@]}"
