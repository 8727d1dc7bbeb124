"""What the rules of `tiny.py` and `inputs.py` cannot know, by architecture.

`OVERRIDES` holds wherever a configuration of that type occurs, nested ones included.
"""

from __future__ import annotations

import torch

# architectures with a softmax that weighs no values
NO_ATTENTION: dict[str, str] = {
    "autoformer": "auto-correlation: a softmax over the best delays, each a shift of the series",
    "patchtsmixer": "gates: a softmax multiplies its own input, element by element",
    "superpoint": "a softmax over the places of a cell finds keypoints",
}
_LARGE = "a tower of timm with hundreds of millions of parameters, whatever the configuration says"
TOO_LARGE: dict[str, str] = {
    "blt": "its byte patcher has 190 M parameters",
    "gemma3n": _LARGE,
    "gemma3n_vision": _LARGE,
    "pe_audio_video": _LARGE,
    "pe_audio_video_encoder": _LARGE,
    "pe_video": _LARGE,
    "pe_video_encoder": _LARGE,
}
CLASSES: dict[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}
SKIP_KEYS: set[str] = set()
# what the configuration class itself cannot do without
ARGUMENTS: dict[str, dict] = {
    "autoformer": {"prediction_length": 4, "context_length": 12},
    "informer": {"prediction_length": 4, "context_length": 12},
    "time_series_transformer": {"prediction_length": 4, "context_length": 12},
    "esm": {"vocab_size": 160, "mask_token_id": 4, "pad_token_id": 1},
    "timm_backbone": {"backbone": "vit_tiny_patch16_224"},
}

