#!/usr/bin/env bash
# Makes MRPC or RTE of GLUE ready for fine-tuning a masked language model (--task sentence_prediction), in that model's words
# and pieces. Downloads 1 MB.
#
#   bash scripts/prepare_glue.sh MRPC|RTE [OPTIONS]
#
# --model-data DIR  the data that prepare_bert.sh made for the model (data/prepared/bert)
# --dest DIR        the folder to make (data/prepared/glue/MRPC or RTE)
# --archive FILE    RTE.zip; or for MRPC msr_paraphrase_train.txt and mrpc_dev_ids.tsv, given one after the other
# --downloads DIR   keeps them (data/downloads)
#
# The folder's path is all that goes to stdout. A second call sees that all is done and ends at once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

task='' model_data=$ROOT/data/prepared/bert dest='' files=() downloads=$ROOT/data/downloads
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        MRPC | RTE) task=$1 && shift && continue ;;
        --model-data | --dest | --archive | --downloads) [[ $# -ge 2 ]] || fail "$1 needs a value." ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
        --model-data) model_data=$2 ;;
        --dest) dest=$2 ;;
        --archive) files+=("$2") ;;
        --downloads) downloads=$2 ;;
    esac
    shift 2
done
case $task in
    MRPC)
        urls=(
            https://dl.fbaipublicfiles.com/senteval/senteval_data/msr_paraphrase_train.txt
            https://dl.fbaipublicfiles.com/glue/data/mrpc_dev_ids.tsv
        )
        ;;
    RTE) urls=(https://dl.fbaipublicfiles.com/glue/data/RTE.zip) ;;
    *) fail "say which task: MRPC or RTE." ;;
esac
dest=${dest:-$ROOT/data/prepared/glue/$task}
[[ -e $model_data/prepared.json ]] || fail "$model_data is not there; prepare_bert.sh makes it, --model-data names another."
dictionary=$(sha256sum <"$model_data/dict.txt")
if already_made "$dest" "\"note\": \"GLUE $task\"," "${dictionary%% *}"; then
    echo "$dest"
    exit 0
fi
[[ -x $VENV/bin/lnplace ]] || set_up >&2

work=$downloads/glue
mkdir -p "$work"
if [[ ${#files[@]} -eq 0 ]]; then
    for url in "${urls[@]}"; do
        download "$work/${url##*/}" "$url"
        files+=("$work/${url##*/}")
    done
fi
scratch_folder
unpack "${files[@]}"
lnplace corpus --glue "$scratch/unpacked" --task "$task" --dest "$scratch/text"
lnplace prepare-classes --train "$scratch/text/train" --valid "$scratch/text/valid" --model-data "$model_data" \
    --note "GLUE $task" --dest "$dest"
echo "$dest"
