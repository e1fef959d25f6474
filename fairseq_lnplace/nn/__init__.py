"""Transformers with normalisation where a placement puts it, for any PyTorch code; nothing of fairseq is needed.

The conventions are those of ``torch.nn.Transformer``, batch-first: a mask is True where a query may not attend to a
key or a position is padding, or is added to the scores. The modules' own weights have fairseq's names.

>>> model = LanguageModel(vocab_size=1000, d_model=64, nhead=4, num_layers=12, placement="deepnorm")
>>> logits = model(torch.randint(1000, (8, 20)))  # B x T x V
"""

from fairseq_lnplace.layers.streams import Streams
from fairseq_lnplace.nn.cache import Cache
from fairseq_lnplace.nn.language_model import LanguageModel
from fairseq_lnplace.nn.layers import DecoderLayer, EncoderLayer
from fairseq_lnplace.nn.stacks import Decoder, Encoder
from fairseq_lnplace.nn.transformer import Transformer
from fairseq_lnplace.nn.updates import count_updates, set_num_updates
from fairseq_lnplace.nn.weights import load_weights

__all__ = [
    "Cache",
    "Decoder",
    "DecoderLayer",
    "Encoder",
    "EncoderLayer",
    "LanguageModel",
    "Streams",
    "Transformer",
    "count_updates",
    "load_weights",
    "set_num_updates",
]