_MROPE = {"rope_parameters": {"mrope_section": [2, 3, 3]}}
_HYBRID = {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}
_TIMES = {"input_size": 1, "num_time_features": 2, "lags_sequence": [1, 2, 3], "feature_size": 7}
_SAM = {"output_channels": 64, "num_pos_feats": 32, "window_size": 2, "global_attn_indexes": [1]}
_SAM_PROMPT = {"image_embedding_size": 4}
_HIERA = {
    "image_size": [64, 64],
    "blocks_per_stage": [1, 2, 2, 1],
    "hidden_size": 32,
    "num_attention_heads": 1,
    "embed_dim_per_stage": [32, 64, 128, 256],
    "num_attention_heads_per_stage": [1, 2, 4, 8],
    "window_size_per_stage": [8, 4, 4, 4],
    "global_attention_blocks": [4],
}
_DETR = {"decoder_in_channels": [64, 64, 64]}
_START = {"vision_start_token_id": 151, "vision_end_token_id": 152}
_STAGES = {
    "patch_size": 4,
    "window_size": 4,
    "depths": [2, 2],
    "num_heads": [3, 6],
    "num_layers": 2,
    "out_features": ["stage2"],
    "out_indices": [2],
    "hidden_size": 48,
    "stage_names": ["stem", "stage1", "stage2"],
}
OVERRIDES: dict[str, dict] = {
    "autoformer": {**_TIMES, "moving_average": 5},
    "informer": _TIMES,
    "time_series_transformer": _TIMES,
    "bamba": {"attn_layer_indices": [1], "mamba_d_state": 16, "mamba_chunk_size": 8},
    "granitemoehybrid": {**_HYBRID, "mamba_d_state": 16, "mamba_chunk_size": 8},
    "falcon_h1": {"mamba_d_state": 16, "mamba_chunk_size": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba2": {
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_d_state": 16,
        "mamba_headdim": 16,
        "chunk_size": 8,
        "hybrid_layer_ids": [1],
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "deepseek_v2": {"num_experts_per_tok": 2, "topk_method": "greedy"},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "nemotron": {"num_key_value_heads": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8, "H_cycles": 1, "L_cycles": 1},
    "glm4v_text": _MROPE,
    "glm4v_moe_text": {"rope_parameters": {"mrope_section": [1, 1, 2]}},
    "glm_ocr_text": _MROPE,
    "glm_image_text": _MROPE,
    "qwen2_vl_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "qwen2_5_omni_text": _MROPE,
    "paddleocr_vl_text": _MROPE,
    "ernie4_5_vl_moe_text": {
        "rope_parameters": {"mrope_section": [3, 3, 2]},
        "moe_intermediate_size": [64, 64],
    },
    "glm5_next_text": {"index_topk": 16, "index_kpool": 4, "qk_rope_head_dim": 0},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "bros": {
        "dim_bbox_projection": 16,
        "dim_bbox_sinusoid_emb_2d": 64,
        "dim_bbox_sinusoid_emb_1d": 8,
    },
    "dab-detr": {"query_dim": 4},
    "lilt": {"hidden_size": 96, "num_attention_heads": 4},
    "mobilebert": {"intra_bottleneck_size": 64},
    "reformer": {
        "attn_layers": ["local", "lsh"],
        "axial_pos_shape": [4, 8],
        "axial_pos_embds_dim": [32, 32],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "max_position_embeddings": 32,
    },
    "xlnet": {"d_head": 16},
    "xmod": {"default_language": "en_XX"},
    "swin2sr": {
        "patch_size": 1,
        "embed_dim": 24,
        "depths": [2, 2],
        "num_heads": [3, 3],
        "window_size": 4,
    },
    "sam_vision_model": _SAM,
    "sam_hq_vision_model": _SAM,
    "got_ocr2_vision": {"num_pos_feats": 32},
    "sam_prompt_encoder": _SAM_PROMPT,
    "sam_hq_prompt_encoder": _SAM_PROMPT,
    "sam2_hiera_det_model": _HIERA,
    "sam2_vision_model": {
        "backbone_channel_list": [256, 128, 64, 32],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]],
    },
    "siglip2_vision_model": {"num_patches": 16},
    "clap_audio_model": {
        "patch_embeds_hidden_size": 32,
        "patch_size": 4,
        "spec_size": 64,
        "num_mel_bins": 16,
        "hidden_size": 256,
        "window_size": 2,
        "num_hidden_layers": 4,
        "num_attention_heads": [2, 4, 8, 16],
    },
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 32},
    "mimi": {"upsample_groups": 32, "num_quantizers": 4},
    "pocket_tts_audio_tokenizer": {"upsample_groups": 32},
    "align_vision_model": {"hidden_dim": 640},
    "efficientnet": {"hidden_dim": 2560},
    "convnext": {"patch_size": 4},
    "convnextv2": {"patch_size": 4},
    "mobilevitv2": {"patch_size": 2},
    "levit": {"patch_size": 16},
    "chameleon": {"vocabulary_map": {"<image>": 150}, "image_token_id": 150},
    "chameleon_vqgan": {
        "base_channels": 32,
        "latent_channels": 32,
        "resolution": 64,
        "num_embeddings": 64,
        "channel_multiplier": [1, 2],
        "num_res_blocks": 1,
    },
    "granite4_vision": {
        "deepstack_layer_map": [[0, 0]],
        "spatial_target_layers": [1],
        "downsample_rate": "1/2",
    },
    "sapiens2": {"num_key_value_heads_per_layer": [4, 4]},
    "patchtst": {"patch_length": 4, "patch_stride": 4},
    "patchtsmixer": {"patch_length": 8, "patch_stride": 8},
    "timesfm": {"patch_length": 8, "context_length": 64},
    "timesfm2_5": {"patch_length": 8, "context_length": 64},
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2},
    "perceiver": {"d_model": 64, "num_blocks": 1},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine": {"encoder_num_key_value_heads": 4, "decoder_num_key_value_heads": 4},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "step3p5": {"sliding_window": 8},
    "muse_spark_audio": {
        "patch_sizes": [16, 4],
        "hidden_sizes": [32, 64],
        "depths": [1, 1],
        "num_hidden_layers": 2,
    },
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 64},
    "deepseek_ocr2_text": {"layer_types": ["full_attention", "full_attention"]},
    "cohere_compass_text": {
        "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}},
    },
    "perception_lm": {"vision_config": {"model_args": {"embed_dim": 64}}},
    "mistral4": {"rope_parameters": {"partial_rotary_factor": 1.0}},
    "vitdet": {"window_size": 2},
    "align": {"projection_dim": 640},
    "encodec": {"codebook_dim": 64},
    "moshi": {"audio_encoder_config": {"num_quantizers": 32}},
    "luke": {"entity_vocab_size": 50, "entity_emb_size": 64},
    "mluke": {"entity_vocab_size": 50, "entity_emb_size": 64},
    "grounding-dino": {"num_queries": 4},
    "mm-grounding-dino": {"num_queries": 4},
    "rt_detr": _DETR,
    "rt_detr_v2": _DETR,
    "d_fine": _DETR,
    "deimv2": _DETR,
    "pp_doclayout_v2": _DETR,
    "pp_doclayout_v3": _DETR,
    "pp_doclayout_v4": _DETR,
    "qwen2_5_omni_thinker": _START,
    "qwen3_omni_moe_thinker": _START,
    "blip-2": {"image_token_index": 150},
    "instructblip": {"image_token_index": 150},
    "instructblipvideo": {"video_token_index": 150},
    "mamba2": {"num_heads": 8, "head_dim": 16, "state_size": 16, "chunk_size": 8},
    "superpoint": {"keypoint_decoder_dim": 65, "descriptor_decoder_dim": 64},
    "seggpt": {"image_size": [128, 64], "merge_index": 0, "intermediate_hidden_state_indices": [1]},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "kosmos-2": {"latent_query_num": 4},
    "exaone4_5_vision": {"window_size": 64},
    "qwen2_5_vl_vision": {"window_size": 64},
    "zamba": {
        "num_hidden_layers": 4,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
        "mamba_dt_rank": 8,
    },
    "emu3": {"vocabulary_map": {"<image>": 150}},
    "emu3_vqgan": {
        "base_channels": 32,
        "latent_channels": 4,
        "channel_multiplier": [1, 2],
        "num_res_blocks": 1,
        "codebook_size": 64,
    },
}
# only where the architecture stands for itself: others count on the stages of these backbones
OVERRIDES_AT_TOP: dict[str, dict] = {
    "swin": _STAGES,
    "swinv2": {**_STAGES, "pretrained_window_sizes": [0, 0]},
    "donut-swin": _STAGES,
    "maskformer-swin": _STAGES,
}


