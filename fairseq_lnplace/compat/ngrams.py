"""`--no-repeat-ngram-size` does nothing in fairseq 0.12.2 without its CUDA extension, which the released one lacks.

The search hands over hypotheses with room for the longest translation, and what must not be repeated is looked for at
the end of that room; single words are not looked for at all. Can go when fairseq looks at the end of the words.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

__all__ = ["look_at_the_words"]


def look_at_the_words(module: ModuleType, execute: Callable[[ModuleType], None]) -> None:
    """Execute the module and let its rule see the words so far, where it does not find them by itself."""
    execute(module)
    if not _finds_repetitions(module.NGramRepeatBlock):
        module.NGramRepeatBlock.forward = _forward


def _finds_repetitions(rule: Any) -> bool:
    """Return whether after "5 6 5", with room for more, another 6 is out of the question."""
    import torch

    words = torch.tensor([[5, 6, 5, 0, 0]])
    return bool(rule(2, use_extension=False)(words, torch.zeros(1, 7), 1, 1, 2)[0, 6].isinf())


def _forward(self, tokens, lprobs, bsz: int, beam_size: int, step: int):  # type: ignore[no-untyped-def]
    """Return the log-probabilities with -inf for words that would repeat an n-gram; TorchScript reads it, too."""
    if self.use_extension:
        return self.call_cuda_extension(tokens, lprobs, bsz, beam_size, step)
    if self.no_repeat_ngram_size == 1:
        return lprobs.scatter_(1, tokens[:, 1 : step + 1], float("-inf"))
    return self._no_repeat_ngram(tokens[:, : step + 1], lprobs, bsz, beam_size, step)
