"""What the end-to-end tests train on."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_lnplace.corpus.prepare import Settings, prepare

TOY = Path(__file__).parents[2] / "data" / "toy"


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus, prepared; not to be changed."""
    dest = tmp_path_factory.mktemp("prepared") / "toy"
    splits = {split: str(TOY / split) for split in ("train", "valid", "test")}
    prepare(Settings(source_lang="de", target_lang="en", vocab_size=200, note="synthetic", **splits), dest)
    return dest
