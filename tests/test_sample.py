"""tf.sample: the right distribution, draws that depend on (seed, stream, position, column) alone, awkward inputs.

Case numbers are those of the project's list of reports about language-model heads.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import tilefold as tf
from tilefold import folds

INF = math.inf


def from_logits(logits: Tensor, rows: int = 1, **options: Any) -> Tensor:
    """Draws from rows that all have the same logits [V], or their own [N, V]."""
    if logits.dim() == 1:
        return tf.sample(torch.zeros(rows, 1), torch.zeros(logits.shape[0], 1), linear_bias=logits, **options)
    # x_i = unit vector i, so that the product picks row i
    n = logits.shape[0]
    return tf.sample(torch.eye(n), logits.mT.contiguous(), **options)


def p_value(counts: Tensor, expected: Tensor) -> float:
    """Of Pearson's chi-square test."""
    assert expected.min() > 4, "too few draws for this test"
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor((counts.numel() - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic.double() / 2))


def histogram(draws: Tensor, v: int) -> Tensor:
    return torch.bincount(draws.flatten(), minlength=v).double()


# ---- the distribution --------------------------------------------------------------------------------------


@pytest.mark.parametrize("vary", ["stream", "position", "seed"])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_frequencies_are_the_softmax(vary: str, temperature: float) -> None:
    n, v = 20000, 40
    logits = torch.randn(v)
    other = torch.zeros(n, dtype=torch.int64)
    options = {"stream": other, "position": other, "seed": torch.full((n,), 7), vary: torch.arange(n)}
    draws = from_logits(logits, n, temperature=temperature, **options)
    p = (logits.double() / temperature).softmax(-1)
    keep = p * n > 5
    counts = histogram(draws, v)
    few, few_expected = counts[~keep].sum(), p[~keep].sum() * n
    counts, expected = counts[keep], p[keep] * n
    if few_expected > 5:
        counts, expected = torch.cat([counts, few[None]]), torch.cat([expected, few_expected[None]])
    else:
        assert few <= few_expected + 6 * math.sqrt(few_expected + 1)
        expected = expected / expected.sum() * counts.sum()
    assert p_value(counts, expected) > 0.001


def test_softcap_and_bias_and_product_are_all_in_the_distribution() -> None:
    n, v, d = 20000, 12, 8
    x, w, b = torch.randn(1, d).expand(n, d), torch.randn(v, d), torch.randn(v)
    draws = tf.sample(x, w, linear_bias=b, softcap=2.0, temperature=0.8, seed=3)
    logits = 2 * torch.tanh((x[0].double() @ w.double().T + b.double()) / 2)
    p = (logits / 0.8).softmax(-1)
    assert p_value(histogram(draws, v), p * n) > 0.001


