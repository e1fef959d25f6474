"""Beam search: what fairseq's ``SequenceGenerator`` finds, in less time.

fairseq builds its generator in ``FairseqTask.build_generator``. :func:`install` has it build the one here where nobody
asks for another class and every model is this package's. Searches of another kind (sampling, diverse, constrained, ...)
run through fairseq's own code.

Time is saved in five places: the first step has one row a sentence instead of one a hypothesis, finished sentences
leave the batch several at a time, log-probabilities stand where the logits stood, only promising words are compared,
and finished hypotheses are cut out together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import wraps
from operator import itemgetter
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from fairseq.search import BeamSearch
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import FairseqTask
from torch import Tensor

from fairseq_lnplace.errors import LnplaceError, must_be
from fairseq_lnplace.plugin.decoder import TransformerDecoder
from fairseq_lnplace.plugin.models.method import MethodModel

__all__ = ["BeamSearchGenerator", "best_continuations", "install"]

BLOCK = 64  # the number of words that best_continuations takes or leaves together
WORTH_BLOCKS = 100_000  # log-probabilities; of fewer they are all compared


class BeamSearchGenerator(SequenceGenerator):  # type: ignore[misc]
    """fairseq's generator, with its arguments and results."""

    def _generate(
        self,
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
        bos_token: int | None = None,
    ) -> list[list[dict[str, Tensor]]]:
        """Return the finished hypotheses of each sentence, the best first; see ``SequenceGenerator.generate``.

        Raises:
            LnplaceError: the smallest length is above the largest, or a sentence cannot end.
        """
        if constraints is None and self.is_plain(sample["net_input"]):
            return self.search_beam(sample, prefix_tokens, bos_token)
        return super()._generate(sample, prefix_tokens, constraints, bos_token)  # type: ignore[no-any-return]

    def search_beam(
        self, sample: dict[str, Any], prefix_tokens: Tensor | None, bos_token: int | None
    ) -> list[list[dict[str, Tensor]]]:
        """Return what :meth:`_generate` does, by plain beam search."""
        source, size = sample["net_input"]["src_tokens"], self.beam_size
        longest = min(int(self.max_len_a * source.size(1) + self.max_len_b), self.max_len - 1)
        if self.min_len > longest:
            raise must_be("--min-len", f"at most {longest}, the largest length", self.min_len)
        encoded = self.model.forward_encoder(sample["net_input"])
        states: list[dict[str, Any]] = [{} for _ in range(self.model.models_size)]
        first = source.new_full((source.size(0), 1), self.eos if bos_token is None else bos_token)
        beam = Beam(first, size, prefix_tokens)
        finished: list[list[tuple[float, dict[str, Tensor]]]] = [[] for _ in range(source.size(0))]
        for step in range(longest + 1):
            log_probs, attention = self.next_log_probs(beam.tokens, encoded, states)
            beam.see(attention)
            log_probs = self.allowed(log_probs, beam, step, longest)
            best = best_continuations(log_probs, beam.scores[:, -1], beam.sentences.numel(), 2 * size)
            is_end = best.words.eq(self.eos) & best.totals.ne(-math.inf)
            for sentence, score, hypothesis in self.endings(beam, best, is_end):
                finished[sentence].append((score, hypothesis))
            unfinished = beam.found < size
            if step == longest or not bool(unfinished.any()):
                break
            order = beam.advance(best, is_end, unfinished)
            self.model.reorder_incremental_state(states, order)
            if order.numel() != log_probs.size(0):  # else rows moved within their sentence
                encoded = self.model.reorder_encoder_out(encoded, order)
        if not all(finished):
            raise LnplaceError("Every sentence must be able to end, but the model gives the end of one no probability")
        return [[hypothesis for _, hypothesis in sorted(each, key=itemgetter(0), reverse=True)] for each in finished]

    def is_plain(self, net_input: dict[str, Any]) -> bool:
        """Return whether it is a beam search over text without fairseq's further rules."""
        further = (self.lm_model, self.repeat_ngram_blocker, self.token_indices_to_suppress)
        plain = type(self.search) is BeamSearch and all(rule is None for rule in further)
        return plain and not self.match_source_len and "src_tokens" in net_input

    def next_log_probs(
        self, tokens: Tensor, encoded: Sequence[Any] | None, states: Sequence[dict[str, Any]]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probabilities of the next word, R x V, of all models together, and the attention, R x S."""
        model = self.model.single_model
        if self.model.models_size > 1 or tokens.device.type != "cpu" or not has_plain_softmax(model):
            return self.model.forward_decoder(tokens, encoded, states, self.temperature)  # type: ignore[no-any-return]
        out, extra = model.decoder(tokens, encoder_out=encoded[0] if encoded else None, incremental_state=states[0])
        out = out if self.temperature == 1.0 else out.div_(self.temperature)
        if out.dtype == torch.float32:
            log_probs = torch.log_softmax(out, -1, out=out)  # a second matrix costs more than the softmax
        else:
            log_probs = model.get_normalized_probs((out, extra), log_probs=True, sample=None)
        attention = extra["attn"][0]
        return log_probs[:, -1], None if attention is None else attention[:, -1]

    def allowed(self, log_probs: Tensor, beam: Beam, step: int, longest: int) -> Tensor:
        """Return the log-probabilities, R x V, with -inf for what may not be next; changes the tensor in place."""
        not_a_number = log_probs[:, self.pad].isnan()  # then the row's others are, too
        if bool(not_a_number.any()):
            log_probs[not_a_number] = -math.inf
        log_probs[:, self.pad] = -math.inf
        if self.unk_penalty != 0:
            log_probs[:, self.unk] -= self.unk_penalty
        if step == longest:
            log_probs[:, : self.eos] = -math.inf
            log_probs[:, self.eos + 1 :] = -math.inf
        elif beam.prefix is not None and step < beam.prefix.size(1):
            log_probs, beam.tokens, beam.scores = self._prefix_tokens(
                step, log_probs, beam.scores, beam.tokens, beam.prefix, beam.width
            )
        elif step < self.min_len:
            log_probs[:, self.eos] = -math.inf
        return log_probs

    def endings(self, beam: Beam, best: Continuations, is_end: Tensor) -> list[tuple[int, float, dict[str, Tensor]]]:
        """Return the sentence, score and hypothesis of each that ends now, and count them.

        It has to be among a sentence's n best continuations, and a sentence takes n hypotheses.
        """
        size = self.beam_size
        ends = is_end[:, :size] & ~beam.idle
        if not bool(ends.any()):
            return []
        ends &= beam.found.unsqueeze(1) + ends.cumsum(1) <= size
        sentence, rank = ends.nonzero(as_tuple=True)
        beam.found += ends.sum(1)
        rows = sentence * beam.width + best.parents[sentence, rank]
        total = best.totals[sentence, rank]
        tokens = F.pad(beam.tokens[rows, 1:], (0, 1), value=self.eos)
        each = torch.cat([beam.scores[rows], total.unsqueeze(1)], 1).diff()
        if self.normalize_scores:
            total = total / tokens.size(1) ** self.len_penalty
        attention = torch.empty(len(rows), 0) if beam.attention is None else beam.attention[rows].transpose(1, 2)
        hypotheses = [
            {"tokens": t, "score": s, "attention": a, "alignment": torch.empty(0), "positional_scores": p}
            for t, s, a, p in zip(tokens, total, attention, each, strict=True)
        ]
        return list(zip(beam.sentences[sentence].tolist(), total.tolist(), hypotheses, strict=True))


class Beam:
    """The hypotheses of B sentences: one of each at the first step, then n; all together they are R rows.

    Args:
        first: B x 1, the symbol before the first word.
        size: n.
        prefix: B x P, the words to begin with.

    Attributes:
        sentences: B, the sentences' numbers.
        found: B, how many hypotheses of each have ended.
        idle: B x n, where there were too few continuations to fill the beam, and so one that has ended stands there.
        tokens: R x t, the symbols so far, with the first.
        scores: R x t, the sum of the log-probabilities up to each.
        attention: R x t x S, where the model gives it; in :meth:`see`, before the symbol that it leads to.
    """

    def __init__(self, first: Tensor, size: int, prefix: Tensor | None) -> None:
        self.size, self.prefix, self.tokens = size, prefix, first
        self.sentences = torch.arange(first.size(0), device=first.device)
        self.found = torch.zeros_like(self.sentences)
        self.idle = first.new_zeros(first.size(0), size, dtype=torch.bool)
        self.scores = first.new_zeros(first.size(0), 1, dtype=torch.float)
        self.attention: Tensor | None = None

    @property
    def width(self) -> int:
        """The number of rows of a sentence."""
        return self.tokens.size(0) // self.sentences.numel()

    def see(self, attention: Tensor | None) -> None:
        """Record the attention of the newest position, R x S."""
        if attention is not None:
            newest = attention.float().unsqueeze(1)
            self.attention = newest if self.attention is None else torch.cat([self.attention, newest], 1)

    def advance(self, best: Continuations, is_end: Tensor, unfinished: Tensor) -> Tensor:
        """Continue each sentence by its n best that do not end, and return the rows that they continue.

        Sentences that are finished may leave.
        """
        passed = is_end.clone()
        passed[:, : self.size] |= self.idle
        passed, chosen = (each[:, : self.size] for each in passed.byte().sort(dim=1, stable=True))
        rows = torch.arange(0, self.tokens.size(0), self.width, device=chosen.device).unsqueeze(1)
        rows = rows + best.parents.gather(1, chosen)
        words, totals, self.idle = best.words.gather(1, chosen), best.totals.gather(1, chosen), passed.bool()
        staying = self.staying(unfinished)
        if staying is not None:
            rows, words, totals, self.idle = (each[staying] for each in (rows, words, totals, self.idle))
            self.sentences, self.found = self.sentences[staying], self.found[staying]
            self.prefix = None if self.prefix is None else self.prefix[staying]
        order = rows.flatten()
        self.tokens = torch.cat([self.tokens.index_select(0, order), words.view(-1, 1)], 1)
        self.scores = torch.cat([self.scores.index_select(0, order), totals.view(-1, 1)], 1)
        if self.attention is not None:
            self.attention = self.attention.index_select(0, order)
        return order

    def staying(self, unfinished: Tensor) -> Tensor | None:
        """Return the sentences that stay, once an eighth may leave: that moves the others' caches."""
        staying = unfinished.nonzero().flatten()
        return None if 8 * len(staying) > 7 * len(unfinished) else staying


class Continuations(NamedTuple):
    """The best continuations of each sentence, the best first, each B x k.

    Attributes:
        totals: the sums of the log-probabilities.
        words: the next words.
        parents: the numbers of the hypotheses that they continue, from 0 in each sentence.
    """

    totals: Tensor
    words: Tensor
    parents: Tensor


def has_plain_softmax(model: Any) -> bool:
    """Return whether the decoder is ours, and the model's probabilities a softmax of what it returns."""
    methods = (type(model).get_normalized_probs, type(model).get_normalized_probs_scriptable)
    fairseqs = all(method.__module__.split(".")[0] == "fairseq" for method in methods)
    return fairseqs and type(model.decoder) is TransformerDecoder and model.decoder.adaptive_softmax is None


def best_continuations(log_probs: Tensor, scores: Tensor, sentences: int, count: int) -> Continuations:
    """Return the ``count`` best of each sentence, or all but one where there are fewer.

    The best k of many stand in the k blocks with the largest maxima, so that only these blocks are sorted.

    Args:
        log_probs: R x V.
        scores: R, of the hypotheses so far.
        sentences: B, which divides R.
        count: k.
    """
    rows, vocabulary = log_probs.shape
    count = min(count, rows // sentences * vocabulary - 1)
    whole, rest = vocabulary // BLOCK, vocabulary % BLOCK
    if whole < count or log_probs.numel() < WORTH_BLOCKS:
        totals, index = (log_probs + scores.unsqueeze(1)).view(sentences, -1).topk(count)
        return Continuations(totals, index % vocabulary, index // vocabulary)
    largest = log_probs[:, : whole * BLOCK].view(rows, whole, BLOCK).amax(2)
    if rest:
        largest = torch.cat([largest, log_probs[:, -rest:].amax(1, keepdim=True)], 1)
    block = (largest + scores.unsqueeze(1)).view(sentences, -1).topk(count)[1]  # B x k
    parents = block // largest.size(1)
    words = (block % largest.size(1) * BLOCK).unsqueeze(2) + torch.arange(BLOCK, device=block.device)  # B x k x BLOCK
    outside, words = words >= vocabulary, words.clamp(max=vocabulary - 1)
    row = torch.arange(0, rows, rows // sentences, device=block.device).unsqueeze(1) + parents
    place = (row * vocabulary).unsqueeze(2) + words
    found = log_probs.flatten().index_select(0, place.flatten()).view_as(place) + scores[row].unsqueeze(2)
    totals, index = found.masked_fill(outside, -math.inf).flatten(1).topk(count)
    return Continuations(totals, words.flatten(1).gather(1, index), parents.gather(1, index // BLOCK))


def install() -> None:
    """Have fairseq's tasks build the generator of this module for models of this package."""
    build = FairseqTask.build_generator

    @wraps(build)
    def build_generator(
        self: FairseqTask, models: Any, args: Any, seq_gen_cls: Any = None, *others: Any, **more: Any
    ) -> Any:
        ours = all(isinstance(model, MethodModel) for model in models)
        if seq_gen_cls is None and ours and not getattr(args, "print_alignment", False):
            seq_gen_cls = BeamSearchGenerator
        return build(self, models, args, seq_gen_cls, *others, **more)

    FairseqTask.build_generator = build_generator
