"""Small models with heads to score, mask and remove: for tests of importance and of pruning."""

import copy
import math

import torch
import torch.nn.functional as F
import transformers as hf
from torch import nn

from regard.anatomy.head_sites import head_sites

WIDTH, HEADS, LENGTH, BATCH = 16, 4, 6, 3
TEXT = {
    "vocab_size": 50,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PAIR = {
    "vocab_size": 50,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "decoder_start_token_id": 2,
    **SPECIAL,
}
# family -> model class, configuration, attentions in the order in which they run
FAMILIES = {
    "bert": (
        hf.BertModel,
        lambda: hf.BertConfig(**TEXT),
        [f"encoder.layer.{i}.attention.self" for i in range(2)],
    ),
    "roberta": (
        hf.RobertaModel,
        lambda: hf.RobertaConfig(**TEXT, **SPECIAL),
        [f"encoder.layer.{i}.attention.self" for i in range(2)],
    ),
    "distilbert": (
        hf.DistilBertModel,
        lambda: hf.DistilBertConfig(
            vocab_size=50, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=24
        ),
        [f"transformer.layer.{i}.attention" for i in range(2)],
    ),
    "gpt2": (
        hf.GPT2Model,
        lambda: hf.GPT2Config(vocab_size=50, n_embd=WIDTH, n_layer=2, n_head=HEADS, **SPECIAL),
        [f"h.{i}.attn" for i in range(2)],
    ),
    "llama": (
        hf.LlamaModel,
        lambda: hf.LlamaConfig(**TEXT, num_key_value_heads=2, **SPECIAL),
        [f"layers.{i}.self_attn" for i in range(2)],
    ),
    "t5": (
        hf.T5Model,
        lambda: hf.T5Config(
            vocab_size=50, d_model=WIDTH, d_kv=4, d_ff=24, num_layers=2, num_heads=HEADS
        ),
        [
            *(f"encoder.block.{i}.layer.0.SelfAttention" for i in range(2)),
            *(
                f"decoder.block.{i}.layer.{name}"
                for i in range(2)
                for name in ("0.SelfAttention", "1.EncDecAttention")
            ),
        ],
    ),
    "marian": (
        hf.MarianModel,
        lambda: hf.MarianConfig(**PAIR),
        [
            *(f"encoder.layers.{i}.self_attn" for i in range(2)),
            *(f"decoder.layers.{i}.{name}_attn" for i in range(2) for name in ("self", "encoder")),
        ],
    ),
}


def built(family: str, dtype=torch.float64) -> nn.Module:
    """A small model with weights large enough that heads differ."""
    torch.manual_seed(0)
    kind, config, _ = FAMILIES[family]
    model = kind(config()).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.2 / math.sqrt(parameter.shape[-1]))
    return model


def words(family: str, batch: int = BATCH) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 50, (batch, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    given = {"input_ids": ids, "attention_mask": mask}
    if family in ("t5", "marian"):
        given["decoder_input_ids"] = torch.randint(3, 50, (batch, 4), generator=generator)
    return given


def hidden_loss(output, inputs) -> torch.Tensor:
    """One number for each example, from a position that is never padded."""
    last = output[0] if isinstance(output, tuple) else output.last_hidden_state
    direction = torch.linspace(-1, 1, last.shape[-1], dtype=last.dtype)
    return ((last * direction).sum(-1) ** 2)[:, 1]


def encoder(layers: int = 2, *, batch_first: bool = True, **more) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=batch_first, dropout=0.1)
    model = nn.TransformerEncoder(layer, layers, **more).to(torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


class MultiHeadOnly(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, heads, batch_first=True)

    def forward(self, x):
        return self.attend(x, x, x, need_weights=False)[0]


class Homegrown(nn.Module):
    """Names that nobody could guess."""

    def __init__(self):
        super().__init__()
        self.mixer = nn.Linear(WIDTH, 3 * WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.mixer(x).chunk(3, -1)
        )
        return self.last(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


def masked_by_hand(model, heads: dict[str, list[int]]) -> nn.Module:
    """A copy whose output projections have zeros where the heads enter."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for site in head_sites(other):
            width = site.head_width
            for head in heads.get(site.name, []):
                weight = site.projection.weight
                columns = slice(head * width, (head + 1) * width)
                if type(site.projection).__name__ == "Conv1D":
                    weight[columns] = 0
                else:
                    weight[:, columns] = 0
    return other


def near(one, other, tolerance=1e-10):
    torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
