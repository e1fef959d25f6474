"""Every option that stock's `--arch transformer` takes works as there, or is refused in one sentence."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion
from fairseq.criterions.label_smoothed_cross_entropy_with_alignment import (
    LabelSmoothedCrossEntropyCriterionWithAlignment,
)
from fairseq.data import Dictionary
from fairseq.dataclass.configs import EMAConfig
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.models import build_model
from fairseq.models.ema.ema import EMA
from helpers import arguments, batch, dictionary, fill_in, stock_model, tiny_model, tiny_task
from torch import Tensor, nn

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.layers.quant_noise import NoisyLinear

STOCK = {"postln": False, "preln_final": True}

AS_STOCK: list[dict[str, Any]] = [
    {"share_all_embeddings": True},
    {"share_decoder_input_output_embed": True},
    {"adaptive_softmax_cutoff": "4,8"},
    {"adaptive_softmax_cutoff": "8,16", "adaptive_softmax_factor": 2, "tie_adaptive_proj": True},
    {"adaptive_softmax_cutoff": "4", "decoder_output_dim": 6, "share_all_embeddings": True},
    {"adaptive_input": True},
    {"encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5},
    {"checkpoint_activations": True},
    {"offload_activations": True},
    {"layernorm_embedding": True},
    {"no_cross_attention": True},
    {"cross_self_attention": True},
    {"cross_self_attention": True, "no_cross_attention": True},
    {"encoder_learned_pos": True, "decoder_learned_pos": True},
    {"encoder_learned_pos": True, "max_source_positions": 16, "max_target_positions": 20},
    {"no_token_positional_embeddings": True},
    {"no_scale_embedding": True},
    {"decoder_output_dim": 6},
    {"encoder_embed_dim": 12},
    {"decoder_embed_dim": 12, "decoder_ffn_embed_dim": 20},
    {"decoder_attention_heads": 4, "encoder_attention_heads": 1},
    {"encoder_layers": 1, "decoder_layers": 4},
    {"encoder_layers": 4, "decoder_layers": 1},
    {"activation_fn": "gelu"},
    {"activation_fn": "tanh"},
    {"export": True},
    {"min_params_to_wrap": 1},
]

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tie_adaptive_weights": True}, "`--tie-adaptive-weights` must be left out"),
    ({"adaptive_softmax_cutoff": "4,100"}, "`--adaptive-softmax-cutoff` must be increasing numbers up to 16"),
    ({"adaptive_softmax_cutoff": "8,4"}, "`--adaptive-softmax-cutoff` must be increasing numbers up to 16"),
    ({"decoder_output_dim": 6, "share_all_embeddings": True}, "`--decoder-output-dim` must be 8 to share"),
    ({"decoder_output_dim": 6, "share_decoder_input_output_embed": True}, "`--decoder-output-dim` must be 8 to share"),
    ({"decoder_input_dim": 6}, "`--decoder-input-dim` must be 8"),
    ({"encoder_embed_dim": 12, "share_all_embeddings": True}, "`--decoder-embed-dim` must be 12 to share"),
    ({"encoder_embed_dim": 12, "cross_self_attention": True}, "`--decoder-embed-dim` must be 12 for --cross-self"),
    ({"encoder_layers_to_keep": "3"}, "`--encoder-layers-to-keep` must be different comma-separated numbers below 3"),
    ({"decoder_layers_to_keep": "0,0"}, "`--decoder-layers-to-keep` must be different comma-separated numbers below 2"),
    ({"decoder_layers_to_keep": "a"}, "`--decoder-layers-to-keep` must be different comma-separated numbers below 2"),
    ({"quant_noise_pq": 0.1, "quant_noise_pq_block_size": 5}, "`--quant-noise-pq-block-size` must be a divisor of"),
    ({"quant_noise_pq": 1, "quant_noise_pq_block_size": 4}, "`--quant-noise-pq` must be at least 0 and below 1"),
    ({"no_decoder_final_norm": True}, "`--no-decoder-final-norm` must be left out"),
    ({"char_inputs": True}, "`--char-inputs` must be left out"),
    ({"base_layers": 1}, "`--base-layers` must be 0"),
    (
        {"norm_type": "batchnorm", "offload_activations": True},
        "`--checkpoint-activations` must be left out with --norm",
    ),
    ({"encoder_xformers_att_config": "{}"}, "`--encoder-xformers-att-config` must be left out"),
    ({"encoder_attention_heads": 3}, "`--encoder-attention-heads` must be a divisor of 8, but is 3"),
    ({"decoder_attention_heads": 0}, "`--decoder-attention-heads` must be at least 1, but is 0"),
    ({"encoder_layers": 0}, "`--encoder-layers` must be at least 1, but is 0"),
    ({"decoder_layers": -1}, "`--decoder-layers` must be at least 1, but is -1"),
    ({"dropout": 1.5}, "`--dropout` must be between 0 and 1, but is 1.5"),
    ({"attention_dropout": -0.1}, "`--attention-dropout` must be between 0 and 1, but is -0.1"),
    (
        {"norm_type": "batchnorm", "encoder_layerdrop": 0.5},
        "`--encoder-layerdrop` must be 0 with --norm-type batchnorm, whose ranks wait for each other",
    ),
    ({"encoder_layerdrop": 2}, "`--encoder-layerdrop` must be between 0 and 1, but is 2.0"),
    ({"max_target_positions": 0}, "`--max-target-positions` must be at least 1, but is 0"),
    ({"decoder_output_dim": 0}, "`--decoder-output-dim` must be at least 1, but is 0"),
    ({"encoder_embed_path": "nowhere"}, "`--encoder-embed-path` must be a text file that can be read, but is nowhere"),
    ({"init": "zero"}, "`--init` must be xavier or xavier_normal or fairseq, but is zero"),
]


def of_options(value: Any) -> str:
    """Return the id of a parametrised set of options."""
    return " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else ""


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def criterion_for(model: Any) -> Any:
    if model.decoder.adaptive_softmax is not None:
        return AdaptiveLoss(tiny_task(), sentence_avg=True)
    return LabelSmoothedCrossEntropyCriterion(tiny_task(), sentence_avg=True, label_smoothing=0.1)


def loss_and_gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return the loss a token, its gradients and the outputs at real positions, by name; layer drop draws the same."""
    sample = batch()
    torch.manual_seed(5)
    loss = criterion_for(model)(model, sample)[0].sum() / sample["ntokens"]
    model.zero_grad()
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    out = model.eval()(**sample["net_input"])[0][sample["target"].ne(1)]
    return {"loss": loss.detach(), "output in evaluation": out.detach(), **gradients}


