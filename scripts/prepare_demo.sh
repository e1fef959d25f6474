#!/usr/bin/env bash
# Makes real German-English text ready for fairseq: LibreOffice's help out of two Debian packages (5 MB).
#
#   bash scripts/prepare_demo.sh [OPTIONS]
#
# --min-words N   fewest words on either side (3)
# --max-words N   most words on either side (50)
# --vocab-size N  pieces of the joint sentencepiece vocabulary (4000; 500 for generated text)
# --dest DIR      the folder to make (data/prepared/demo, or data/prepared/synthetic for generated text)
# --packages DIR  take libreoffice-help-de_*.deb and libreoffice-help-en-us_*.deb from DIR instead of downloading them
# --generated     make synthetic text out of a grammar instead; without apt that is what happens anyway
#
# The folder's path is all that goes to stdout. A second call sees that all is done and ends at once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

min_words=3 max_words=50 vocab_size='' dest='' packages='' generated=''
arguments=("$@")
while [[ $# -gt 0 ]]; do
    case $1 in
        --generated) generated=yes && shift && continue ;;
        -h | --help) sed -n '2,/^source/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
        --min-words | --max-words | --vocab-size | --dest | --packages) [[ $# -ge 2 ]] || fail "$1 needs a value." ;;
        *) fail "$1 is not one of the options that --help tells." ;;
    esac
    case $1 in
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
dest=${dest:-$ROOT/data/prepared/$name}
note="$text, $min_words to $max_words words"

if [[ -e $dest/prepared.json ]]; then
    if ! grep -qF "\"note\": \"$note\"," "$dest/prepared.json" ||
        ! grep -qF "\"vocab_size\": $vocab_size," "$dest/prepared.json"; then
        fail "$dest was made with other settings; remove it, or choose another folder with --dest."
    fi
    say "$dest is there already" >&2
    echo "$dest"
    exit 0
fi

if [[ -z $generated$packages ]] && ! command -v apt-get >/dev/null; then
    say "there is no apt here, so a grammar makes the text up instead" >&2
    exec bash "${BASH_SOURCE[0]}" --generated "${arguments[@]}"
fi
[[ -x $VENV/bin/lnplace ]] || set_up >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT TERM

download() {
    (cd "$scratch" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download libreoffice-help-{de,en-us})
}

if [[ -n $generated ]]; then
    from=(--generated 30000)
else
    command -v dpkg-deb >/dev/null || fail "dpkg-deb is not here; install dpkg, or use --generated."
    if [[ -n $packages ]]; then
        cp "$packages"/libreoffice-help-{de,en-us}_*.deb "$scratch" 2>/dev/null ||
            fail "$packages does not hold the packages libreoffice-help-de and libreoffice-help-en-us."
    else
        say "downloading LibreOffice's help in German and English (5 MB)" >&2
        # A fresh machine has no lists of packages yet, and only root may fetch them.
        download 2>/dev/null || { [[ $(id -u) -eq 0 ]] && apt-get -qq update && download; } >&2 ||
            fail "apt cannot download libreoffice-help-de and -en-us; run apt-get update as root, or use --generated."
    fi
    for package in "$scratch"/*.deb; do
        dpkg-deb -x "$package" "$scratch/unpacked" || fail "$(basename "$package") is not a whole package."
    done
    from=(--pages "$scratch/unpacked/usr/share/libreoffice/help")
fi

lnplace() { "$VENV/bin/lnplace" "$@" >&2; }
lnplace corpus "${from[@]}" --min-words "$min_words" --max-words "$max_words" --dest "$scratch/corpus"
lnplace prepare --source-lang de --target-lang en --vocab-size "$vocab_size" --note "$note" --dest "$dest" \
    --train "$scratch/corpus/train" --valid "$scratch/corpus/valid" --test "$scratch/corpus/test"
echo "$dest"
