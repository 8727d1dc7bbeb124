"""A tiny model of any transformers architecture, from its own configuration class.

`configuration(model_type)` shrinks every size it knows by name, in nested configurations too;
`OVERRIDES` says what a rule cannot know. `build` makes the model, and `randomise` gives it weights
larger than the usual ones, so that attention is far from uniform and a wrong weight is seen.
"""

from __future__ import annotations

import copy
import math
import re

import torch
from overrides import ARGUMENTS, CLASSES, OVERRIDES, OVERRIDES_AT_TOP, SKIP_KEYS
from torch import nn
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, LAYERS, VOCABULARY = 64, 4, 2, 16, 2, 160

# The base model first; else what the architecture is for.
_TASKS = [
    "MODEL_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_BACKBONE_MAPPING_NAMES",
    "MODEL_FOR_DEPTH_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
    "MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_MATTING_MAPPING_NAMES",
    "MODEL_FOR_POSE_ESTIMATION_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_DETECTION_MAPPING_NAMES",
    "MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES",
    "MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES",
    "MODEL_FOR_RETRIEVAL_MAPPING_NAMES",
    "MODEL_FOR_PRETRAINING_MAPPING_NAMES",
]

# name of a setting -> its tiny value. The first rule that matches decides; None keeps the default.
_RULES: list[tuple[str, object]] = [
    (r".*(token|tok)_(id|index|ids)s?", "token"),
    (r"num_feat_extract_layers|num_conv.*|num_feature_levels|query_dim|.*mel.*|.*kernel.*", None),
    (r"temporal_patch_size|.*codebook_dim|cross_layer_interval", None),
    (r"rotary_dim", HEAD_WIDTH // 2),
    (r"num_kv_shared_layers", 0),
    (r"n_groups?|num_expert_groups?|topk_group", 1),
    (
        r"(text_|decoder_|encoder_)?vocab_size(_or_config_json_file|_per_layer_input)?|n_words",
        VOCABULARY,
    ),
    (r"type_vocab_size|.*vocab_sizes?|.*codebook_size", None),
    (r".*mamba_(n|num)_heads|n_mamba_heads", 2 * HEADS),
    (r"mamba_d_ssm", 2 * WIDTH),
    (r".*num_key_value_heads|.*num_kv_heads|n_head_kv|num_key_value_groups", "key_heads"),
    (r".*head_?dims?|.*head_size|kv_channels|d_kv|.*d_head", HEAD_WIDTH),
    (r".*(num_|n_)?(attention_)?heads?|.*num_.*heads", HEADS),
    (r".*lora_rank", HEAD_WIDTH),
    (r"(num|n)_(routed_|local_|shared_)?experts|moe_num_experts|.*num_experts", "experts"),
    (r".*expert.*(top|per_tok|k)|.*top_?k.*|moe_k|.*_per_tok(en)?", "top"),
    (
        r".*(intermediate|ffn|feedforward|feed_forward|inner|mlp|ff)_?(hidden_)?(size|dim)s?.*",
        2 * WIDTH,
    ),
    (r"d_ff|n_inner|d_inner|ffn_hidden_size|dim_feedforward", 2 * WIDTH),
    (r"hidden_size_per_layer_input|.*per_layer_input", HEAD_WIDTH),
    (
        r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|emb_dim|dim|width)",
        WIDTH,
    ),
    (
        r"(.*_)?(projection_dim|projection_size|output_dim|out_dim|hidden_channels|pooler_output_size)",
        WIDTH,
    ),
    (r"d_latents|backbone_hidden_size", WIDTH),
    (
        r"(.*_)?(num_hidden_layers|num_layers|n_layers?|depth|encoder_layers|decoder_layers)",
        "layers",
    ),
    (r"(.*_)?num_.*_layers|(.*_)layers|num_blocks|num_self_attends_per_block", "layers"),
    (r"max_position_embeddings|n_positions|max_seq(uence)?_len(gth)?|n_ctx", 512),
    (r"max_source_positions|max_target_positions", 64),
    (r"(.*_)?(image|img|crop|input)_size|input_resolution", 64),
    (r"(.*_)?patch_size", 16),
    (
        r"sliding_window|attention_chunk_size|window_size|.*local_attention.*|attention_window",
        "window",
    ),
    (r"num_queries|num_query_tokens|num_latents|.*num_detection_tokens", 10),
]
_RULES_COMPILED = [(re.compile(pattern), value) for pattern, value in _RULES]

# What follows from the number of layers: left to the class, which computes it again.
DROPPED = {"out_features", "out_indices", "stage_names", "per_layer_config"}
COMPUTED = {"qk_head_dim", "attention_layers", "per_layer_config"}