@pytest.mark.parametrize("options", AS_STOCK, ids=of_options)
@pytest.mark.parametrize("placement", STOCK)
def test_works_as_in_stock(placement: str, options: dict[str, Any]) -> None:
    stock = fill_in(stock_model(STOCK[placement], **options)).float()
    ours = tiny_model(placement, **options)
    ours.load_state_dict(copied(stock), strict=True)
    theirs, mine = loss_and_gradients(stock), loss_and_gradients(ours)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        scale = max([1.0, *theirs[name].abs().flatten().tolist()])
        torch.testing.assert_close(mine[name], theirs[name], rtol=0, atol=5e-6 * scale, msg=name)


@pytest.mark.parametrize(("options", "sentence"), REFUSED, ids=of_options)
def test_refused_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(LnplaceError) as error:
        tiny_model("preln_final", **options)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)


def test_normalize_before_belongs_to_the_placement() -> None:
    assert tiny_model("preln_final", encoder_normalize_before=True, decoder_normalize_before=True)
    with pytest.raises(LnplaceError, match="`--decoder-normalize-before` must be left out with postln"):
        tiny_model("postln", decoder_normalize_before=True)
    with pytest.raises(LnplaceError, match="`--encoder-normalize-before` must be left out with mixln"):
        tiny_model("mixln", encoder_layers=4, encoder_normalize_before=True)
    assert tiny_model("mixln", mixln_post_fraction=0.0, encoder_normalize_before=True)


