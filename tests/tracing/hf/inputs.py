"""Inputs for a tiny model, from the names in its signature and the sizes in its configuration.

Text is padded at the end of the second example. Where a model has places for images in its text,
their number is learned from the features that the model makes.
"""

from __future__ import annotations

import inspect
import re

import torch
from overrides import INPUTS
from torch import nn

BATCH, LENGTH, TARGET = 2, 13, 7


class Inputs:
    """Makes one argument after another; a method has the name of the argument that it makes."""

    def __init__(self, model_type: str, model: nn.Module, config) -> None:
        self.model_type, self.model, self.config = model_type, model, config
        try:
            self.text = config.get_text_config()
        except (AttributeError, ValueError):  # a model of sound has several, or none
            self.text = config
        self.generator = torch.Generator().manual_seed(1)
        self.names = list(inspect.signature(model.forward).parameters)

    def find(self, *names, default=None, configs=None):
        """The first of these settings that a configuration has, looking into nested ones."""
        for config in configs or self.all_configs():
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not isinstance(value, dict):
                    return value
        return default

    def all_configs(self):
        seen, queue = [], [self.config]
        while queue:
            config = queue.pop(0)
            seen.append(config)
            parts = [*getattr(config, "sub_configs", {}), "backbone_config"]
            queue += [part for name in parts if (part := getattr(config, name, None)) is not None]
        return seen

    def sub(self, *names):
        """A nested configuration by name, or the whole."""
        return next(
            (c for n in names if (c := getattr(self.config, n, None)) is not None), self.config
        )

    def noise(self, *shape):
        return torch.randn(*shape, generator=self.generator)

    def words(self, *shape, vocabulary=None):
        top = vocabulary or self.find("vocab_size", configs=[self.text, *self.all_configs()]) or 100
        top = top if isinstance(top, int) else 100
        return torch.randint(5, max(6, min(top, 130)), shape, generator=self.generator)

    # text

    def input_ids(self):
        return self.words(BATCH, LENGTH)

    def attention_mask(self):
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[1, -3:] = 0
        return mask

    def decoder_input_ids(self):
        return self.words(BATCH, TARGET)

    def bbox(self):
        corner = torch.randint(0, 50, (BATCH, LENGTH, 2), generator=self.generator)
        return torch.cat([corner, corner + 20], -1)

    # images

    def size(self):
        size = self.find("image_size", "img_size", "input_size", default=64)
        size = list(size) if isinstance(size, (list, tuple)) else [size, size]
        return [s if isinstance(s, int) else 64 for s in size][-2:]

    def pixel_values(self):
        channels = self.find("num_channels", "in_channels", "in_chans", default=3)
        channels = channels if isinstance(channels, int) and channels < 20 else 3
        frames = self.find("num_frames")
        video = re.search(r"video|timesformer|vivit|tvlt|tvp|xclip", self.model_type)
        if frames and video:
            return self.noise(BATCH, frames, channels, *self.size())
        return self.noise(BATCH, channels, *self.size())

    # sound and series

    def input_values(self):
        return self.noise(BATCH, 3200)

    def input_features(self):
        bins = self.find(
            "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", default=80
        )
        positions = self.find("max_source_positions")
        if "WhisperEncoder" in str(type(self.model)) or positions is not None:
            return self.noise(BATCH, bins, 2 * (positions or 32))
        return self.noise(BATCH, 40, bins)

    def fitted(self) -> dict[str, object]:
        """The first of the candidates with which the model runs."""
        said: list[Exception] = []
        for given in self.candidates():
            try:
                return self.with_places(given)
            except Exception as error:  # whatever a model says to input of the wrong kind
                said.append(error)
        if len(said) > 1:
            said[0].add_note(f"and at last {said[-1]!r}")
        raise said[0]

    def candidates(self):
        """The plain guess, then what families of models want instead; text alone at last."""
        if self.model_type in INPUTS:
            torch.manual_seed(1)
            yield INPUTS[self.model_type](self)
            return
        try:
            given = self.make()
        except NotImplementedError:
            if "input_ids" not in self.names:
                raise
            given = self.plain_text()
        yield given
        if "image_grid_thw" in self.names or "grid_thw" in self.names:
            yield given | self.grid()
        if "pixel_values" in given and given["pixel_values"].ndim == 4:
            yield given | {"pixel_values": given["pixel_values"][:, None]}
            if "image_sizes" in self.names:
                sizes = torch.tensor([self.size()] * BATCH)
                yield given | {"image_sizes": sizes}
                two = given["pixel_values"][:, None].repeat(1, 2, 1, 1, 1)
                yield given | {"image_sizes": sizes, "pixel_values": two}
            if "pixel_attention_mask" in self.names:
                yield given | self.patches()
        sound = next((n for n in ("input_features", "input_values") if n in given), None)
        if sound == "input_values":
            yield given | {sound: given[sound][:, None]}
            long = self.noise(BATCH, 1, 16_000)
            yield given | {sound: long}
        if sound == "input_features":
            bins = self.find("num_mel_bins", "n_mels", "input_feat_per_channel", default=80)
            bins = self.find("feature_projection_input_dim", "input_dim", default=bins)
            for length in (64, 100, 200):
                for shape in ((BATCH, length, bins), (BATCH, bins, length)):
                    masks = ("input_features_mask", "feature_attention_mask")
                    mask = {n: torch.ones(BATCH, length).long() for n in masks if n in self.names}
                    new = given | {sound: self.noise(*shape)} | mask
                    yield new
                    yield {k: v for k, v in new.items() if k != "attention_mask"}
        if "input_ids" in self.names:
            yield self.plain_text()

    def plain_text(self) -> dict[str, object]:
        words = {"input_ids": self.input_ids(), "attention_mask": self.attention_mask()}
        if "decoder_input_ids" in self.names:
            words["decoder_input_ids"] = self.decoder_input_ids()
        return {k: v for k, v in words.items() if k in self.names}

    def with_places(self, given: dict) -> dict[str, object]:
        """`given`, with a place in the text for every feature of an image or a sound."""
        token = self.find("image_token_id", "image_token_index", "img_token_id")
        if token is None or "input_features" in given:
            token = self.find("audio_token_id", "audio_token_index", default=token)
        for _ in range(3):
            try:
                with torch.no_grad():
                    self.model(**given)
            except (ValueError, RuntimeError) as error:
                told = re.search(r"tokens: (\d+).*features:? (\d+)", str(error))
                if not told or token is None or "input_ids" not in given:
                    raise
                count = int(told[2]) // BATCH
                if count > 400:
                    count //= self.text.hidden_size
                words = self.words(BATCH, LENGTH)
                words[words == token] = 5
                places = torch.full((BATCH, count), token)
                given["input_ids"] = torch.cat([words[:, :2], places, words[:, 2:]], 1)
                mask = torch.ones_like(given["input_ids"])
                mask[1, -3:] = 0
                given["attention_mask"] = mask
                if "mm_token_type_ids" in self.names:
                    given["mm_token_type_ids"] = (given["input_ids"] == token).long()
            else:
                return given
        raise ValueError("the number of places did not fit")

    def grid(self) -> dict[str, object]:
        """Images as rows of patches, with the grid of each: the way of Qwen2-VL."""
        vision = self.sub("vision_config")
        patch = getattr(vision, "patch_size", 16)
        depth = getattr(vision, "temporal_patch_size", 1)
        channels = getattr(vision, "in_channels", None) or getattr(vision, "in_chans", 3)
        pixels = self.noise(BATCH * 16, channels * depth * patch**2)
        grid = torch.tensor([[1, 4, 4]] * BATCH)
        if "image_grid_thw" in self.names:
            return {"pixel_values": pixels, "image_grid_thw": grid}
        main = "hidden_states" if "hidden_states" in self.names else "pixel_values"
        return {main: pixels, "grid_thw": grid}

    def patches(self) -> dict[str, object]:
        """Images as patches with a mask and their shapes: the way of SigLIP 2."""
        patch = self.sub("vision_config").patch_size
        return {
            "pixel_values": self.noise(BATCH, 16, 3 * patch**2),
            "pixel_attention_mask": torch.ones(BATCH, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]] * BATCH),
        }

    def hidden_states(self):
        return self.grid()["hidden_states"]

    def grid_thw(self):
        return self.grid()["grid_thw"]

    def pixel_values_videos(self):
        frames = self.find("num_frames", "frames_per_clip", default=4)
        return self.noise(BATCH, frames, 3, *self.size())

    def make(self) -> dict[str, object]:
        """All arguments that the model needs, by name."""
        given = {}
        main = getattr(self.model, "main_input_name", "input_ids")
        wanted = [main, "input_ids", "attention_mask", "decoder_input_ids", "bbox"]
        wanted += ["pixel_values", "input_values", "input_features"]
        wanted = [name for name in wanted if isinstance(name, str)]
        signature = inspect.signature(self.model.forward).parameters
        for name in dict.fromkeys(wanted):
            if name not in signature or not hasattr(self, name):
                continue
            optional = signature[name].default is not inspect.Parameter.empty
            if name == "attention_mask" and "input_ids" not in given:
                continue
            if (
                name == "input_ids"
                and main != "input_ids"
                and main not in ("pixel_values",)
                and optional
            ):
                continue
            given[name] = getattr(self, name)()
        for name, parameter in signature.items():
            kind = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            if parameter.default is inspect.Parameter.empty and not kind and name not in given:
                if hasattr(self, name):
                    given[name] = getattr(self, name)()
                else:
                    raise NotImplementedError(f"no rule for the argument {name}")
        return given
