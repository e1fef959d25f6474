"""BLEU of fairseq's own C++, as an oracle."""

from fairseq.data import Dictionary
from fairseq.scoring.bleu import BleuConfig, Scorer


def fairseq_bleu(hypotheses: list[str], references: list[str]) -> float:
    """Return BLEU as fairseq-generate counts and prints it: its own C++, on words."""
    symbols = Dictionary()
    scorer = Scorer(BleuConfig(pad=symbols.pad(), eos=symbols.eos(), unk=symbols.unk()))
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer.add(*(symbols.encode_line(line, append_eos=False).int() for line in (reference, hypothesis)))
    return float(scorer.score())