def shrink(settings: dict, model_type: str) -> dict:
    """The same settings with tiny sizes, nested dictionaries included."""
    depths = [
        len(settings[key]) for key in ("layer_types", "layers_block_type") if settings.get(key)
    ]
    if "depths" not in settings:  # stages are another matter
        counts = (settings.get(key) for key in ("num_hidden_layers", "num_layers"))
        depths += [count for count in counts if isinstance(count, int)]
    default_layers = depths[0] if depths else 0
    kinds = list(
        dict.fromkeys(settings.get("layer_types") or settings.get("layers_block_type") or [])
    )
    layers = max(LAYERS, len(kinds))
    outputs = settings.get("out_features") or settings.get("out_indices") or []
    stacked = isinstance(settings.get("num_hidden_layers"), int) and "depths" not in settings
    if stacked:  # a backbone that hands on several of its layers
        layers = max(layers, len(outputs))
    specials = iter(range(VOCABULARY - 1, 0, -1))
    new = {}
    for key, value in settings.items():
        if key in DROPPED and stacked:
            if key == "out_features" and len(outputs) > 1:
                new[key] = [f"stage{i + 1}" for i in range(len(outputs))]
            continue
        if key in COMPUTED:
            continue
        if key in SKIP_KEYS:
            new[key] = value
        elif key == "depths" and isinstance(value, list) and model_type != "rt_detr_resnet":
            new[key] = [1] * len(value)
        elif isinstance(value, dict) and ("model_type" in value or key.endswith("config")):
            new[key] = shrink(value, value.get("model_type", model_type))
        elif key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            new[key] = _rope(value)
        elif isinstance(value, list) and default_layers and len(value) == default_layers:
            if key in ("layer_types", "layers_block_type"):
                new[key] = (kinds * layers)[:layers] if len(kinds) > 1 else kinds * layers
            else:
                new[key] = [
                    _tiny(key, item, settings, layers, specials) if type(item) is int else item
                    for item in value[:layers]
                ]
        elif isinstance(value, bool) or not isinstance(value, int):
            new[key] = value
        else:
            new[key] = _tiny(key, value, settings, layers, specials)
    merge(new, OVERRIDES.get(model_type, {}))
    return new


def _tiny(key, value, settings, layers, specials):
    rule = next((rule for pattern, rule in _RULES_COMPILED if pattern.fullmatch(key)), None)
    match rule:
        case None:
            return value
        case "token":
            return value if value < VOCABULARY - 20 else next(specials)
        case "key_heads":
            heads = next(
                (settings[k] for k in ("num_attention_heads", "num_heads") if settings.get(k)), 0
            )
            return 1 if value == 1 else HEADS if value == heads else KEY_HEADS
        case "experts":
            return min(value, 4)
        case "top":
            return min(value, 2)
        case "layers":
            return min(value, layers)
        case "window":
            return min(value, 8)
    if isinstance(heads := settings.get("num_heads"), list) and key == "embed_dim":
        return 8 * heads[0]  # the first stage of several
    return value if value == 0 else rule


def _rope(value: dict) -> dict:
    """Sections of a rotation with several axes, scaled so that they still fill half a head."""
    new = copy.deepcopy(value)
    for part in [new, *(v for v in new.values() if isinstance(v, dict))]:
        if section := part.get("mrope_section"):
            share = [max(1, round(n * HEAD_WIDTH / 2 / sum(section))) for n in section]
            share[0] += HEAD_WIDTH // 2 - sum(share)
            part["mrope_section"] = share
            assert all(n > 0 for n in share), share
        for name in ("long_factor", "short_factor"):
            if part.get(name):
                part[name] = part[name][: HEAD_WIDTH // 2]
    return new


def architecture(model_type: str) -> str | None:
    """Name of the model class that stands for this configuration, or None where there is none."""
    if model_type in CLASSES:
        return CLASSES[model_type]
    for task in _TASKS:
        name = getattr(modeling_auto, task).get(model_type)
        if name:
            return name if isinstance(name, str) else name[0]
    return None


def configuration(model_type: str):
    """The shrunk configuration of an architecture."""
    config_class = CONFIG_MAPPING[model_type]
    settings = shrink(config_class(**ARGUMENTS.get(model_type, {})).to_dict(), model_type)
    merge(settings, OVERRIDES_AT_TOP.get(model_type, {}))
    for key in ("architectures", "transformers_version", "model_type", "_name_or_path"):
        settings.pop(key, None)
    return config_class.from_dict(settings)


def merge(settings: dict, changes: dict) -> None:
    """Put `changes` over `settings`, nested dictionaries key by key."""
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(key), dict):
            merge(settings[key], value)
        else:
            settings[key] = value


def build(model_type: str, config, **options) -> nn.Module:
    """The model with random weights, in eval mode."""
    import transformers

    model_class = getattr(transformers, architecture(model_type))
    if hasattr(model_class, "_from_config"):
        model = model_class._from_config(copy.deepcopy(config), **options)
    else:
        model = model_class(copy.deepcopy(config))
    return model.eval()


@torch.no_grad()
def randomise(model: nn.Module, seed: int = 0) -> None:
    """Weights that make peaked attention: matrices of variance 1.5 / fan-in, small biases."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim >= 2:
            fan = math.prod(parameter.shape[1:])
            embedding = "embed" in name or "token" in name
            parameter.copy_(noise * (0.5 if embedding else math.sqrt(1.5 / fan)))
        elif name.endswith("bias"):
            parameter.copy_(0.1 * noise)
