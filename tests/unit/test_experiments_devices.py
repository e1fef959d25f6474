import pytest

from fairseq_lnplace.errors import LnplaceError
from fairseq_lnplace.experiments.devices import Devices, slots, visible_gpus
from fairseq_lnplace.experiments.grid import option_of


@pytest.mark.parametrize(
    ("gpus", "most", "tokens", "batches"),
    [(1, 4096, 4096, 32), (8, 4096, 4096, 4), (16, 8192, 8192, 1), (16, 9000, 8192, 1), (3, 8192, 7281, 6)],
)
def test_the_papers_tokens_an_update_are_kept(gpus: int, most: int, tokens: int, batches: int) -> None:
    """WMT14: 16 GPUs of 8,192 tokens, as 131,072 tokens on whatever there is."""
    options = Devices(gpus, "fp16", most).options(131_072)
    assert option_of(options, "max-tokens") == str(tokens)
    assert option_of(options, "update-freq") == str(batches)
    assert 0.99 < gpus * tokens * batches / 131_072 <= 1
    assert "--fp16" in options
    assert option_of(options, "distributed-world-size") == str(gpus)


def test_without_a_gpu_or_a_number_of_tokens() -> None:
    assert Devices(0).options(1000) == ("--cpu", "--max-tokens", "1000", "--update-freq", "1")
    assert Devices(0, max_tokens=300).options(1000) == ("--cpu", "--max-tokens", "250", "--update-freq", "4")
    assert Devices(0, "bf16").options(None) == ("--cpu", "--bf16")
    assert Devices().options(1000) == ()


def test_the_number_of_devices_is_no_other_experiment_but_the_precision_is() -> None:
    assert Devices(1).settings == Devices(8, max_tokens=77).settings == ()
    assert Devices(1, "fp16").settings == ("fp16",)


def test_torchrun_starts_a_process_for_each_gpu() -> None:
    assert Devices(2).launcher == ("fairseq-train",)
    words = " ".join(Devices(2, torchrun=True).launcher)
    assert words == "torchrun --standalone --nproc-per-node 2 -m fairseq_cli.train"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gpus": -1}, "`--gpus` must be 0 or more, but is -1"),
        ({"gpus": 0, "precision": "fp16"}, "`--precision` must be fp32 or bf16 on a CPU, but is fp16"),
        ({"gpus": 0, "torchrun": True}, "`--gpus` must be at least 1 with --torchrun, but is 0"),
        ({"gpus": 1, "max_tokens": 0}, "`--max-tokens` must be at least 1, but is 0"),
    ],
)
def test_errors(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(LnplaceError, match=sentence):
        Devices(**settings)  # type: ignore[arg-type]


def test_each_cell_has_gpus_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,GPU-7,6")
    names = visible_gpus()
    places = slots(2, 3, 2, names)
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places] == ["4,5", "GPU-7,6"]
    assert {place["OMP_NUM_THREADS"] for place in places} == {"3"}
    with pytest.raises(
        LnplaceError, match="`--jobs times --gpus` must be at most the 4 GPUs of this machine, but is 6"
    ):
        slots(3, 1, 2, names)
    assert "CUDA_VISIBLE_DEVICES" not in slots(1, 1)[0]
