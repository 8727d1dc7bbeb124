"""Ways to get the attention of every layer of the same encoder, each with the real package.

Every way is asked twice where it can: for all weights at once, and for the mean over heads of each
layer, which it may take on the way so that no matrix outlives its layer. All rivals need the model
in its eager implementation; the plain forward they are compared with is fused attention, which is
what the model runs when nobody looks.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from torch import Tensor
from transformers import BertForMaskedLM

import regard

Ask = Callable[[Tensor], list[Tensor]]


@dataclass(frozen=True)
class Way:
    """How one package gives weights: `build` prepares, what it returns is timed."""

    package: str
    what: str
    keeps: str  # "weights" or "means"
    build: Callable[[BertForMaskedLM, BertForMaskedLM], Ask]
    close: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return f"{self.package} {self.what}"


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def plain(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Callable[[Tensor], Any]:
    return fused.bert


# regard: the fused model, as it is


def captured(*reducers: Callable[[], regard.Reducer]) -> Any:
    """Recipes of all sites, or what reducers make of them."""
    how: dict[str, Any] = {"keep": [reducer() for reducer in reducers]} if reducers else {}

    def build(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Callable[[Tensor], Any]:
        def ask(ids: Tensor) -> Any:
            with regard.capture(fused.bert, **how) as trace:
                fused.bert(ids)
            return trace

        return ask

    return build


def regard_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    def ask(ids: Tensor) -> list[Tensor]:
        with regard.capture(fused.bert) as trace:
            fused.bert(ids)
        return list(trace.attentions)

    return ask


def results(answer: Any) -> Any:
    """The tensors that were asked for; recipes are none."""
    if not isinstance(answer, regard.Trace):
        return answer
    return [record.reductions for record in answer if record.reductions is not None]


def answers(answer: Any) -> list[Tensor]:
    """Weights or head means of each layer."""
    if not isinstance(answer, regard.Trace):
        return answer
    return [record.reductions[0] if record.reductions else record.weights() for record in answer]


# transformers


def hf_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    return lambda ids: list(eager.bert(ids, output_attentions=True).attentions)


def hf_means(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    return lambda ids: [
        layer.mean(1) for layer in eager.bert(ids, output_attentions=True).attentions
    ]


def hook_means(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    """The best that people do by hand: a hook on each attention module of the eager model."""

    def ask(ids: Tensor) -> list[Tensor]:
        means: list[Tensor] = []
        note = lambda module, inputs, output: means.append(output[1].mean(1))
        hooks = [
            layer.attention.self.register_forward_hook(note) for layer in eager.bert.encoder.layer
        ]
        try:
            eager.bert(ids)
        finally:
            for hook in hooks:
                hook.remove()
        return means

    return ask


# nnsight


def _nnsight(eager: BertForMaskedLM) -> Any:
    nnsight = importlib.import_module("nnsight")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # BERT has modules called "output", as nnsight's own name
        return nnsight, nnsight.NNsight(eager.bert)


def nnsight_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    nnsight, model = _nnsight(eager)

    def ask(ids: Tensor) -> list[Tensor]:
        with model.trace(ids):
            kept = nnsight.save([])
            for layer in model.encoder.layer:
                kept.append(layer.attention.self.output[1])
        return list(kept)

    return ask


def nnsight_means(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    nnsight, model = _nnsight(eager)

    def ask(ids: Tensor) -> list[Tensor]:
        with model.trace(ids):
            kept = nnsight.save([])
            for layer in model.encoder.layer:
                kept.append(layer.attention.self.output[1].mean(1))
        return list(kept)

    return ask


# TransformerLens


def _bridge(eager: BertForMaskedLM) -> Any:
    """TransformerLens wraps the masked language model; it insists on a tokenizer with a folder."""
    lens = importlib.import_module("transformer_lens.model_bridge")
    tokenizers = importlib.import_module("tokenizers")
    transformers = importlib.import_module("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0}, unk_token="?"))
    with tempfile.TemporaryDirectory() as folder:
        special = dict.fromkeys(("unk_token", "pad_token", "bos_token", "eos_token"), "?")
        fast = transformers.PreTrainedTokenizerFast(tokenizer_object=words, **special)
        fast.save_pretrained(folder)
        fast.init_kwargs["name_or_path"] = folder
        with contextlib.redirect_stdout(io.StringIO()):
            return lens.TransformerBridge.boot_transformers(
                "google-bert/bert-base-uncased", hf_model=eager, tokenizer=fast
            )


def lens_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    bridge = _bridge(eager)

    def ask(ids: Tensor) -> list[Tensor]:
        _, cache = bridge.run_with_cache(
            ids, names_filter=lambda name: name.endswith("hook_pattern")
        )
        return list(cache.values())

    return ask


def lens_means(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    bridge = _bridge(eager)

    def ask(ids: Tensor) -> list[Tensor]:
        means: list[Tensor] = []

        def note(pattern: Tensor, hook: Any) -> None:
            means.append(pattern.mean(1))

        bridge.run_with_hooks(ids, fwd_hooks=[(lambda name: name.endswith("hook_pattern"), note)])
        return means

    return ask


# captum


def captum_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    attr = importlib.import_module("captum.attr")
    layers = [layer.attention.self for layer in eager.bert.encoder.layer]
    activation = attr.LayerActivation(lambda ids: eager.bert(ids).last_hidden_state, layers)
    return lambda ids: [weights for _, weights in activation.attribute(ids)]


# torchlens: only softmaxes are saved, since saving everything, its default, is no match


def torchlens_weights(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    lens = importlib.import_module("torchlens")

    def ask(ids: Tensor) -> list[Tensor]:
        log = lens.trace(eager.bert, ids, save=lens.func("softmax"))
        return [op.out for op in log.ops if op.func_name == "softmax"]

    return ask


def torchlens_means(fused: BertForMaskedLM, eager: BertForMaskedLM) -> Ask:
    lens = importlib.import_module("torchlens")

    def ask(ids: Tensor) -> list[Tensor]:
        recording = lens.record(
            eager.bert,
            ids,
            save=lens.func("softmax"),
            activation_transform=lambda weights: weights.mean(1),
            save_raw_activations=False,
        )
        return [record.transformed_ram_payload for record in recording.records]

    return ask


def unpatch() -> None:
    """Torchlens leaves torch's functions wrapped after the first use."""
    importlib.import_module("torchlens.backends.torch.wrappers").unwrap_torch()