@pytest.mark.parametrize("pair", ["stream", "position", "seed"])
def test_neighbours_are_independent(pair: str) -> None:  # case 45: equal rows, one seed
    n, v = 40000, 5
    logits = torch.tensor([0.0, 0.3, -0.5, 1.0, 0.1])
    fixed = torch.zeros(n, dtype=torch.int64)
    options = {"stream": fixed, "position": fixed, "seed": fixed + 11, pair: torch.arange(n)}
    draws = from_logits(logits, n, **options).reshape(-1, 2)
    p = logits.double().softmax(-1)
    joint = histogram(draws[:, 0] * v + draws[:, 1], v * v)
    assert p_value(joint, torch.outer(p, p).flatten() * (n // 2)) > 0.001


def test_equal_rows_of_one_seed_draw_differently_unless_asked() -> None:  # case 45
    logits = torch.zeros(64)
    draws = from_logits(logits, 200, seed=5)
    assert draws.unique().numel() > 40
    alike = from_logits(logits, 200, seed=5, stream=torch.zeros(200, dtype=torch.int64))
    assert alike.unique().numel() == 1


def test_tail_is_right_at_a_moderate_gap() -> (
    None
):  # case 47, at a size for the CPU; the gap of 20.5 is below and in the GPU leg
    n, v, gap = 2000, 2048, 10.0
    logits = torch.full((v,), -gap)
    logits[77] = 0.0
    p = (v - 1) * math.exp(-gap) / (1 + (v - 1) * math.exp(-gap))
    hits = int((from_logits(logits, n, seed=1) != 77).sum())
    assert abs(hits - n * p) < 4 * math.sqrt(n * p * (1 - p))


def test_noise_has_the_tail_of_a_gumbel_at_a_gap_of_20(monkeypatch: pytest.MonkeyPatch) -> None:  # case 47
    module = importlib.import_module("tilefold.folds.sample")
    monkeypatch.setattr(module, "philox", lambda seed, counter: counter[0])  # the column is the random word
    zero = torch.zeros((), dtype=torch.int64)
    words = torch.cat([torch.arange(4096), 2**32 - 1 - torch.arange(4096), torch.arange(0, 2**32, 2**20)])
    noise = module.gumbel(zero, zero, zero, words, dtype=torch.float32)
    assert noise.isfinite().all()
    u = (words.double() + 0.5) / 2**32
    right = -torch.log(-torch.log1p(-u))
    torch.testing.assert_close(noise.double(), right, rtol=2 * 2**-23, atol=2 * 2**-24)
    # a column `gap` below wins where its exponential variate is below e^-gap of the top's: count such words
    for gap in (15.0, 20.0, 20.5):
        top = -torch.log1p(-(torch.arange(200000).double() + 0.5) / 200000)
        below = -torch.expm1(-top * math.exp(-gap))  # the largest u that wins
        wins = torch.ceil(below * 2**32 - 0.5).clamp(min=0).mean() / 2**32
        assert abs(wins / math.exp(-gap) - 1) < 0.03


# ---- random bits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "first"),
    [
        ((0, 0, 0, 0), 0, 0x6627E8D5),
        ((0xFFFFFFFF,) * 4, -1, 0x408F276D),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), 0x299F31D0A4093822, 0xD16CFE09),
    ],
)
def test_philox_gives_its_known_answers(counter: tuple[int, ...], key: int, first: int) -> None:
    from tilefold.folds.sample import philox

    assert int(philox(torch.tensor(key), tuple(torch.tensor(c) for c in counter))) == first


def problem(n: int = 37, v: int = 300, d: int = 8) -> tuple[Tensor, Tensor]:
    """Integers, so that scores are exact in any order of summation."""
    return torch.randint(-2, 3, (n, d)).float(), torch.randint(-1, 2, (v, d)).float()


def test_draw_is_the_same_in_any_batch() -> None:
    x, w = problem()
    streams = torch.randint(0, 2**40, (37,))
    options: dict[str, Any] = {"seed": 99, "temperature": 1.7}
    whole = tf.sample(x, w, stream=streams, position=4, **options)
    for size in (1, 5, 36):
        parts = [tf.sample(a, w, stream=b, position=4, **options) for a, b in zip(x.split(size), streams.split(size))]
        assert torch.equal(torch.cat(parts), whole)
    order = torch.randperm(37)
    assert torch.equal(tf.sample(x[order], w, stream=streams[order], position=4, **options), whole[order])
    shaped = tf.sample(x[:36].reshape(3, 12, 8), w, stream=streams[:36].reshape(3, 12), position=4, **options)
    assert torch.equal(shaped, whole[:36].reshape(3, 12))


def test_draw_is_the_same_for_any_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = problem(50, 2500)
    whole = tf.sample(x, w, seed=1)
    eager = importlib.import_module("tilefold.execute.eager")
    monkeypatch.setattr(eager, "tiles", lambda n, k, element, cache: (min(n, 7), min(k, 100)))
    assert torch.equal(tf.sample(x, w, seed=1), whole)


def test_default_stream_is_the_number_of_the_row() -> None:
    x, w = problem()
    whole = tf.sample(x, w, seed=3)
    assert torch.equal(tf.sample(x, w, seed=3, stream=torch.arange(37)), whole)
    assert torch.equal(tf.sample(x[9:10], w, seed=3, stream=torch.tensor([9])), whole[9:10])
    assert torch.equal(tf.sample(x[:36].reshape(4, 9, 8), w, seed=3), whole[:36].reshape(4, 9))


