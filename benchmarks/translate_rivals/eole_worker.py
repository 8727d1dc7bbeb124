"""Eole 0.6.4 on a task: its own data, model, loop and optimiser, with a stopwatch on the updates.

.venv-eole/bin/python benchmarks/translate_rivals/eole_worker.py TASK
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from eole.config.run import TrainConfig
from eole.constants import CorpusTask
from eole.inputters.dynamic_iterator import build_dynamic_dataset_iter
from eole.models.model import get_model_class
from eole.train_single import TrainingInitializer
from eole.trainer import build_trainer
from eole.utils.misc import set_random_seed
from eole.utils.optimizers import Optimizer
from meter import Meter, Task


def recurrent(task: Task) -> dict[str, Any]:
    """Its `rnn` architecture is never bidirectional: that takes `custom`."""
    shape = task.shape
    layer = {"layers": 1, "rnn_type": "GRU", "hidden_size": shape["hidden"]}
    return {
        "architecture": "custom",
        "embeddings": {"word_vec_size": shape["embedding"], "position_encoding_type": None},
        "encoder": {"encoder_type": "brnn", **layer},
        "decoder": {"decoder_type": "rnn", "global_attention": "mlp", **layer},
        "input_feed": 1,
    }


def transformer(task: Task) -> dict[str, Any]:
    shape = task.shape
    return {
        "architecture": "transformer",
        "hidden_size": shape["hidden"],
        "layers": shape["layers"],
        "heads": shape["heads"],
        "transformer_ff": shape["feed_forward"],
        "add_qkvbias": True,
        "add_final_linear_bias": True,
        "add_ffnbias": True,
        "embeddings": {
            "word_vec_size": shape["hidden"],
            "position_encoding_type": "SinusoidalInterleaved",
        },
    }


def settings(task: Task) -> TrainConfig:
    """What its configuration file would hold."""
    data = Path(task.data)
    return TrainConfig(
        seed=task.seed,
        src_vocab=str(data / "words.en"),
        tgt_vocab=str(data / "words.fr"),
        vocab_size_multiple=1,
        data={
            "multi30k": {"path_src": str(data / "train.en"), "path_tgt": str(data / "train.fr")},
        },
        model=recurrent(task) if task.model == "recurrent" else transformer(task),
        training={
            "model_path": task.scratch,
            "compute_dtype": "fp32",
            "optim": "adam",
            "learning_rate": 0.0003,
            "decay_method": "none",
            "max_grad_norm": 1.0,
            "batch_type": "sents",
            "batch_size": task.sentences,
            "bucket_size": len((data / "train.en").read_text(encoding="utf-8").splitlines()),
            "normalization": "tokens",
            "dropout": [task.dropout],
            "attention_dropout": [task.dropout],
            "label_smoothing": 0.0,
            "num_workers": 0,
            "train_steps": task.warm + task.updates,
            "valid_steps": 10**6,
            "save_checkpoint_steps": 0,
        },
    )


def timed(trainer: Any, meter: Meter, padding: int) -> None:
    """After each of the trainer's updates, unchanged, the stopwatch is told."""
    update = trainer._train_step

    def step(batches: list[dict[str, Any]], *arguments: Any, **named: Any) -> None:
        update(batches, *arguments, **named)
        target = batches[0]["tgt"][:, 1:]
        meter.update(
            tokens=int(target.ne(padding).sum()),
            sentences=target.size(0),
            places=target.numel(),
        )

    trainer._train_step = step


def main() -> None:
    torch.set_num_threads(1)
    task = Task.from_arguments()
    set_random_seed(task.seed, False)
    context = TrainingInitializer(settings(task)).initialize()
    configuration = context.config
    model = get_model_class(configuration.model).for_training(
        configuration.model, context.vocabs, configuration.training, metadata=None, device_id=-1
    )
    optimiser = Optimizer.from_config(model, configuration, metadata=None)
    trainer = build_trainer(configuration, -1, model, context.vocabs, optimiser)
    batches = build_dynamic_dataset_iter(
        configuration, context.transforms, context.vocabs, task=CorpusTask.TRAIN, device_id=-1
    )
    meter = Meter(task)
    meter.parameters = sum(parameter.numel() for parameter in model.parameters())
    timed(trainer, meter, context.vocabs["tgt"][configuration.pad_token])
    trainer.train(batches, task.warm + task.updates, save_checkpoint_steps=0, valid_steps=10**6)
    meter.report()


if __name__ == "__main__":
    main()