@pytest.mark.parametrize("norm_type", ["batchnorm", "instancenorm"])
def test_a_language_model_has_no_norm_that_sees_the_future(norm_type: str) -> None:
    with pytest.raises(LnplaceError, match=r"`--norm-type` must be layernorm or [a-z ]+ or derf \("):
        tiny_model("postln", "lm", norm_type=norm_type)


def test_a_bert_has_no_decoders_norm() -> None:
    with pytest.raises(LnplaceError, match="`--decoder-norm-type` must be left out where there is no decoder"):
        tiny_model("postln", "bert", decoder_norm_type="rmsnorm")


def test_a_language_model_has_one_norm_type() -> None:
    with pytest.raises(LnplaceError, match="`--decoder-norm-type` must be left out without an encoder"):
        tiny_model("postln", "lm", norm_type="rmsnorm", decoder_norm_type="scalenorm")


def test_shared_embeddings_need_a_joined_dictionary() -> None:
    args = arguments("transformer_postln", share_all_embeddings=True)
    task = tiny_task("translation", args)
    task.tgt_dict = dictionary(words=7)
    with pytest.raises(LnplaceError, match="`--share-all-embeddings` must go with a joined dictionary"):
        build_model(args, task)


def test_pretrained_embeddings(tmp_path: Path) -> None:
    path = tmp_path / "embeddings.txt"
    path.write_text("2 8\nword0 1 2 3 4 5 6 7 8\nword5 8 7 6 5 4 3 2 1\n", encoding="utf-8")
    weight = tiny_model("postln", decoder_embed_path=path).decoder.embed_tokens.weight
    assert weight[dictionary().index("word5")].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    with pytest.raises(LnplaceError, match="`--decoder-embed-path` must be a file whose first line is 'WORDS 12'"):
        tiny_model("postln", decoder_embed_path=path, decoder_embed_dim=12)


# ---- pruning


def pruned_by_hand(model: Any, encoder: list[int], decoder: list[int]) -> Any:
    model.encoder.layers = nn.ModuleList([model.encoder.layers[layer] for layer in encoder])
    model.decoder.layers = nn.ModuleList([model.decoder.layers[layer] for layer in decoder])
    model.decoder.num_layers = len(decoder)
    return model.eval()


@pytest.mark.parametrize("arch", ["transformer_deepnorm", "transformer_lnscaling", "transformer_preln_final"])
def test_layers_to_keep(arch: str) -> None:
    """Pruned at load, the layers keep the constants that they were trained with; and the pruned model loads again."""
    full = fill_in(tiny_model(arch.removeprefix("transformer_")))
    args = arguments(arch, encoder_layers_to_keep="0,2", decoder_layers_to_keep="1")
    task = tiny_task("translation", args)
    model = build_model(args, task).double()
    model.load_state_dict(copied(full), strict=True, model_cfg=args)
    sample = batch()["net_input"]
    expected = pruned_by_hand(full, [0, 2], [1])(**sample)[0]
    assert torch.equal(model.eval()(**sample)[0], expected)

    # as a checkpoint of the pruned model: with the pruning asked for again, and without
    for kept in ("0,2", None):
        again = build_model(Namespace(**{**vars(args), "encoder_layers_to_keep": kept}), task).double()
        again.load_state_dict(copied(model), strict=True)
        assert torch.equal(again.eval()(**sample)[0], expected)


@pytest.mark.parametrize("arch", ["transformer_deepnorm", "transformer_lnplace"])
def test_pruned_checkpoint_names_the_layers_it_has(arch: str) -> None:
    """As `fairseq-train` does it: the configuration that is saved builds the pruned model again."""
    args = arguments(arch, placement="deepnorm", encoder_layers_to_keep="0,2")
    saved = convert_namespace_to_omegaconf(args)
    full = fill_in(tiny_model("deepnorm"))
    task = tiny_task("translation", args)
    model = task.build_model(saved.model).double()
    model.load_state_dict(copied(full), strict=True, model_cfg=saved.model)
    assert saved.model.trained_layers == "3:1,3/2:1,2"
    again = task.build_model(saved.model, from_checkpoint=True).double()
    again.load_state_dict(copied(model), strict=True, model_cfg=saved.model)
    sample = batch()["net_input"]
    expected = pruned_by_hand(full, [0, 2], [0, 1])(**sample)[0]
    assert torch.equal(again.eval()(**sample)[0], expected)


