"""With the weights of Hugging Face's BERT, BART and GPT-2, random ones, `fairseq_lnplace.nn` computes the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import fairseq_lnplace.nn as lnn

transformers = pytest.importorskip("transformers")

from transformers.models.bart.modeling_bart import (  # noqa: E402
    BartDecoder,
    BartDecoderLayer,
    BartEncoder,
    BartEncoderLayer,
)
from transformers.models.bert.modeling_bert import BertEncoder, BertLayer  # noqa: E402
from transformers.models.gpt2.modeling_gpt2 import GPT2Block, GPT2Model  # noqa: E402
from transformers.models.mbart.modeling_mbart import MBartEncoderLayer  # noqa: E402
from transformers.models.openai.modeling_openai import Block as GPT1Block  # noqa: E402

WIDTH, HIDDEN, HEADS, LAYERS = 8, 12, 2, 3
ROWS, LENGTH, MEMORY = 3, 5, 4
GELU_NEW = partial(F.gelu, approximate="tanh")
EAGER = {"attn_implementation": "eager"}
BERT = transformers.BertConfig(
    hidden_size=WIDTH,
    intermediate_size=HIDDEN,
    num_attention_heads=HEADS,
    num_hidden_layers=LAYERS,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    **EAGER,
)
BART = transformers.BartConfig(
    d_model=WIDTH,
    vocab_size=20,
    encoder_ffn_dim=HIDDEN,
    decoder_ffn_dim=HIDDEN,
    encoder_attention_heads=HEADS,
    decoder_attention_heads=HEADS,
    encoder_layers=LAYERS,
    decoder_layers=LAYERS,
    dropout=0.0,
    **EAGER,
)
GPT2 = transformers.GPT2Config(
    n_embd=WIDTH,
    n_inner=HIDDEN,
    n_head=HEADS,
    n_layer=LAYERS,
    vocab_size=20,
    n_positions=16,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
    **EAGER,
)
SETTINGS: dict[str, Any] = {"dim_feedforward": HIDDEN, "dropout": 0.0, "dtype": torch.float64}
OF_BERT = {"placement": "postln", "activation": "gelu", "layer_norm_eps": 1e-12, **SETTINGS}
OF_BART = {"placement": "postln", "activation": "gelu", **SETTINGS}
OF_GPT2 = {"placement": "preln_final", "activation": GELU_NEW, **SETTINGS}


def random(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(module: nn.Module) -> nn.Module:
    """Give every parameter, norms and biases too, a value that is not its start; in float64."""
    module.double()
    with torch.no_grad():
        for seed, (name, parameter) in enumerate(module.named_parameters()):
            is_norm = any(part in name.lower() for part in ("norm", "ln_")) and name.endswith("weight")
            parameter.copy_(0.4 * random(*parameter.shape, seed=seed) + float(is_norm))
    return module


def hidden(padding: Tensor, queries: int, causal: bool = False) -> Tensor:
    """Return their mask, which is added to the scores."""
    hides = padding[:, None, None].expand(-1, 1, queries, -1)
    if causal:
        hides = hides | torch.ones(queries, queries, dtype=torch.bool).triu(1)
    return torch.zeros(hides.shape, dtype=torch.float64).masked_fill(hides, torch.finfo(torch.float64).min)


def padded(length: int) -> Tensor:
    return torch.arange(length) >= length - torch.arange(ROWS)[:, None]


def assert_equal(
    ours: Callable[..., Tensor], theirs: Callable[..., Tensor], *inputs: Tensor, real: Tensor | None = None
) -> None:
    """Assert equal outputs, at ``real`` positions, and equal gradients of the inputs."""
    results = []
    for run in ours, theirs:
        own = [each.clone().requires_grad_() for each in inputs]
        output = run(*own)
        output = output if real is None else output[real]
        (output * random(*output.shape, seed=9)).sum().backward()
        results.append([output.detach(), *(each.grad for each in own)])
    for got, expected in zip(*results, strict=True):
        assert_close(got, expected, rtol=1e-11, atol=1e-11)


X, MEMORY_X = random(ROWS, LENGTH, WIDTH, seed=3), random(ROWS, MEMORY, WIDTH, seed=4)
PADDING, MEMORY_PADDING = padded(LENGTH), padded(MEMORY)


def first(output: Any) -> Tensor:
    """Return the hidden states, which some versions give in a tuple."""
    return output if isinstance(output, Tensor) else output[0]


def test_bert_layer_and_encoder() -> None:
    mask = hidden(PADDING, LENGTH)
    layer, encoder = filled(BertLayer(BERT)), filled(BertEncoder(BERT))
    ours = lnn.EncoderLayer(WIDTH, HEADS, **OF_BERT)
    lnn.load_weights(ours, layer)
    assert_equal(partial(ours, key_padding_mask=PADDING), lambda x: first(layer(x, attention_mask=mask)), X)
    stack = lnn.Encoder(WIDTH, HEADS, LAYERS, **OF_BERT)
    lnn.load_weights(stack, encoder)
    assert_equal(partial(stack, key_padding_mask=PADDING), lambda x: first(encoder(x, attention_mask=mask)), X)


def test_bert_as_a_decoder() -> None:
    config = transformers.BertConfig(**{**BERT.to_dict(), "is_decoder": True, "add_cross_attention": True})
    config._attn_implementation = "eager"
    layer = filled(BertLayer(config))
    ours = lnn.DecoderLayer(WIDTH, HEADS, **OF_BERT)
    lnn.load_weights(ours, layer)
    of_self, of_memory = hidden(PADDING, LENGTH, causal=True), hidden(MEMORY_PADDING, LENGTH)

    def theirs(x: Tensor, memory: Tensor) -> Tensor:
        given = {"encoder_hidden_states": memory, "encoder_attention_mask": of_memory}
        return first(layer(x, attention_mask=of_self, **given))

    masks = {"key_padding_mask": PADDING, "memory_key_padding_mask": MEMORY_PADDING}
    assert_equal(lambda x, memory: ours(x, memory, **masks), theirs, X, MEMORY_X)


def test_bart_layers() -> None:
    layer = filled(BartEncoderLayer(BART))
    ours = lnn.EncoderLayer(WIDTH, HEADS, **OF_BART)
    lnn.load_weights(ours, layer)
    mask = hidden(PADDING, LENGTH)
    assert_equal(partial(ours, key_padding_mask=PADDING), lambda x: first(layer(x, mask)), X)

    below = filled(BartDecoderLayer(BART))
    decoder = lnn.DecoderLayer(WIDTH, HEADS, **OF_BART)
    lnn.load_weights(decoder, below)
    of_self, of_memory = hidden(PADDING, LENGTH, causal=True), hidden(MEMORY_PADDING, LENGTH)

    def theirs(x: Tensor, memory: Tensor) -> Tensor:
        given = {"encoder_hidden_states": memory, "encoder_attention_mask": of_memory}
        return first(below(x, attention_mask=of_self, **given))

    masks = {"key_padding_mask": PADDING, "memory_key_padding_mask": MEMORY_PADDING}
    assert_equal(lambda x, memory: decoder(x, memory, **masks), theirs, X, MEMORY_X)


def test_bart_stacks() -> None:
    """Theirs have a norm on their embeddings, which stands before our stacks."""
    encoder, decoder = filled(BartEncoder(BART)).eval(), filled(BartDecoder(BART)).eval()
    ours, ours_below = (cls(WIDTH, HEADS, LAYERS, **OF_BART) for cls in (lnn.Encoder, lnn.Decoder))
    lnn.load_weights(ours, encoder)
    lnn.load_weights(ours_below, decoder)
    real, real_memory = (~PADDING).long(), (~MEMORY_PADDING).long()

    def embedded(model: nn.Module, x: Tensor) -> Tensor:
        positions = model.embed_positions(x[:, :, 0], 0)
        return model.layernorm_embedding(x + positions.to(x))  # type: ignore[no-any-return]

    assert_equal(
        lambda x: ours(embedded(encoder, x), key_padding_mask=PADDING),
        lambda x: encoder(inputs_embeds=x, attention_mask=real).last_hidden_state,
        X,
        real=~PADDING,
    )
    assert_equal(
        lambda x, memory: ours_below(
            embedded(decoder, x), memory, key_padding_mask=PADDING, memory_key_padding_mask=MEMORY_PADDING
        ),
        lambda x, memory: (
            decoder(
                inputs_embeds=x,
                attention_mask=real,
                encoder_hidden_states=memory,
                encoder_attention_mask=real_memory,
                use_cache=False,
            ).last_hidden_state
        ),
        X,
        MEMORY_X,
        real=~PADDING,
    )


def test_gpt2_block() -> None:
    block = filled(GPT2Block(GPT2))
    mask = hidden(PADDING, LENGTH, causal=True)
    for placement in ("preln", "preln_final"):  # a layer has no final norm
        ours = lnn.DecoderLayer(WIDTH, HEADS, encoder_layers=0, **{**OF_GPT2, "placement": placement})
        lnn.load_weights(ours, block)
        assert_equal(partial(ours, key_padding_mask=PADDING), lambda x: first(block(x, attention_mask=mask)), X)


@pytest.mark.parametrize("eps", [1e-5, 1e-2])
def test_gpt2_stack(eps: float) -> None:
    """All of it: the layers, and the final norm with its own epsilon."""
    config = transformers.GPT2Config(**{**GPT2.to_dict(), "layer_norm_epsilon": eps})
    config._attn_implementation = "eager"
    model = filled(GPT2Model(config))
    ours = lnn.Decoder(WIDTH, HEADS, LAYERS, encoder_layers=0, layer_norm_eps=eps, **OF_GPT2)
    lnn.load_weights(ours, model)
    positions = model.wpe(torch.arange(LENGTH))
    real = (~PADDING).long()
    assert_equal(
        lambda x: ours(x + positions, key_padding_mask=PADDING),
        lambda x: model(inputs_embeds=x, attention_mask=real, use_cache=False).last_hidden_state,
        X,
        real=~PADDING,
    )
    steps, cache = [], None
    for position in range(LENGTH):
        output, cache = ours.step((X + positions)[:, position : position + 1], cache)
        steps.append(output)
    assert_close(torch.cat(steps, 1), model(inputs_embeds=X).last_hidden_state, rtol=1e-11, atol=1e-11)


def test_what_has_the_same_names_and_its_norms_elsewhere_is_refused() -> None:
    """mBART is Pre-LN with BART's names, GPT-1 Post-LN with GPT-2's; a cross-attention of GPT-2 has no place here."""
    bart = lnn.EncoderLayer(WIDTH, HEADS, **OF_BART)
    gpt2 = lnn.DecoderLayer(WIDTH, HEADS, encoder_layers=0, **OF_GPT2)
    sizes = {**BART.to_dict(), "scale_embedding": False}
    mbart = MBartEncoderLayer(transformers.MBartConfig(**{k: v for k, v in sizes.items() if k != "model_type"}))
    gpt1 = GPT1Block(16, transformers.OpenAIGPTConfig(n_embd=WIDTH, n_head=HEADS, n_positions=16))
    for ours, theirs in ((bart, mbart), (gpt2, gpt1)):
        with pytest.raises(ValueError, match=r"^`source` must be a layer of torch\.nn, BERT, BART or GPT-2, but is a"):
            lnn.load_weights(ours, theirs)
    crossed = transformers.GPT2Config(**{**GPT2.to_dict(), "add_cross_attention": True})
    with pytest.raises(ValueError, match=r"must be left out, but is of shape"):
        lnn.load_weights(gpt2, GPT2Block(crossed, layer_idx=0))
    with pytest.raises(ValueError, match=r"^`layer_norm_eps` must be 1e-12, as the source's, but is 1e-05"):
        lnn.load_weights(lnn.EncoderLayer(WIDTH, HEADS, **OF_BART), BertLayer(BERT))
    with pytest.raises(
        ValueError, match=r"^`placement` must be preln_final or preln for Hugging Face's GPT-2's layers"
    ):
        lnn.load_weights(bart, GPT2Block(GPT2))
