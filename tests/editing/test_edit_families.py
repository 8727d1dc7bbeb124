"""Edits of transformers families against eager float64 twins with changed softmaxes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers as hf
from dense_edit import Spec, dense_edit
from families import FAMILIES, TEXT, Family, padded

import regard
from regard import masks

GEMMA = Family(
    hf.Gemma2Model,
    lambda: hf.Gemma2Config(
        **TEXT, num_key_value_heads=2, head_dim=16, sliding_window=5, attn_logit_softcapping=2.0
    ),
    padded,
    (),
    ("eager",),
)
# All experts: a rounding error must not choose another one.
MIXTRAL = replace(
    FAMILIES["mixtral"],
    config=lambda: hf.MixtralConfig(
        **TEXT, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=4
    ),
)
ALL = FAMILIES | {"gemma2": GEMMA, "mixtral": MIXTRAL}
SIZE = 70
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:_compile flag on create_block_mask:DeprecationWarning"),
    # torch's own compiler, imported when transformers asks for flex attention
    pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning"),
]


def noise(heads: int, seed: int = 7) -> torch.Tensor:
    return torch.randn(1, heads, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def changes(name: str) -> dict[str, list[Spec]]:
    heads = 1 if name == "swin" else 4
    late = [1, 3][: 1 if name == "swin" else 2] if heads > 1 else [1]
    head = late[:1]
    chosen = {
        "forbid": [Spec("forbid", queries=[*range(3, SIZE)], keys=[2, 5])],
        "forbid all": [Spec("forbid", queries=[4], heads=head)],
        "allow": [Spec("allow", masks.window(3, 0), heads=head)],
        "bias": [Spec("bias", noise(heads))],
        "temperature": [Spec("scale", 0.5, heads=head)],
        "scale keys": [Spec("scale", 2.0, keys=[1, 2, 3])],
        "multiply": [Spec("multiply", 3.0, keys=[1, 4])],
        "multiply to 0": [Spec("multiply", 0.0, keys=[1, 4], heads=head)],
        "halve": [Spec("multiply", 0.5, heads=head, renormalise=False)],
        "halve pairs": [Spec("multiply", 0.5, queries=[3, 4], keys=[0, 1], renormalise=False)],
        "factors": [
            Spec("multiply", 4.0, keys=[0]),
            Spec("multiply", 0.5, keys=[1, 2], renormalise=False),
            Spec("silence", heads=late[-1:]),
        ],
        "factors in turn": [
            Spec("multiply", 0.5, keys=[1, 2], renormalise=False),
            Spec("multiply", 4.0, keys=[0], heads=head),
            Spec("scale", 0.8),
        ],
        "uniform": [Spec("replace", "uniform", heads=head)],
        "previous": [Spec("replace", "previous", queries=[2, 3, 4])],
        "tensor": [Spec("replace", noise(heads).softmax(-1), heads=head)],
        "silence": [Spec("silence", heads=late)],
        "values": [Spec("scale_values", 0.3, keys=[2])],
        "several": [
            Spec("bias", noise(heads, 8)),
            Spec("scale", 0.7),
            Spec("forbid", keys=[1]),
            Spec("replace", "self", queries=[5], heads=head),
            Spec("multiply", 2.0, keys=[3]),
            Spec("silence", heads=late[-1:]),
        ],
    }
    if name == "swin":  # its masks are -100: whether a query sees a key depends on the precision
        del chosen["uniform"]
    return chosen


def fitted(specs: list[Spec], trace: regard.Trace) -> list[Spec]:
    """New weights as long as the attention at each site, for which a longer tensor is refused."""
    sizes = {record.path: record.shape for record in trace}
    fitting: list[Spec] = []
    for spec in specs:
        if spec.name == "replace" and isinstance(spec.amount, torch.Tensor):
            fitting += [
                spec._replace(amount=spec.amount[..., : size.queries, : size.keys], where=path)
                for path, size in sizes.items()
            ]
        else:
            fitting.append(spec)
    return fitting


def hidden(output) -> list[torch.Tensor]:
    return [
        output[name]
        for name in ("last_hidden_state", "encoder_last_hidden_state", "logits_per_image")
        if output.get(name) is not None
    ]


def compare(name: str, implementation: str, chosen: dict[str, list[Spec]]) -> float:
    family = ALL[name]
    model, twin = family.build(implementation), family.build("eager")
    wide = inputs = family.inputs()
    if name not in ("mixtral", "gpt-oss"):  # their experts know no float64
        twin = twin.double()
        wide = {k: v.double() if v.is_floating_point() else v for k, v in inputs.items()}
    rows = inputs["attention_mask"].bool() if name.startswith("deberta") else slice(None)
    worst = 0.0
    with torch.no_grad():
        plain = hidden(model(**inputs))
        trace = regard.trace(model, **inputs)
        for label, specs in chosen.items():
            specs = fitted(specs, trace)
            with dense_edit(twin, specs):
                truth = hidden(twin(**wide))
            with regard.edit(model, *[spec.change() for spec in specs]):
                output = hidden(model(**inputs))
            for ours, theirs in zip(output, truth):
                error = ((ours - theirs).abs() / theirs.abs().clamp_min(1))[rows].max().item()
                assert error < 1e-5, (label, error)
                worst = max(worst, error)
            moved = max((ours - old)[rows].abs().max() for ours, old in zip(output, plain))
            assert moved > 1e-3, label
        for after, old in zip(hidden(model(**inputs)), plain):
            assert torch.equal(after, old)
    return worst


QUICK = [
    ("bert", "sdpa"),
    ("bert", "eager"),
    ("gpt2", "sdpa"),
    ("llama", "sdpa"),
    ("llama", "eager"),
    ("gpt-oss", "eager"),
    ("gemma2", "eager"),
    ("mistral", "sdpa"),
    ("t5", "eager"),
    ("bart", "sdpa"),
    ("whisper", "sdpa"),
    ("deberta-v2", "eager"),
]


#: Models that every change is tried on; on others some of each kind, and all in the slow test.
THOROUGH = [("bert", "eager"), ("llama", "sdpa"), ("gpt-oss", "eager")]
SOME = ["forbid", "allow", "scale keys", "factors", "uniform", "values", "several"]


@pytest.mark.parametrize(("name", "implementation"), QUICK)
def test_equal_to_an_eager_twin(name: str, implementation: str) -> None:
    chosen = changes(name)
    if (name, implementation) not in THOROUGH:
        chosen = {label: chosen[label] for label in SOME}
    compare(name, implementation, chosen)


REST = [
    (name, implementation)
    for name, family in ALL.items()
    for implementation in family.implementations
    if (name, implementation) not in THOROUGH
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "implementation"), REST)
def test_equal_to_an_eager_twin_everywhere(name: str, implementation: str) -> None:
    with torch.compiler.set_stance("force_eager"):
        compare(name, implementation, changes(name))