def test_pruning_only_the_encoder_keeps_the_whole_decoder() -> None:
    model = tiny_model("preln_final", encoder_layers_to_keep="1")
    full = fill_in(tiny_model("preln_final"))
    model.double().load_state_dict(copied(full), strict=True)
    assert torch.equal(model.decoder.layers[1].fc1.weight, full.decoder.layers[1].fc1.weight)
    assert torch.equal(model.encoder.layers[0].fc1.weight, full.encoder.layers[1].fc1.weight)


@pytest.mark.parametrize("placement", ["dlcl", "denseformer"])
def test_a_history_of_layers_cannot_be_pruned(placement: str) -> None:
    with pytest.raises(LnplaceError, match=f"`layers-to-keep` must be left out with {placement}"):
        tiny_model(placement, encoder_layers_to_keep="0,2")


# ---- noise and dropout


def test_quant_noise_pq_drops_blocks_in_training_and_spares_the_weights() -> None:
    layer = NoisyLinear(8, 64, True, p=0.25, block_size=4)
    before = layer.weight.detach().clone()
    torch.manual_seed(1)
    share = [layer.noisy_weight().detach().view(64, 2, 4) / before.view(64, 2, 4) for _ in range(20)]
    blocks = torch.stack(share)
    assert torch.allclose(blocks, blocks[..., :1].expand_as(blocks), atol=1e-5)  # whole blocks
    assert {round(factor, 4) for factor in blocks.flatten().tolist()} == {0.0, 1.3333}
    assert abs((blocks == 0).double().mean().item() - 0.25) < 0.03
    layer(torch.ones(2, 8)).sum().backward()
    assert torch.equal(layer.weight, before)
    assert torch.equal(layer.weight.grad, torch.full_like(before, 2.0))  # straight through the noise
    assert torch.equal(layer.eval()(torch.ones(1, 8)), nn.functional.linear(torch.ones(1, 8), before, layer.bias))


@pytest.mark.parametrize("placement", STOCK)
def test_quant_noise_pq_in_a_model(placement: str) -> None:
    options = {"quant_noise_pq": 0.3, "quant_noise_pq_block_size": 4}
    stock = fill_in(stock_model(STOCK[placement], **options)).float()
    ours = tiny_model(placement, **options)
    ours.load_state_dict(copied(stock), strict=True)
    before, sample = copied(ours), batch()
    clean = ours.eval()(**sample["net_input"])[0]
    real = sample["target"].ne(1)
    torch.testing.assert_close(clean[real], stock.eval()(**sample["net_input"])[0][real], rtol=1e-5, atol=1e-5)
    ours.train()
    noisy = [ours(**sample["net_input"])[0] for _ in range(2)]
    assert not torch.allclose(noisy[0], noisy[1])
    assert all(torch.equal(before[name], tensor) for name, tensor in ours.state_dict().items())
    noisy[0].sum().backward()
    assert all(p.grad is not None for p in ours.parameters())


def test_quant_noise_scalar(monkeypatch: pytest.MonkeyPatch) -> None:
    """fairseq puts its own modules, which call for a GPU, in the place of every matrix, inside our layers too."""
    if not torch.cuda.is_available():
        with pytest.raises(LnplaceError, match="`--quant-noise-scalar` must be 0 without a GPU"):
            tiny_model("preln_final", quant_noise_scalar=0.5)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(Tensor, "cuda", lambda self: self)
    with pytest.raises(LnplaceError, match="`--quant-noise-scalar` must be left out with --quant-noise-pq"):
        tiny_model("preln_final", quant_noise_scalar=0.5, quant_noise_pq=0.1, quant_noise_pq_block_size=4)
    args = arguments("transformer_preln_final", quant_noise_scalar=0.5)
    model = tiny_task("translation", args).build_model(args)
    assert type(model.encoder.layers[0].self_attn.q_proj).__name__ == "IntLinear"
    sample = batch()
    loss = criterion_for(model)(model.train(), sample)[0]
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("retained", [{"self_attention", "MultiheadAttention"}, {"TransformerEncoderLayer"}])
def test_retain_dropout(retained: set[str]) -> None:
    """`--retain-dropout` keeps the dropouts on in evaluation, all of them or by the names of stock's modules."""
    sample = batch()["net_input"]
    model = tiny_model("postln", attention_dropout=0.5, dropout=0.5).eval()
    assert torch.equal(model(**sample)[0], model(**sample)[0])
    only = tiny_model("postln", attention_dropout=0.5, dropout=0.5)
    only.make_generation_fast_(retain_dropout=True, retain_dropout_modules=list(retained))
    names = {m.module_name for m in only.modules() if getattr(m, "apply_during_inference", False)}
    assert names == retained & {"MultiheadAttention", "TransformerEncoderLayer"}
    assert not torch.equal(only(**sample)[0], only(**sample)[0])


