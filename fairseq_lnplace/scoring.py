"""BLEU as people report it: sacreBLEU's on detokenised text, and the older papers' on Moses' words.

No score leaves this module without its signature. The two kinds differ by several points and must not be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics import BLEU, CHRF

from fairseq_lnplace.corpus.words import Words
from fairseq_lnplace.errors import LnplaceError

__all__ = ["looks_tokenised", "refuse_tokenised", "score", "score_words", "split_compounds"]

# Traces of a tokeniser: a comma or full stop that stands alone, Moses' escapes and its split hyphen. The signs that
# French sets apart (! ? : ;) are none.
_TOKENISED = re.compile(r"\s[.,](?:\s|$)|&(?:apos|quot|amp|lt|gt|#9[13]|#124);|\s@-@\s")
_PUNCTUATED = re.compile(r"[.,&]|@-@")


def looks_tokenised(lines: Sequence[str]) -> bool:
    """Return whether more than half of the lines with punctuation bear the marks of a tokeniser."""
    punctuated = [line for line in lines if _PUNCTUATED.search(line)]
    return 2 * sum(bool(_TOKENISED.search(line)) for line in punctuated) > len(punctuated)


def refuse_tokenised(references: Sequence[str]) -> None:
    """Raise an error where references are not raw text."""
    if looks_tokenised(references):
        raise LnplaceError(
            "References for sacreBLEU must be raw text, but these look tokenised, which raises the score"
        )


def _report(metric: BLEU | CHRF, hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    if len(hypotheses) != len(references):
        raise LnplaceError(f"There must be one reference a sentence, but {len(hypotheses)} have {len(references)}")
    scored = metric.corpus_score(hypotheses, [references])
    return {"score": scored.score, "signature": str(metric.get_signature()), "text": str(scored)}


def score(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> dict[str, Any]:
    """Return corpus BLEU and chrF (0 to 100) of detokenised text, with their signatures and their own reports.

    Args:
        lowercase: whether case is left out, as it must be where the hypotheses have none.

    Raises:
        LnplaceError: the numbers of lines differ, or the references look tokenised.
    """
    refuse_tokenised(references)
    metrics = {"bleu": BLEU(lowercase=lowercase), "chrf": CHRF(lowercase=lowercase)}
    return {name: _report(metric, hypotheses, references) for name, metric in metrics.items()}


def split_compounds(words: str) -> str:
    """Split words at hyphens, as tensor2tensor's ``get_ende_bleu.sh`` and fairseq's ``compound_split_bleu.sh`` do.

    ``well-known`` becomes ``well ##AT##-##AT## known``. Hyphens that Moses has split (``well @-@ known``) are joined
    before, or their ``@-@`` would be split once more.
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", words.replace(" @-@ ", "-"))


def score_words(
    hypotheses: Sequence[str], references: Sequence[str], words: Words, compound_split: bool = False
) -> dict[str, Any]:
    """Return corpus BLEU (0 to 100) of tokenised text: ``multi-bleu.perl``'s, and the one fairseq-generate prints.

    Args:
        hypotheses, references: words with spaces between them.
        words: how they were made of raw text; only for the record.
        compound_split: whether both sides are split at their hyphens, as papers on WMT14 En-De often do.

    Raises:
        LnplaceError: the numbers of lines differ.
    """
    if compound_split:
        hypotheses, references = list(map(split_compounds, hypotheses)), list(map(split_compounds, references))
    # Not smoothed, as the older scripts; `force` only keeps back a warning that the text is tokenised.
    report = _report(BLEU(tokenize="none", smooth_method="none", force=True), hypotheses, references)
    return {**report, "compound_split": compound_split, **words.record()}
