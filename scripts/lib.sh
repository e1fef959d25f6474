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

# lnplace ARGUMENTS... — this environment's command, whose words go to stderr: a script's stdout is for its result.
lnplace() { "$VENV/bin/lnplace" "$@" >&2; }

# choose_variant V WORDS OPTIONS... — how text becomes pieces, for V moses or sentencepiece: $encoding are the options of
# lnplace prepare, $how are words for its --note, and $suffix is one for a folder's name. WORDS and OPTIONS tell what is
# done beside moses.
# shellcheck disable=SC2034 # the sourcing scripts use them
choose_variant() {
    case $1 in
        sentencepiece) encoding=(--bpe sentencepiece) how='' suffix='' ;;
        moses) encoding=(--bpe subword_nmt --tokeniser moses "${@:3}") how=", Moses, $2" suffix=-moses ;;
        *) fail "--variant must be moses or sentencepiece, but is $1." ;;
    esac
}

# already_made DEST LINES... — whether DEST is whole. Where it holds something else, or its prepared.json lacks one of the
# LINES, the script ends.
already_made() {
    local dest=$1 line
    shift
    if [[ ! -e $dest/prepared.json ]]; then
        [[ ! -e $dest || -z $(ls -A "$dest") ]] || fail "$dest holds something else; choose another folder with --dest."
        return 1
    fi
    for line in "$@"; do
        grep -qF -- "$line" "$dest/prepared.json" ||
            fail "$dest was made with other settings; remove it, or choose another folder with --dest."
    done
    say "$dest is there already" >&2
}

# scratch_folder [PARENT] — make a folder that goes when the script ends, however it ends; $scratch is its path.
scratch_folder() {
    scratch=$(mktemp -d "${1:-${TMPDIR:-/tmp}}/$SCRIPT.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 130' INT TERM
}

# whole FILE — whether an archive has no fault; of plain text nobody can tell, but that there is some.
whole() {
    case ${1%.part} in
        *.zip) "$VENV/bin/python" -c 'import sys, zipfile; sys.exit(zipfile.ZipFile(sys.argv[1]).testzip())' "$1" 2>/dev/null ;;
        *.txt | *.tsv) [[ -s $1 ]] ;;
        *) gzip --test "$1" 2>/dev/null ;;
    esac
}

# fetch URL FILE — download, going on where an earlier call stopped if the server can.
fetch() {
    local options=(--fail --location --connect-timeout 30 --speed-limit 1000 --speed-time 60 --retry 3 --output "$2") status=0
    if [[ -t 2 ]]; then options+=(--progress-bar); else options+=(--silent --show-error); fi
    curl "${options[@]}" --continue-at - "$1" >&2 || status=$?
    if [[ $status -eq 33 ]]; then # it cannot
        rm -f "$2" && curl "${options[@]}" "$1" >&2 && status=0
    fi
    return "$status"
}

# download FILE URLS... — get an archive from the first of the URLS that gives it. FILE.part holds what has come so far.
download() {
    local file=$1 url fetched
    shift
    [[ ! -e $file ]] || return 0
    command -v curl >/dev/null || fail "curl is not here; install it, or give $(basename "$file") with --archive."
    for url in "$@"; do
        say "downloading $url" >&2
        if fetch "$url" "$file.part"; then fetched=yes; else fetched=''; fi
        if whole "$file.part"; then
            mv "$file.part" "$file"
            return
        elif [[ -n $fetched ]]; then
            say "what came from there is damaged" >&2
            rm -f "$file.part"
        fi
    done
    fail "$(basename "$file") could not be downloaded; give it with --archive, or name another place with --url."
}

# check_archive FILE [SHA256] — end the script unless FILE is a whole archive, with that sum; $sum is the one that it has.
check_archive() {
    [[ -f $1 ]] || fail "$1 is not there."
    whole "$1" || fail "$1 is not a whole archive."
    sum=$(sha256sum <"$1") sum=${sum%% *}
    [[ -z ${2:-} || $2 == "$sum" ]] || fail "the SHA-256 of $1 must be $2, but is $sum."
    say "$(basename "$1") has the SHA-256 $sum" >&2
}

# unpack FILES... — into $scratch/unpacked; plain text is copied there.
unpack() {
    local file dest=$scratch/unpacked
    mkdir "$dest"
    for file in "$@"; do
        case $file in
            *.zip) "$VENV/bin/python" -m zipfile --extract "$file" "$dest" ;;
            *.txt | *.tsv) cp "$file" "$dest" ;;
            *) tar --extract --gzip --file "$file" --directory "$dest" ;;
        esac 2>/dev/null || fail "$file is not there, or not a whole archive."
    done
}

# help_pages PACKAGES — LibreOffice's help in German and English, out of two Debian packages, unpacked in $scratch/help.
# They are taken from the folder PACKAGES, or downloaded (5 MB) where that is empty.
help_pages() {
    local packages=$1 package
    command -v dpkg-deb >/dev/null || fail "dpkg-deb is not here; install dpkg."
    if [[ -n $packages ]]; then
        cp "$packages"/libreoffice-help-{de,en-us}_*.deb "$scratch" 2>/dev/null ||
            fail "$packages does not hold the packages libreoffice-help-de and libreoffice-help-en-us."
    else
        command -v apt-get >/dev/null || fail "apt-get is not here; give the packages with --packages."
        say "downloading LibreOffice's help in German and English (5 MB)" >&2
        # A fresh machine has no lists of packages yet, and only root may fetch them.
        download_help 2>/dev/null || { [[ $(id -u) -eq 0 ]] && apt-get -qq update && download_help; } >&2 ||
            fail "apt cannot download libreoffice-help-de and -en-us; run apt-get update as root, or give them with --packages."
    fi
    for package in "$scratch"/*.deb; do
        dpkg-deb -x "$package" "$scratch/unpacked" || fail "$(basename "$package") is not a whole package."
    done
    mv "$scratch/unpacked/usr/share/libreoffice/help" "$scratch/help" || fail "the packages hold no help pages."
}

download_help() {
    (cd "$scratch" && apt-get -qq -o APT::Sandbox::User="$(id -un)" download libreoffice-help-{de,en-us})
}