# ---- alignment


def attention_of(model: nn.Module, **options: Any) -> Tensor:
    return model(**batch()["net_input"], **options)[1]["attn"][0]


@pytest.mark.parametrize("options", [{}, {"alignment_layer": 0}, {"alignment_layer": 0, "alignment_heads": 1}])
@pytest.mark.parametrize("placement", STOCK)
def test_alignment_is_stocks(placement: str, options: dict[str, Any]) -> None:
    stock = fill_in(stock_model(STOCK[placement])).float().eval()
    ours = tiny_model(placement).eval()
    ours.load_state_dict(copied(stock), strict=True)
    real = batch()["target"].ne(1)
    mine, theirs = attention_of(ours, **options), attention_of(stock, **options)
    torch.testing.assert_close(mine[real], theirs[real], rtol=0, atol=1e-5)
    assert torch.allclose(mine[real].sum(-1), torch.ones(len(mine[real])))


def test_attention_is_computed_only_where_somebody_reads_it() -> None:
    model = tiny_model("postln")
    assert attention_of(model.train()) is None
    assert attention_of(model.eval()) is not None
    model.make_generation_fast_(need_attn=False)
    assert attention_of(model) is None
    assert attention_of(model, alignment_layer=0) is not None
    asked = tiny_model("postln")
    asked.make_generation_fast_(need_attn=True)
    assert attention_of(asked) is not None


