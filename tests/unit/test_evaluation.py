import json
from pathlib import Path

import pytest
import sacrebleu
import torch
from fairseq_bleu import fairseq_bleu
from sacremoses import MosesDetokenizer, MosesTokenizer

from fairseq_lnplace.cli import main
from fairseq_lnplace.corpus.prepare import Settings, prepare
from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.evaluation import Decoding, Translator, evaluate

TOY = Path(__file__).parents[2] / "data" / "toy"
TINY = [
    *("--arch", "transformer", "--share-all-embeddings", "--encoder-layers", "1", "--decoder-layers", "1"),
    *("--encoder-embed-dim", "16", "--encoder-ffn-embed-dim", "16", "--encoder-attention-heads", "2"),
    *("--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "16", "--decoder-attention-heads", "2"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("data") / "toy"
    splits = {split: str(TOY / split) for split in ("train", "valid", "test")}
    prepare(Settings(source_lang="de", target_lang="en", vocab_size=120, **splits), dest)
    return dest


def save_stock_model(data: Path, path: Path, *options: str) -> Path:
    """Write a checkpoint of a stock model as fairseq-train does, its weights drawn at random."""
    from fairseq import checkpoint_utils, tasks
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from omegaconf import OmegaConf

    parser = fairseq_options.get_training_parser()
    cfg = convert_namespace_to_omegaconf(fairseq_options.parse_args_and_arch(parser, [str(data), *options]))
    torch.manual_seed(5)
    model = tasks.setup_task(cfg.task).build_model(cfg.model)
    for weight in model.parameters():  # far from the all but uniform start, so that sentences differ
        weight.data.mul_(3)
    history = [{"criterion_name": "-", "optimizer_name": "-", "lr_scheduler_state": {}, "num_updates": 7}]
    state = {
        "args": None,
        "cfg": OmegaConf.to_container(cfg, resolve=True, enum_to_str=True),
        "model": model.state_dict(),
        "optimizer_history": history,
        "extra_state": {"train_iterator": {"epoch": 1}},
        "last_optimizer_state": None,
    }
    checkpoint_utils.torch_persistent_save(state, str(path))
    return path


@pytest.fixture(scope="module", params=["postln", "preln"])
def checkpoint(request: pytest.FixtureRequest, data: Path) -> Path:
    before = ["--encoder-normalize-before", "--decoder-normalize-before"] if request.param == "preln" else []
    return save_stock_model(data, data.parent / f"{request.param}.pt", *TINY, *before)


def generated_by_fairseq(data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[str]:
    """Return what fairseq-generate prints, in the corpus' order."""
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq_cli import generate

    argv = [
        str(data),
        "--path",
        str(checkpoint),
        "--remove-bpe",
        "sentencepiece",
        "--cpu",
        "--num-workers",
        "0",
        *options,
    ]
    args = fairseq_options.parse_args_and_arch(fairseq_options.get_generation_parser(), argv)
    capsys.readouterr()
    generate.main(convert_namespace_to_omegaconf(args))
    found = [line.split("\t") for line in capsys.readouterr().out.splitlines() if line.startswith("H-")]
    return [text for _, text in sorted((int(name[2:]), text) for name, _, text in found)]


@pytest.mark.parametrize("subset", ["test", "valid"])
def test_translations_are_those_of_fairseq_generate(
    data: Path, checkpoint: Path, subset: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = Decoding(beam=3, lenpen=0.6, max_len_a=0.5, max_len_b=4, batch_size=7, cpu=True)
    options = ["--beam", "3", "--lenpen", "0.6", "--max-len-a", "0.5", "--max-len-b", "4", "--batch-size", "7"]
    expected = generated_by_fairseq(data, checkpoint, capsys, "--gen-subset", subset, *options)
    record, translations = evaluate(checkpoint, data, subset, decoding)
    assert translations == expected
    assert len(set(translations)) > 5, "the model must say different things for the order to matter"
    references = (TOY / f"{subset}.en").read_text(encoding="utf-8").splitlines()
    assert record["bleu"]["score"] == sacrebleu.corpus_bleu(expected, [references]).score
    assert record["chrf"]["score"] == sacrebleu.corpus_chrf(expected, [references]).score


def test_the_options_reach_the_search(data: Path, checkpoint: Path) -> None:
    translator = Translator.load(checkpoint, data, cpu=True)
    short = translator.translate("test", Decoding(max_len_a=0, max_len_b=2, beam=1))
    longer = translator.translate("test", Decoding(max_len_a=0, max_len_b=30, beam=1))
    assert max(map(len, short)) < max(map(len, longer))
    assert translator.translate("test", Decoding(beam=1, max_len_a=0.5)) != translator.translate(
        "test", Decoding(beam=4, max_len_a=0.5)
    )


def test_the_command_writes_the_whole_record(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "score.json"
    argv = [
        "evaluate",
        "--checkpoint",
        str(checkpoint),
        "--data",
        str(data),
        "--beam",
        "2",
        "--max-len-a",
        "0.5",
        "--cpu",
    ]
    assert main([*argv, "--output", str(output)]) == 0
    out, err = capsys.readouterr()
    assert "BLEU" in out
    assert "nrefs:1|case:mixed" in out
    assert err == ""
    record = json.loads(output.read_text(encoding="utf-8"))
    assert record["bleu"]["signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    assert record["chrf"]["signature"].startswith("nrefs:1|case:mixed|eff:yes|nc:6|nw:0")
    assert record["model"] == {"name": "transformer", "arch": "transformer"}
    assert record["checkpoint"] == str(checkpoint)
    assert (record["sentences"], record["subset"], record["source_lang"], record["target_lang"]) == (
        20,
        "test",
        "de",
        "en",
    )
    assert record["decoding"]["beam"] == 2
    assert record["versions"]["torch"] == torch.__version__
    assert record["command"]
    assert len(output.with_suffix(".en").read_text(encoding="utf-8").splitlines()) == 20
    assert main([*argv, "--json", "--output", str(output)]) == 0
    assert json.loads(capsys.readouterr().out)["bleu"] == record["bleu"]


def test_by_default_the_record_lies_beside_the_checkpoint(data: Path, checkpoint: Path) -> None:
    argv = ["evaluate", "--checkpoint", str(checkpoint), "--data", str(data), "--beam", "1", "--max-len-a", "0.1"]
    assert main([*argv, "--gen-subset", "valid", "--cpu"]) == 0
    assert checkpoint.with_suffix(".valid.json").is_file()
    assert checkpoint.with_suffix(".valid.en").is_file()


def refusal(data: Path, checkpoint: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the one sentence of a refused call, and see to it that nothing was written."""
    before = {path: path.stat().st_mtime_ns for path in data.parent.rglob("*")}
    capsys.readouterr()
    assert main(["evaluate", "--checkpoint", str(checkpoint), "--data", str(data), "--cpu", *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lnplace: ")
    assert err.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in data.parent.rglob("*")} == before
    return err


def test_wrong_inputs_are_told_in_one_sentence(
    data: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    garbage = tmp_path / "garbage.pt"
    garbage.write_bytes(b"no checkpoint")
    tokenised = tmp_path / "tokenised.en"
    tokenised.write_text("he said , that 's it .\n" * 20)
    short = tmp_path / "short.en"
    short.write_text("One line only.\n")
    other = tmp_path / "other"
    splits = {split: str(TOY / split) for split in ("train", "valid", "test")}
    prepare(Settings(source_lang="de", target_lang="en", vocab_size=150, **splits), other)

    assert "garbage.pt" in refusal(data, garbage, capsys)
    assert "missing.pt" in refusal(data, tmp_path / "missing.pt", capsys)
    assert "`--data` must be a folder" in refusal(tmp_path, checkpoint, capsys)
    assert "does not fit" in refusal(other, checkpoint, capsys)
    assert "`--gen-subset` must be" in refusal(
        data, checkpoint, capsys, "--gen-subset", "dev", "--references", str(short)
    )
    assert "`--references` must be" in refusal(data, checkpoint, capsys, "--gen-subset", "dev")
    assert "look tokenised" in refusal(data, checkpoint, capsys, "--references", str(tokenised))
    assert "20 have 1" in refusal(data, checkpoint, capsys, "--references", str(short))
    assert "cannot be cut into batches" in refusal(data, checkpoint, capsys, "--max-tokens", "3")
    assert "`--output` must be a file whose name ends in .json, but is x.en" in refusal(
        data, checkpoint, capsys, "--output", "x.en"
    )
    assert "`--beam` must be at least 1, but is 0" in refusal(data, checkpoint, capsys, "--beam", "0")


def test_a_model_of_another_task_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_bytes((data / "dict.en.txt").read_bytes())
    size = ["--decoder-layers", "1", "--decoder-embed-dim", "8", "--decoder-attention-heads", "2"]
    kind = ["--task", "language_modeling", "--arch", "transformer_lm", "--tokens-per-sample", "16"]
    path = save_stock_model(tmp_path, tmp_path / "lm.pt", *kind, *size)
    with pytest.raises(
        LnplaceError, match=r"`--checkpoint` must be of a translation model, but is of .*transformer_lm"
    ):
        Translator.load(path, data, cpu=True)


@pytest.fixture(scope="module")
def moses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy corpus as the papers prepare theirs: Moses' words, lower-cased, subword-nmt."""
    dest = tmp_path_factory.mktemp("moses") / "toy"
    splits = {split: str(TOY / split) for split in ("train", "valid", "test")}
    words = {"bpe": "subword_nmt", "tokeniser": "moses", "lowercase": True}
    prepare(Settings(source_lang="de", target_lang="en", vocab_size=100, **splits, **words), dest)
    return dest


@pytest.mark.parametrize("split", [False, True])
def test_both_kinds_of_bleu_on_moses_data(moses: Path, split: bool, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = save_stock_model(moses, moses.parent / "moses.pt", *TINY)
    tokenised = generated_by_fairseq(moses, checkpoint, capsys, "--beam", "2", "--remove-bpe")
    decoding = Decoding(beam=2, max_len_a=0, max_len_b=200, cpu=True)
    record, text = evaluate(checkpoint, moses, "test", decoding, compound_split=split)

    detokeniser = MosesDetokenizer("en")
    assert text == [detokeniser.detokenize(line.split()) for line in tokenised]
    assert text != tokenised
    raw = (TOY / "test.en").read_text(encoding="utf-8").splitlines()
    assert any(line != line.lower() for line in raw)
    assert record["bleu"]["score"] == sacrebleu.corpus_bleu(text, [raw], lowercase=True).score
    assert record["bleu"]["signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a|")
    assert record["chrf"]["signature"].startswith("nrefs:1|case:lc|")
    assert record["text"] == {"bpe": "subword_nmt", "tokeniser": "moses", "lowercase": True, "split_hyphens": False}

    truth = (moses / "tokenised" / "test.en").read_text(encoding="utf-8").splitlines()
    assert truth[0] == truth[0].lower()
    assert record["tokenised_bleu"]["score"] == pytest.approx(fairseq_bleu(tokenised, truth), abs=1e-3)
    assert record["tokenised_bleu"]["compound_split"] is split
    assert record["tokenised_bleu"]["tokeniser"] == "moses"
    assert "tok:none|smooth:none" in record["tokenised_bleu"]["signature"]


def test_tokenised_bleu_of_a_model_on_raw_text(data: Path, checkpoint: Path) -> None:
    record, text = evaluate(checkpoint, data, "test", Decoding(beam=1, max_len_a=0.5, cpu=True))
    moses = MosesTokenizer("en")
    raw = (TOY / "test.en").read_text(encoding="utf-8").splitlines()
    hypotheses, references = ([moses.tokenize(line, return_str=True) for line in side] for side in (text, raw))
    assert record["tokenised_bleu"]["score"] == pytest.approx(fairseq_bleu(hypotheses, references), abs=1e-3)
    assert record["tokenised_bleu"]["lowercase"] is False
    assert record["text"] == {"bpe": "sentencepiece", "tokeniser": "none", "lowercase": False, "split_hyphens": False}