def test_draw_depends_on_seed_position_and_stream() -> None:
    x, w = problem(200)
    base = tf.sample(x, w, seed=1, position=1)
    for other in ({"seed": 2, "position": 1}, {"seed": 1, "position": 2}, {"seed": 1 + 2**32, "position": 1}):
        assert (tf.sample(x, w, **other) != base).float().mean() > 0.3
    positions = torch.arange(200)
    mixed = tf.sample(x, w, seed=1, position=positions)
    for i in (0, 1, 150):
        assert torch.equal(tf.sample(x, w, seed=1, position=i)[i], mixed[i])


@pytest.mark.parametrize("seed", [0, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_any_seed_of_64_bits(seed: int) -> None:
    x, w = problem(5)
    draws = tf.sample(x, w, seed=seed)
    as_tensor = torch.tensor(seed - 2**64 if seed >= 2**63 else seed)
    assert torch.equal(tf.sample(x, w, seed=as_tensor), draws)


def test_seed_in_a_tensor_is_read_when_it_runs() -> None:  # case 49: a graph must not replay one seed
    x, w = problem(100)
    seed = torch.tensor([3])
    compiled = torch.compile(lambda x, w, seed: tf.sample(x, w, seed=seed), backend="aot_eager", fullgraph=True)
    first = compiled(x, w, seed)
    assert torch.equal(first, tf.sample(x, w, seed=3))
    seed += 1
    assert torch.equal(compiled(x, w, seed), tf.sample(x, w, seed=4)) and not torch.equal(compiled(x, w, seed), first)


def test_seed_per_row() -> None:
    x, w = problem()
    seeds = torch.arange(37) * 1000
    mixed = tf.sample(x, w, seed=seeds)
    for i in (0, 17, 36):
        assert torch.equal(tf.sample(x, w, seed=int(seeds[i]))[i], mixed[i])


# ---- temperature -------------------------------------------------------------------------------------------


def test_temperature_zero_is_greedy_with_ties_to_the_lowest_class() -> None:
    x, w = problem()
    greedy = (x @ w.T).argmax(-1)
    ties = torch.where(x @ w.T == (x @ w.T).amax(-1, keepdim=True), torch.arange(300), 300).amin(-1)
    assert torch.equal(tf.sample(x, w, temperature=0), ties)
    assert torch.equal(tf.sample(x, w, temperature=0.0, seed=5), ties)
    assert torch.equal(tf.sample(x, w, temperature=torch.zeros(37), seed=5), ties)
    assert torch.equal(tf.sample(x * 0, w, temperature=torch.zeros(37)), torch.zeros_like(greedy))


def test_temperature_per_row() -> None:
    x, w = problem()
    t = torch.linspace(0, 2, 37)
    mixed = tf.sample(x, w, temperature=t, seed=2)
    for i in (0, 1, 20, 36):
        assert torch.equal(tf.sample(x, w, temperature=float(t[i]), seed=2)[i], mixed[i])
    one = tf.sample(x, w, temperature=torch.tensor(0.7), seed=2)
    assert torch.equal(one, tf.sample(x, w, temperature=torch.full((37,), 0.7), seed=2))


def test_small_temperature_does_not_overflow() -> None:
    x, w = problem()
    x = x + torch.randn_like(x)
    assert torch.equal(tf.sample(x * 1e30, w, temperature=1e-30), (x @ w.T).argmax(-1))


# ---- what may be drawn -------------------------------------------------------------------------------------


@pytest.mark.parametrize("v", [1, 2, 1023, 1025, 32000])
def test_class_is_always_in_range(v: int) -> None:  # case 38, 51: nothing beyond the vocabulary wins in a ragged tile
    for seed in range(3):
        draws = tf.sample(torch.full((16, 4), -1e3), torch.ones(v, 4), seed=seed)
        assert draws.dtype == torch.int64 and draws.min() >= 0 and draws.max() < v


def test_one_certain_class_is_drawn() -> None:  # case 39
    logits = torch.tensor([-INF, 0.0, -INF, -INF])
    assert (from_logits(logits, 50) == 1).all()
    assert (from_logits(logits, 50, temperature=1e6) == 1).all()


def test_row_that_is_minus_infinity_almost_everywhere() -> None:  # case 41
    v = 100352
    logits = torch.full((v,), -INF)
    logits[70000] = -3.0
    assert (from_logits(logits, 4) == 70000).all()


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_hidden_classes_are_never_drawn(temperature: float) -> None:
    x, w = problem(200, 64)
    seen = torch.rand(200, 64) < 0.1
    seen[3] = False
    s = tf.scores(x, w).visible(seen)
    draws = tf.fold(s, tf.Sample(seed=1, temperature=temperature))
    assert draws[3] == -1
    keep = torch.arange(200) != 3
    assert seen[keep].gather(1, draws[keep].unsqueeze(1)).all()


def test_visible_classes_keep_their_odds() -> None:
    n = 20000
    logits = torch.randn(10)
    s = tf.scores(torch.zeros(n, 1), torch.zeros(10, 1)) + logits
    draws = tf.fold(s.visible(torch.arange(10) % 2 == 0), tf.Sample(seed=4))
    p = torch.where(torch.arange(10) % 2 == 0, logits.double(), -INF).softmax(-1)[::2]
    assert p_value(histogram(draws, 10)[::2], p * n) > 0.001


def test_sample_beside_other_folds_in_one_pass() -> None:
    x, w = problem()
    both = tf.fold(tf.scores(x, w), lse=tf.LogSumExp(), draw=tf.Sample(seed=6))
    assert torch.equal(both.draw, tf.sample(x, w, seed=6))
    torch.testing.assert_close(both.lse, (x @ w.T).logsumexp(-1))


def test_no_row_gives_no_draw() -> None:
    assert tf.sample(torch.zeros(0, 4), torch.zeros(3, 4)).shape == (0,)
    assert tf.sample(torch.zeros(2, 0, 4), torch.zeros(3, 4)).shape == (2, 0)
    assert tf.sample(torch.zeros(4), torch.zeros(3, 4)).shape == ()


def test_draw_of_its_own_noise_in_plain_torch() -> None:
    x, w = problem()
    i, j = torch.arange(37).unsqueeze(-1), torch.arange(300)
    noise = folds.gumbel(torch.tensor(8), i, torch.tensor(2), j, torch.float32)
    assert torch.equal(tf.sample(x, w, seed=8, position=2), (x @ w.T + noise).argmax(-1))


# ---- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"temperature": -1.0}, ValueError, "temperature"),
        ({"temperature": math.nan}, ValueError, "temperature"),
        ({"temperature": INF}, ValueError, "temperature"),
        ({"temperature": torch.full((5,), -1.0)}, ValueError, "temperature: .*-1"),
        ({"temperature": torch.ones(4)}, RuntimeError, "temperature"),
        ({"seed": torch.zeros(4, dtype=torch.int64)}, RuntimeError, "seed"),
        ({"seed": torch.zeros(5)}, RuntimeError, "seed"),
        ({"stream": torch.zeros(6, dtype=torch.int64)}, RuntimeError, "stream"),
        ({"position": torch.zeros(5)}, RuntimeError, "position"),
        ({"linear_weight": torch.zeros(3, 9)}, RuntimeError, "D = "),
        ({"linear_weight": torch.zeros(0, 8)}, IndexError, "K = 0"),
        ({"linear_weight": torch.zeros(8)}, RuntimeError, "linear_weight"),
        ({"linear_bias": torch.zeros(2)}, RuntimeError, "linear_bias"),
        ({"softcap": 0.0}, ValueError, "softcap"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given: dict[str, Any] = {"input": torch.zeros(5, 8), "linear_weight": torch.zeros(3, 8), **changes}
    with pytest.raises(error, match=names):
        tf.sample(**given)
