"""Every model in the registry keeps every law of the contract, in several shapes."""

from __future__ import annotations

import pytest
from translator_laws import LAWS, SOURCE, TARGET

from regard.translate.models.build import ModelConfig, build_model, names

SIZES = {"embedding": 6, "hidden": 8}
OWN = {
    "transformer": {"embedding": 8, "heads": 2, "feed_forward": 10},
    "tutorial": {"longest": 15},
}
#: Other shapes of some models: each at least once with each cell, layer, direction and feeding.
SHAPES = {
    "bahdanau deep lstm": ModelConfig("bahdanau", layers=2, cell="lstm", **SIZES),  # type: ignore[arg-type]
    "bahdanau deep": ModelConfig("bahdanau", layers=2, **SIZES),  # type: ignore[arg-type]
    "tutorial lstm": ModelConfig("tutorial", cell="lstm", longest=15, **SIZES),  # type: ignore[arg-type]
    "none onward": ModelConfig("none", bidirectional=False, **SIZES),  # type: ignore[arg-type]
    "dot reversed": ModelConfig(
        "dot",
        bidirectional=False,
        reverse_source=True,
        **SIZES,  # type: ignore[arg-type]
    ),
    "luong-general fed": ModelConfig("luong-general", input_feeding=True, layers=2, **SIZES),  # type: ignore[arg-type]
    "luong-dot aligner": ModelConfig("luong-dot", aligner=True, **SIZES),  # type: ignore[arg-type]
    "qkv aligner fed": ModelConfig("qkv", aligner=True, input_feeding=True, **SIZES),  # type: ignore[arg-type]
    "local-m fed tied": ModelConfig("local-m", input_feeding=True, tie="target", **SIZES),  # type: ignore[arg-type]
    "local-p deep lstm": ModelConfig("local-p", layers=2, cell="lstm", **SIZES),  # type: ignore[arg-type]
    "qkv lstm fed": ModelConfig("qkv", cell="lstm", input_feeding=True, **SIZES),  # type: ignore[arg-type]
}
PLAIN = {name: ModelConfig(name, **{**SIZES, **OWN.get(name, {})}) for name in names()}  # type: ignore[arg-type]
CONFIGS = {**PLAIN, **SHAPES}


@pytest.mark.parametrize("check", LAWS.values(), ids=LAWS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_law(config, check):
    check(lambda: build_model(config, SOURCE, TARGET))
