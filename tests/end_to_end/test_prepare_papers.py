"""The scripts that make the papers' data, on archives of our own with the real ones' names and layout."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from sacremoses import MosesTokenizer

ROOT = Path(__file__).parents[2]
TOY = {
    (split, language): (ROOT / f"data/toy/{split}.{language}").read_text(encoding="utf-8").splitlines()
    for split in ("train", "valid", "test")
    for language in ("de", "en")
}
IWSLT_SETS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (Path(sys.prefix) / "bin" / "lnplace").exists(), reason="lnplace is not installed"),
]


def script(name: str, *options: object, fails: bool = False) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LNPLACE_VENV": sys.prefix, "OMP_NUM_THREADS": "1"}
    command = ["bash", str(ROOT / "scripts" / f"{name}.sh"), *map(str, options)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode != 0) == fails, done.stderr
    assert "Traceback" not in done.stderr
    return done


def pack(path: Path, members: dict[str, str]) -> Path:
    """Write a .tgz with these files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, text in members.items():
            content = text.encode()
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def sgml(lines: list[str]) -> str:
    segments = (f'<seg id="{number}"> {line} </seg>' for number, line in enumerate(lines, 1))
    return "\n".join(["<refset>", '<doc docid="1">', *segments, "</doc>", "</refset>", ""])


def iwslt_files() -> dict[str, str]:
    files = {}
    for language in ("de", "en"):
        lines = ["<url>http://x</url>", "<talkid>1</talkid>", f"<title>{TOY['valid', language][0]}</title>"]
        files[f"de-en/train.tags.de-en.{language}"] = "\n".join([*lines, *TOY["train", language], ""])
        for number, name in enumerate(IWSLT_SETS):
            files[f"de-en/IWSLT14.{name}.de-en.{language}.xml"] = sgml(TOY["test", language][4 * number :][:4])
    return files


def wmt_files() -> dict[str, dict[str, str]]:
    archives: dict[str, dict[str, str]] = {
        "training-parallel-europarl-v7.tgz": {},
        "training-parallel-commoncrawl.tgz": {},
        "training-parallel-nc-v9.tgz": {},
        "dev.tgz": {},
        "test-full.tgz": {},
    }
    for language, kind in (("de", "ref"), ("en", "src")):
        lines = [[*TOY["train", language][part::3], ""] for part in range(3)]
        europarl, crawl, news = ("\n".join(part) for part in lines)
        archives["training-parallel-europarl-v7.tgz"][f"training/europarl-v7.de-en.{language}"] = europarl
        archives["training-parallel-commoncrawl.tgz"][f"commoncrawl.de-en.{language}"] = crawl
        archives["training-parallel-nc-v9.tgz"][f"training/news-commentary-v9.de-en.{language}"] = news
        archives["dev.tgz"][f"dev/newstest2013.{language}"] = "\n".join([*TOY["valid", language], ""])
        archives["test-full.tgz"][f"test-full/newstest2014-deen-{kind}.{language}.sgm"] = sgml(TOY["test", language])
    return archives


def test_iwslt14_downloads_continues_and_prepares(tmp_path: Path) -> None:
    archive = pack(tmp_path / "there.tgz", iwslt_files())
    downloads, dest = tmp_path / "down loads", tmp_path / "iwslt14.de-en"
    common = ["--downloads", downloads, "--vocab-size", 120, "--workers", 1]
    (downloads / "iwslt14.de-en").mkdir(parents=True)
    (downloads / "iwslt14.de-en" / "de-en.tgz.part").write_bytes(archive.read_bytes()[:500])  # of an earlier call
    rest = tmp_path / "rest.tgz"  # with the beginning that an earlier call has already downloaded left blank
    rest.write_bytes(bytes(500) + archive.read_bytes()[500:])
    urls = ["--url", f"file://{tmp_path}/gone.tgz", "--url", f"file://{rest}"]
    done = script("prepare_iwslt14_de_en", *common, "--dest", dest, *urls)
    assert done.stdout == f"{dest}\n"
    assert (downloads / "iwslt14.de-en" / "de-en.tgz").read_bytes() == archive.read_bytes()
    assert hashlib.sha256(archive.read_bytes()).hexdigest() in done.stderr
    assert "not the usual counts: 441 instead of 160,239 train pairs, 20 instead of 7,283 valid pairs" in done.stderr

    manifest = json.loads((dest / "prepared.json").read_text())
    assert manifest["note"] == "IWSLT14 German-English, Moses, lower-cased"
    assert {split: counts["pairs"] for split, counts in manifest["counts"].items()} == {
        "train": 441,
        "valid": 20,
        "test": 20,
    }
    assert (dest / "raw" / "test.en").read_text(encoding="utf-8").splitlines() == TOY["test", "en"]
    moses = MosesTokenizer("en")
    expected = [moses.tokenize(line, return_str=True).lower() for line in TOY["test", "en"]]
    assert (dest / "tokenised" / "test.en").read_text(encoding="utf-8").splitlines() == expected
    assert sorted(path.name for path in (downloads / "iwslt14.de-en").iterdir())[0] == "de-en.tgz"
    assert len(list((downloads / "iwslt14.de-en").iterdir())) == 2, "the archive and the text"

    assert "is there already" in script("prepare_iwslt14_de_en", *common, "--dest", dest).stderr
    other = script("prepare_iwslt14_de_en", *common, "--dest", dest, "--variant", "sentencepiece", fails=True)
    assert "was made with other settings" in other.stderr
    raw = tmp_path / "raw"
    script("prepare_iwslt14_de_en", *common, "--dest", raw, "--variant", "sentencepiece", "--archive", archive)
    for name in ("train.de", "test.en"):  # the same pairs in both variants
        assert (raw / "raw" / name).read_bytes() == (dest / "raw" / name).read_bytes()
    assert not (raw / "tokenised").exists()


