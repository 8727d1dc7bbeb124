"""How many associations a memory holds, and whether it can change one.

The task of Schlag et al. 2021, section 6.1: a sequence of N (key, value) pairs is written, then one
key is asked for. Keys are learned embeddings of width 64, values one-hot. Linear attention with
elu + 1 has 64 features, so it cannot tell 80 keys apart; DPFP has 128. Where a key comes again with
a new value, adding up gives a mixture of both, and the delta rule replaces the old one.

    python experiments/mechanisms/associative_retrieval.py [--seeds 3]

prints the loss (½ squared error) and the share of right answers on fresh sequences.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.mechanisms import DPFP, EluPlusOne, SumNormalised
from regard.recipe import Delta, Linear

WIDTH = 64
BATCH = 32


@dataclass(frozen=True)
class Setting:
    """One row of the table."""

    name: str
    feature_map: type[nn.Module]
    delta: bool
    n_keys: int
    steps: int
    repeated: bool = False  # keys come again with other values: the last one counts


SETTINGS = (
    Setting("elu + 1, sum, 20 keys", EluPlusOne, False, 20, 1000),
    Setting("elu + 1, sum, 80 keys", EluPlusOne, False, 80, 3000),
    Setting("DPFP-1, sum, 80 keys", DPFP, False, 80, 500),
    Setting("DPFP-1, sum, 20 keys repeated", DPFP, False, 20, 700, repeated=True),
    Setting("DPFP-1, delta, 20 keys repeated", DPFP, True, 20, 700, repeated=True),
)


class Memory(nn.Module):
    """Pairs written into a linear memory, and one key read from it."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.embedding = nn.Embedding(setting.n_keys, WIDTH)
        self.to_key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.feature_map = SumNormalised(setting.feature_map())
        if setting.delta:
            self.to_strength = nn.Linear(WIDTH + setting.n_keys, 1)

    def forward(self, keys: Tensor, values: Tensor, asked: Tensor) -> Tensor:
        """Keys (batch, pair), one-hot values (batch, pair, value), asked (batch,): the answer."""
        written, read = self.embedding(keys), self.embedding(asked)[:, None]
        key = self.feature_map(self.to_key(written)[:, None], "key")  # (batch, 1, pair, features)
        query = self.feature_map(self.to_query(read)[:, None], "query")
        value = values[:, None]
        if not self.setting.delta:
            return Linear(query, key, value).mixed()[:, 0, 0]
        strength = self.to_strength(torch.cat([written, values], -1)).sigmoid().mT
        return Delta(query, key, strength, value).mixed()[:, 0, 0]


def batch(setting: Setting, pairs: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Keys, one-hot values, a key that occurs, and the value it was last given."""
    if setting.repeated:
        keys = torch.randint(setting.n_keys, (size, pairs))
    else:
        keys = torch.rand(size, setting.n_keys).argsort(1)[:, :pairs]
    values = nn.functional.one_hot(torch.randint(setting.n_keys, keys.shape), setting.n_keys)
    occurs = torch.zeros(size, setting.n_keys).scatter(1, keys, 1.0)
    asked = occurs.multinomial(1)[:, 0]
    last = pairs - 1 - (keys == asked[:, None]).flip(1).int().argmax(1)
    return keys, values.float(), asked, values.float()[torch.arange(size), last]


def run(setting: Setting, seed: int) -> tuple[float, float]:
    """Loss and share of right answers after training, on 2000 fresh sequences."""
    torch.manual_seed(seed)
    model = Memory(setting)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    pairs = setting.n_keys * (2 if setting.repeated else 1)
    for _ in range(setting.steps):
        *inputs, target = batch(setting, pairs, BATCH)
        loss = (model(*inputs) - target).square().sum(-1).mean() / 2
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        *inputs, target = batch(setting, setting.n_keys, 2000)
        answer = model(*inputs)
        right = (answer.argmax(-1) == target.argmax(-1)).float().mean()
        return ((answer - target).square().sum(-1).mean() / 2).item(), right.item()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    print(f"{'':34} {'loss':>8} {'(range)':>17} {'right':>6}")
    for setting in SETTINGS:
        losses, rights = zip(*(run(setting, seed) for seed in seeds))
        spread = f"{min(losses):.4f}-{max(losses):.4f}"
        mean, right = sum(losses) / len(losses), sum(rights) / len(rights)
        print(f"{setting.name:34} {mean:8.4f} {spread:>17} {right:6.1%}", flush=True)


if __name__ == "__main__":
    main()