PLAIN = Way("regard", "plain", "", plain)
REGARD = [
    Way("regard", "capture", "weights", captured()),
    Way("regard", "capture, then all weights made", "weights", regard_weights),
    Way("regard", "keep=[HeadMean()]", "means", captured(regard.HeadMean)),
]
ENTROPY = Way("regard", "keep=[Entropy()]", "entropies", captured(regard.Entropy))
RIVALS = [
    Way("transformers", "output_attentions", "weights", hf_weights),
    Way("transformers", "output_attentions, then mean", "means", hf_means),
    Way("transformers", "forward hooks, mean", "means", hook_means),
    Way("nnsight", "trace", "weights", nnsight_weights),
    Way("nnsight", "trace, mean", "means", nnsight_means),
    Way("transformer-lens", "run_with_cache", "weights", lens_weights),
    Way("transformer-lens", "run_with_hooks, mean", "means", lens_means),
    Way("captum", "LayerActivation", "weights", captum_weights),
    Way("torchlens", "trace, save=softmax", "weights", torchlens_weights, unpatch),
    Way("torchlens", "record, mean", "means", torchlens_means, unpatch),
]


WAYS = {way.name: way for way in [PLAIN, *REGARD, ENTROPY, *RIVALS]}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the packages say about themselves."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