def test_iwslt14_refuses_in_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    archive = pack(tmp_path / "whole.tgz", iwslt_files())
    cut = tmp_path / "cut.tgz"
    cut.write_bytes(archive.read_bytes()[:-100])
    lacking, uneven = iwslt_files(), iwslt_files()
    del lacking["de-en/IWSLT14.TED.tst2011.de-en.en.xml"]
    uneven["de-en/train.tags.de-en.en"] += "One more.\n"
    options = ["--downloads", tmp_path / "downloads", "--dest", tmp_path / "dest"]
    for more, message in (
        (["--archive", cut], "cut.tgz is not a whole archive"),
        (["--archive", tmp_path / "none.tgz"], "none.tgz is not there"),
        (["--archive", archive, "--sha256", "0" * 64], "must be 000"),
        (["--archive", pack(tmp_path / "lacking.tgz", lacking)], "IWSLT14.TED.tst2011.de-en.en.xml is missing"),
        (["--archive", pack(tmp_path / "uneven.tgz", uneven)], "train.tags.de-en.de has only 461"),
        (["--url", f"file://{cut}"], "de-en.tgz could not be downloaded"),
        (["--archiv", archive], "--archiv is not one of the options"),
        (["--variant", "words"], "--variant must be moses or sentencepiece"),
    ):
        done = script("prepare_iwslt14_de_en", *options, *more, fails=True)
        assert message in done.stderr.splitlines()[-1]
        assert not (tmp_path / "dest").exists()
        left = [path for path in (tmp_path / "downloads").rglob("*") if path.is_file()]
        assert left == []


def test_wmt14_prepares_and_drops_by_pieces(tmp_path: Path) -> None:
    archives = [pack(tmp_path / name, files) for name, files in wmt_files().items()]
    options = ["--downloads", tmp_path / "downloads", "--vocab-size", 120, "--workers", 1]
    dest = tmp_path / "wmt14.en-de"
    given = [word for archive in archives[:3] for word in ("--archive", archive)]
    done = script("prepare_wmt14_en_de", *options, "--dest", dest, *given, "--mirror", f"file://{tmp_path}")
    manifest = json.loads((dest / "prepared.json").read_text())
    assert manifest["note"] == "WMT14 English-German, News Commentary v9, valid newstest2013, Moses, hyphens split"
    assert (manifest["source_lang"], manifest["target_lang"]) == ("en", "de")
    train = manifest["counts"]["train"]
    assert train["pairs"] + train.get("dropped", 0) == 460
    assert "not the usual counts: 20 instead of 3,000 valid pairs, 20 instead of 3,003 test pairs" in done.stderr
    assert (dest / "raw" / "test.de").read_text(encoding="utf-8").splitlines() == TOY["test", "de"]
    assert (dest / "raw" / "valid.en").read_text(encoding="utf-8").splitlines() == TOY["valid", "en"]

    split = tmp_path / "split"
    sums = tmp_path / "sums"
    sums.write_text("".join(f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in archives))
    options += ["--valid", "split", "--sha256", sums, *(word for each in archives for word in ("--archive", each))]
    script("prepare_wmt14_en_de", *options, "--dest", split, "--variant", "sentencepiece")
    assert json.loads((split / "prepared.json").read_text())["counts"]["valid"]["pairs"] == 4

    sums.write_text(f"{'0' * 64}  dev.tgz\n")
    done = script("prepare_wmt14_en_de", *options, "--dest", tmp_path / "no", fails=True)
    assert "the SHA-256 of" in done.stderr.splitlines()[-1]
    done = script("prepare_wmt14_en_de", "--archive", sums, "--dest", tmp_path / "no", fails=True)
    assert "sums is none of the archives" in done.stderr