def _series(given):
    features = torch.randn(2, 15, 2)
    return {
        "past_values": torch.randn(2, 15),
        "past_time_features": features,
        "past_observed_mask": torch.ones(2, 15),
        "future_values": torch.randn(2, 4),
        "future_time_features": torch.randn(2, 4, 2),
    }


def _words(given, *names, **more):
    words = {"input_ids": given.input_ids(), "attention_mask": given.attention_mask()}
    return words | {name: getattr(given, name)() for name in names} | more


INPUTS: dict = {
    "autoformer": _series,
    "informer": _series,
    "time_series_transformer": _series,
    "patchtst": lambda given: {"past_values": torch.randn(2, 32, 1)},
    "patchtsmixer": lambda given: {"past_values": torch.randn(2, 32, 1)},
    "timesfm": lambda given: {
        "past_values": torch.randn(2, 64),
        "past_values_padding": torch.zeros(2, 64).long(),
        "freq": torch.zeros(2, 1).long(),
    },
    "timesfm2_5": lambda given: {
        "past_values": torch.randn(2, 64),
        "past_values_padding": torch.zeros(2, 64).long(),
    },
    "perceiver": lambda given: {"inputs": torch.randn(2, 9, 64)},
    "decision_transformer": lambda given: {
        "states": torch.randn(2, 5, given.config.state_dim),
        "actions": torch.randn(2, 5, given.config.act_dim),
        "rewards": torch.randn(2, 5, 1),
        "returns_to_go": torch.randn(2, 5, 1),
        "timesteps": torch.arange(5).expand(2, 5),
        "attention_mask": torch.ones(2, 5).long(),
    },
    "lxmert": lambda given: _words(
        given,
        visual_feats=torch.randn(2, 6, given.config.visual_feat_dim),
        visual_pos=torch.rand(2, 6, given.config.visual_pos_dim),
    ),
    "blip_2_qformer": lambda given: {
        "query_embeds": torch.randn(2, 5, 64),
        "encoder_hidden_states": torch.randn(2, 7, given.config.encoder_hidden_size),
    },
    "pix2struct": lambda given: {
        "flattened_patches": torch.cat(
            [
                torch.arange(16).view(16, 1).expand(2, 16, 1) % 4,
                torch.ones(2, 16, 1),
                torch.randn(2, 16, 64),
            ],
            -1,
        ),
        "decoder_input_ids": given.decoder_input_ids(),
    },
    "bros": lambda given: _words(given, bbox=torch.rand(2, 13, 8)),
    "reformer": lambda given: {
        "input_ids": given.words(2, 32),
        "attention_mask": torch.ones(2, 32).long(),
    },
    "instructblip": lambda given: {
        "pixel_values": given.pixel_values(),
        "qformer_input_ids": given.words(2, 6),
        "input_ids": given.input_ids(),
        "attention_mask": given.attention_mask(),
    },
    "audio-spectrogram-transformer": lambda given: {"input_values": torch.randn(2, 64, 32)},
    "clap": lambda given: _words(
        given, input_features=torch.randn(2, 1, 256, 16), is_longer=torch.zeros(2, 1).bool()
    ),
    "superglue": lambda given: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "lightglue": lambda given: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "efficientloftr": lambda given: {"pixel_values": torch.randn(1, 2, 3, 64, 64)},
    "seggpt": lambda given: {
        name: torch.randn(2, 3, 64, 64)
        for name in ("pixel_values", "prompt_pixel_values", "prompt_masks")
    },
    "dia": lambda given: _words(given, decoder_input_ids=given.words(2, 7, 9)),
    "kyutai_speech_to_text": lambda given: {
        "input_ids": given.words(2, 13, given.config.num_codebooks + 1)
    },
    "clvp": lambda given: _words(given, input_features=torch.randn(2, 80, 20)),
    "siglip2_vision_model": lambda given: given.patches(),
    "speecht5": lambda given: {
        "input_values": torch.randn(2, 13, 64),
        "decoder_input_values": torch.randn(2, 7, 64),
    },
    "speech-encoder-decoder": lambda given: {
        "input_values": given.input_values(),
        "decoder_input_ids": given.decoder_input_ids(),
    },
    "kosmos-2": lambda given: _words(
        given,
        "pixel_values",
        image_embeds_position_mask=(torch.arange(13).expand(2, 13) % 13).sub(2).abs().le(1).long()
        + (torch.arange(13).expand(2, 13) == 5),
    ),
    "timm_backbone": lambda given: {"pixel_values": torch.randn(1, 3, 224, 224)},
    "instructblipvideo": lambda given: {
        "pixel_values": torch.randn(2, 4, 3, 64, 64),
        "qformer_input_ids": given.words(8, 6),
        "input_ids": given.input_ids(),
        "attention_mask": given.attention_mask(),
    },
    "musicgen": lambda given: {
        "input_ids": given.input_ids(),
        "attention_mask": given.attention_mask(),
        "decoder_input_ids": given.words(2 * 4, 7),
    },
    "oneformer": lambda given: {
        "pixel_values": given.pixel_values(),
        "task_inputs": given.words(2, 77, vocabulary=99),
    },
    "idefics": lambda given: _words(
        given,
        pixel_values=torch.randn(2, 1, 3, 64, 64),
        image_attention_mask=torch.ones(2, 13, 1).long(),
    ),
    "deepseek_vl_hybrid": lambda given: _words(given),
}
INPUTS["musicgen_melody"] = INPUTS["musicgen"]
