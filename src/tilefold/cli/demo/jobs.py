"""What the demo computes, each time by tilefold and by plain PyTorch, measured."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

import tilefold as tf
from tilefold.cli.demo.measure import Cost, measured
from tilefold.cli.demo.minilm import MiniLM, model_dir
from tilefold.cli.demo.sentences import sentences

NEIGHBOURS = 5
TEMPERATURE = 0.05  # of the loss that sentence-transformers trains such a model with
# Unit vectors and their cosines in float32, through six layers: rounding stays some ten times below it.
TOLERANCE = 1e-5
# A loss is a small difference of numbers near 1 / TEMPERATURE: plain float32 itself was off from float64 by up to 7e-5
# of a gradient's largest entry (3000 random pairs, 2026-11).
LOSS_TOLERANCE = 2e-4
WARM = 64  # rows of the call before each measured one, so that libraries load; a GPU compiles for the real size


class Done(Protocol):
    def __call__(self, n: int = 1) -> None: ...


Step = Callable[[str, int], Done]  # announces a step of so many parts, and gives what counts them


@dataclass
class Row:
    """The same work by tilefold and by plain PyTorch."""

    what: str
    score_bytes: int  # the largest intermediate that tilefold did not write
    ours: Cost
    plain: Cost
    difference: float
    tolerance: float
    note: str


@dataclass
class Answer:
    device: str
    text: list[str]
    values: Tensor  # [N, 1 + NEIGHBOURS] cosines; a sentence's nearest is itself
    indices: Tensor
    rows: list[Row]


def run(step: Step, count: int, device: str) -> Answer:
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = model_dir()
    done = step("reading docstrings of the standard library", 1)
    text = sentences(count)
    done()
    done = step("loading the model, by hand and as shipped", 2)
    model = MiniLM.load(folder, device)
    done()
    stock = stock_model(str(folder), device)
    done()
    x, embedding = embed(step, model, stock, text)
    values, indices, search = neighbours(step, x[:, 0].contiguous())
    loss = contrast(step, x[:, 1:].clone())
    name = (
        torch.cuda.get_device_name()
        if x.is_cuda
        else f"the CPU ({platform.machine()}, {torch.get_num_threads()} threads)"
    )
    return Answer(name, text, values.cpu(), indices.cpu(), [embedding, search, loss])


def stock_model(folder: str, device: str) -> Any:
    """The model as its package ships it, run by sentence-transformers, with the attention that writes its scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers
        from sentence_transformers import SentenceTransformer

        log: Any = transformers.logging
        log.set_verbosity_error()
        log.disable_progress_bar()
        return SentenceTransformer(folder, device=device, model_kwargs={"attn_implementation": "eager"})


def embed(step: Step, model: MiniLM, stock: Any, text: list[str]) -> tuple[Tensor, Row]:
    device = model.device.type
    done = step("embedding, its attention by tilefold", len(text))
    model.embed(model.tokens(text[:WARM]), tf.attention)
    with measured(device) as ours:
        tokens = model.tokens(text)
        x = model.embed(tokens, tf.attention, done)

    def encode(part: Sequence[int]) -> Tensor:
        out = stock.encode([text[i] for i in part], convert_to_tensor=True, show_progress_bar=False)
        assert isinstance(out, Tensor)
        return out.clone()  # out of inference mode

    done = step("embedding, the stock model", len(text))
    encode(range(WARM))
    plain_x = torch.empty_like(x[:, 0])
    order = sorted(range(len(text)), key=lambda i: -len(tokens[i]))  # so that its batches hold little padding
    with measured(device) as plain:
        for start in range(0, len(order), 8 * WARM):
            part = order[start : start + 8 * WARM]
            plain_x[part] = encode(part)
            done(len(part))
    off = float((x[:, 0] - plain_x).abs().max())
    note = "written out means the stock model as its package ships it, which pads its batches"
    return x, Row("embeddings", model.score_bytes(tokens), ours, plain, off, TOLERANCE, note)


def neighbours(step: Step, x: Tensor) -> tuple[Tensor, Tensor, Row]:
    def folded(x: Tensor) -> tuple[Tensor, Tensor]:
        return tf.knn(x, x, 1 + NEIGHBOURS, metric="cosine")

    def written_out(x: Tensor) -> tuple[Tensor, Tensor]:
        unit = F.normalize(x, dim=-1)
        values, indices = (unit @ unit.mT).topk(1 + NEIGHBOURS)
        return values, indices

    ours, plain, got, want = both(step, "nearest neighbours, both ways", folded, written_out, x)
    (values, indices), (plain_values, _) = got, want
    off = float((values - plain_values).abs().max())
    what, note = f"{NEIGHBOURS} nearest of each", "the difference is in their cosines"
    return values, indices, Row(what, 4 * len(x) ** 2, ours, plain, off, TOLERANCE, note)


def contrast(step: Step, halves: Tensor) -> Row:
    """Does the first half of a sentence find its second half among all? With gradients to both and to the scale."""

    def folded(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        return tf.contrastive_loss(a, b, scale=scale)

    def written_out(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        scores = scale * (F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT)
        own = torch.arange(len(a), device=a.device)
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.mT, own)) / 2

    def with_gradients(loss: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
        def compute(x: Tensor) -> tuple[Tensor, ...]:  # [N, 2, D]
            a, b = (half.contiguous().requires_grad_() for half in x.unbind(1))
            scale = torch.tensor(1 / TEMPERATURE, device=x.device, requires_grad=True)
            value = loss(a, b, scale)
            return (value.detach(), *torch.autograd.grad(value, (a, b, scale)))

        return compute

    what = "contrastive loss and gradients, both ways"
    ours, plain, got, want = both(step, what, with_gradients(folded), with_gradients(written_out), halves)
    # each beside its own size: an embedding's gradient is about 1/N of the loss
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, want))
    note = f"{float(got[0]):.3f}, for a first half to find its second half, and back; the difference is relative"
    return Row("contrastive loss and gradients", 4 * len(halves) ** 2, ours, plain, off, LOSS_TOLERANCE, note)


def both(step: Step, what: str, folded: Any, written_out: Any, x: Tensor) -> tuple[Cost, Cost, Any, Any]:
    done = step(what, 2)
    costs, results = [], []
    for way in (folded, written_out):
        way(x if x.is_cuda else x[:WARM])
        with measured(x.device.type) as cost:
            results.append(way(x))
        costs.append(cost)
        done()
    return costs[0], costs[1], results[0], results[1]
