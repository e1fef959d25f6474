"""Debian packages with the names and the layout of LibreOffice's help, for tests."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

PAGE = "<html><body><div id='DisplayArea'>{}</div></body></html>"


def build_packages(folder: Path, pages: Mapping[str, Mapping[str, list[str]]]) -> Path:
    """Make both packages in a folder, from the sentences of each page by language ("de" and "en"), and return it."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not here")
    for language, package, name in (("de", "de", "de"), ("en", "en-us", "en-US")):
        build = folder / package
        for page, sentences in pages.items():
            body = "".join(f"<p id='par_id{i}'>{line}</p>" for i, line in enumerate(sentences[language]))
            path = build / "usr/share/libreoffice/help" / name / "text" / f"{page}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PAGE.format(body), encoding="utf-8")
        (build / "DEBIAN").mkdir()
        (build / "DEBIAN" / "control").write_text(
            f"Package: libreoffice-help-{package}\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: none\n"
        )
        target = folder / f"libreoffice-help-{package}_1_all.deb"
        subprocess.run(["dpkg-deb", "--build", build, target], check=True, capture_output=True)
    return folder
