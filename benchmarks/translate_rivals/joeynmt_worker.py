"""JoeyNMT 2.3.0 on a task: its own data, model, loop, optimiser; a stopwatch on the updates.

    .venv-joeynmt/bin/python benchmarks/translate_rivals/joeynmt_worker.py TASK

It trains on torch 2.13 with one hand fix, `Plateau`. Its settings are those of its own tutorial
configurations, except for the sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import joeynmt.builders
import torch
from joeynmt.config import parse_global_args, set_validation_args
from joeynmt.prediction import prepare
from joeynmt.training import TrainManager
from meter import Meter, Task


class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """JoeyNMT passes `verbose`, which torch has taken away; without a schedule it fails."""

    def __init__(self, *arguments: Any, verbose: bool = False, **named: Any) -> None:
        super().__init__(*arguments, **named)


joeynmt.builders.ReduceLROnPlateau = Plateau


def recurrent(task: Task) -> dict[str, Any]:
    shape = task.shape
    embeddings = {"embedding_dim": shape["embedding"], "dropout": task.dropout}
    layers = {"type": "recurrent", "rnn_type": "gru", "num_layers": 1, "embeddings": embeddings}
    return {
        "encoder": {
            **layers,
            "hidden_size": shape["encoder"],
            "bidirectional": True,
            "dropout": task.dropout,
        },
        "decoder": {
            **layers,
            "hidden_size": shape["hidden"],
            "attention": "bahdanau",
            "input_feeding": True,
            "init_hidden": "bridge",
            "dropout": task.dropout,
            "hidden_dropout": task.dropout,
        },
    }


def transformer(task: Task) -> dict[str, Any]:
    shape = task.shape
    half = {
        "type": "transformer",
        "num_layers": shape["layers"],
        "num_heads": shape["heads"],
        "hidden_size": shape["hidden"],
        "ff_size": shape["feed_forward"],
        "dropout": task.dropout,
        "layer_norm": "pre",
        "embeddings": {
            "embedding_dim": shape["hidden"],
            "scale": True,
            "dropout": task.dropout,
        },
    }
    return {"encoder": {**half}, "decoder": {**half}}


def side(task: Task, language: str) -> dict[str, Any]:
    """One language. Its vocabulary files begin with its special tokens."""
    words = (Path(task.data) / f"words.{language}").read_text(encoding="utf-8")
    path = Path(task.scratch) / f"words.{language}"
    path.write_text("<unk>\n<pad>\n<s>\n</s>\n" + words, encoding="utf-8")
    return {"lang": language, "level": "word", "tokenizer_type": "none", "voc_file": str(path)}


def settings(task: Task) -> dict[str, Any]:
    """What its configuration file would hold."""
    data = Path(task.data)
    return {
        "name": "multi30k",
        "model_dir": task.scratch,
        "use_cuda": False,
        "random_seed": task.seed,
        "data": {
            "train": str(data / "train"),
            "dev": str(data / "dev"),
            "dataset_type": "plain",
            "src": side(task, "en"),
            "trg": side(task, "fr"),
        },
        "model": recurrent(task) if task.model == "recurrent" else transformer(task),
        "training": {
            "optimizer": "adam",
            "learning_rate": 0.0003,
            "learning_rate_min": 1e-9,
            "clip_grad_norm": 1.0,
            "batch_size": task.sentences,
            "batch_type": "sentence",
            "normalization": "tokens",
            "epochs": 1000,
            "updates": task.warm + task.updates,
            "logging_freq": 10**6,
            "validation_freq": 10**6,
            "shuffle": True,
            "scheduling": "plateau",
        },
        "testing": {},
    }


class Timed(TrainManager):
    """Its training loop, unchanged; after each of its optimiser's steps the stopwatch is told."""

    def measure(self, meter: Meter) -> None:
        self.meter = meter
        self.optimizer.register_step_post_hook(self._updated)

    def _train_step(self, batch: Any) -> tuple[float, int]:
        self._sizes = {
            "tokens": int(batch.ntokens),
            "sentences": int(batch.nseqs),
            "places": batch.trg.numel(),
        }
        return super()._train_step(batch)

    def _updated(self, *_: object) -> None:
        self.meter.update(**self._sizes)

    def _save_checkpoint(self, new_best: bool, score: float) -> None:
        """Nothing is kept of a measurement."""


def main() -> None:
    torch.set_num_threads(1)
    task = Task.from_arguments()
    configuration = parse_global_args(settings(task), rank=0, mode="train")
    model, train, dev, _ = prepare(configuration, rank=0, mode="train")
    trainer = Timed(
        model=model,
        model_dir=configuration.model_dir,
        device=configuration.device,
        n_gpu=0,
        rank=0,
        num_workers=0,
        autocast=configuration.autocast,
        seed=configuration.seed,
        train_args=configuration.train,
        dev_args=set_validation_args(configuration.test),
    )
    meter = Meter(task)
    meter.parameters = sum(parameter.numel() for parameter in model.parameters())
    trainer.measure(meter)
    trainer.train_and_validate(train_data=train, valid_data=dev)
    meter.report()


if __name__ == "__main__":
    main()