def test_criterion_with_alignment() -> None:
    """Training with `--load-alignments` computes the attention that its criterion supervises, as stock does."""
    args = arguments("transformer_postln", load_alignments=True)
    task = tiny_task("translation", args)
    ours = build_model(args, task).train()
    stock = fill_in(stock_model(False)).float().train()
    ours.load_state_dict(copied(stock), strict=True)
    sample = batch()
    pairs = torch.tensor([[5, 0], [6, 8], [7, 1]])  # source and target position, over the flattened batch
    sample |= {"alignments": pairs, "align_weights": torch.ones(3)}
    criterion = LabelSmoothedCrossEntropyCriterionWithAlignment(task, True, 0.1, alignment_lambda=1.0)
    losses = []
    for model in (ours, stock):
        loss, _, log = criterion(model, sample)
        assert log["alignment_loss"] > 0
        loss.backward()
        losses.append(loss.detach())
    torch.testing.assert_close(*losses, rtol=1e-6, atol=1e-5)
    gradients = [m.decoder.layers[1].encoder_attn.q_proj.weight.grad for m in (ours, stock)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


# ---- hidden states


@pytest.mark.parametrize("placement", STOCK)
def test_all_hidden_states_are_stocks(placement: str) -> None:
    stock = fill_in(stock_model(STOCK[placement])).float().eval()
    ours = tiny_model(placement).eval()
    ours.load_state_dict(copied(stock), strict=True)
    sample = batch()
    inputs = {name: sample["net_input"][name] for name in ("src_tokens", "src_lengths")}
    mine, theirs = (model.encoder(**inputs, return_all_hiddens=True) for model in (ours, stock))
    real = inputs["src_tokens"].ne(1).t()
    assert len(mine["encoder_states"]) == len(theirs["encoder_states"]) == 4
    for a, b in zip(mine["encoder_states"], theirs["encoder_states"], strict=True):
        torch.testing.assert_close(a[real], b[real], rtol=0, atol=1e-5)
    assert ours.encoder(**inputs)["encoder_states"] == []
    inner = [model(**sample["net_input"])[1]["inner_states"] for model in (ours, stock)]
    real = sample["target"].ne(1).t()
    assert len(inner[0]) == len(inner[1]) == 3
    for a, b in zip(*inner, strict=True):
        torch.testing.assert_close(a[real], b[real], rtol=0, atol=1e-5)


# ---- checkpointing of activations, averages of weights, precision


@pytest.mark.parametrize("flag", ["checkpoint_activations", "offload_activations"])
def test_checkpointed_activations_change_no_number(flag: str) -> None:
    plain, checkpointed = (tiny_model("resi_dual", dropout=0.3, **each) for each in ({}, {flag: True}))
    assert plain.state_dict().keys() == checkpointed.state_dict().keys()
    checkpointed.load_state_dict(copied(plain), strict=True)
    mine, theirs = loss_and_gradients(checkpointed), loss_and_gradients(plain)
    assert mine.keys() == theirs.keys()
    for name in theirs:
        torch.testing.assert_close(mine[name], theirs[name], msg=name)


@pytest.mark.parametrize("placement", ["postln", "admin", "batchnorm"])
def test_store_ema(placement: str) -> None:
    """`--store-ema` averages what state_dict names, and restores it with strict checks of its own."""
    options = {"norm_type": "batchnorm"} if placement == "batchnorm" else {}
    model = tiny_model("preln_final" if options else placement, **options)
    ema = EMA(model, EMAConfig(store_ema=True, ema_decay=0.5))
    before = copied(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    ema.step(model, 1)
    averaged = ema.get_model().state_dict()
    assert averaged.keys() == before.keys()
    for name, _ in model.named_parameters():
        torch.testing.assert_close(averaged[name], before[name] + 0.5)
    ema.restore(copied(model))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "placement", ["postln", "preln_final", "resi_dual", "realformer", "layerscale", "dlcl", "denseformer"]
)
def test_half_precision_is_near_float32(placement: str, dtype: torch.dtype) -> None:
    exact, half = tiny_model(placement), tiny_model(placement).to(dtype)
    sample = batch()
    real = sample["target"].ne(1)
    expected = exact(**sample["net_input"])[0][real]
    with torch.autocast("cpu", dtype):
        mixed = exact(**sample["net_input"])[0][real]
    for result in (half(**sample["net_input"])[0][real], mixed):
        assert result.dtype == dtype
        assert (result.float() - expected).abs().max() < expected.abs().max() * (
            0.01 if dtype == torch.float16 else 0.05
        )
    loss = criterion_for(half)(half, sample)[0]
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in half.parameters())


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("placement", ["postln", "realformer"])
def test_left_padded_targets(placement: str, training: bool) -> None:
    """`--left-pad-target`: a padded query may attend to nothing, and must not spoil the rest."""
    model = tiny_model(placement).train(training)
    sample = batch()["net_input"]
    alone = model(sample["src_tokens"][:1], sample["src_lengths"][:1], sample["prev_output_tokens"][:1, :3])[0]
    moved = sample["prev_output_tokens"].clone()
    for row, tokens in enumerate(sample["prev_output_tokens"]):
        real = tokens[tokens.ne(1)]
        moved[row] = torch.cat([tokens[len(real) :], real])
    together = model(sample["src_tokens"], sample["src_lengths"], moved)[0]
    assert together.isfinite().all()
    torch.testing.assert_close(together[:1, -3:], alone, rtol=0, atol=1e-5)


def test_unknown_words_in_a_dictionary_of_their_own() -> None:
    """Source and target vocabularies of different sizes."""
    args = arguments("transformer_preln_final")
    task = tiny_task("translation", args)
    task.src_dict = Dictionary()
    model = build_model(args, task)
    assert model.encoder.embed_tokens.num_embeddings == 4
    assert model.decoder.output_projection.weight.shape == (16, 8)
