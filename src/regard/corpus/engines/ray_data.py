"""Shards given out by Ray Data to workers on one machine or a cluster.

The driver names shards. A worker loads the model once, reads the documents of each shard that it is
given, and sends back what they add up to: a megabyte or two, which the driver saves as it arrives.
Ray repeats what a worker or a node takes with it; a ledger counts how often each shard was begun,
so that a shard that kills its worker ends the run with its name, and not never.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from regard.corpus.corpus import Corpus, Shard
from regard.corpus.engines.base import Engine, Task, is_loader
from regard.corpus.run_folder import RunFolder
from regard.corpus.state import State
from regard.errors import MissingExtraError, RegardError

ATTEMPTS = 3  # that a shard has before it is given up
_LOCAL = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
_KEPT = "shards that are finished are kept in out=, run again with resume=True"


@dataclass(frozen=True)
class RayOptions:
    """Where Ray runs the model: `collect(..., engine=RayOptions(workers=4))`.

    Args:
        workers: how many processes load the model; as many as the cluster has room for when None.
        cpus: what each takes of a machine's CPUs, and how many threads torch has in it.
        gpus: what each takes of a machine's GPUs; a function must then load the model onto "cuda".
        address: of a cluster, as "auto" or "10.0.0.1:6379". None starts Ray on this machine, and
            ends it afterwards, unless the caller has called `ray.init`.
    """

    workers: int | None = None
    cpus: float = 1
    gpus: float = 0
    address: str | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and (type(self.workers) is not int or self.workers < 1):
            raise RegardError(f"RayOptions: workers={self.workers!r}, expected a number from 1")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value < 0 or (name == "cpus" and not value):
                raise RegardError(f"RayOptions: {name}={value!r}, expected a positive number")


class RayData(Engine):
    """Workers of Ray take the shards; this process saves what they send."""

    name = "ray"

    def __init__(self, options: RayOptions | None = None) -> None:
        self.options = options or RayOptions()

    def fill(self, task: Task, folder: RunFolder, advance: Callable[[float], None]) -> int:
        if self.options.gpus and not is_loader(task.model):
            raise RegardError(
                "collect: with gpus= the model is loaded by each worker onto its GPU: pass a "
                "function without parameters, as lambda: AutoModel.from_pretrained(name).to('cuda')"
            )
        n_shards, missing, rows = 0, {}, []
        for shard in task.corpus.shards():
            n_shards += 1
            if folder.has(shard):
                advance(len(shard.documents))
                continue
            missing[shard.number] = shard._replace(documents=[]), len(shard.documents)
            rows.append(_row(shard, carried=not task.corpus.source.may_be_read_again))
        if not missing:
            return n_shards
        with connected(self.options.address) as ray:
            for number, state in self._observed(ray, rows, task):
                shard, documents = missing.pop(number)
                folder.save(shard, state)
                advance(documents)
        if missing:
            numbers = ", ".join(map(str, sorted(missing)[:5]))
            raise RegardError(f"collect: Ray ended without shards {numbers}; {_KEPT}")
        return n_shards

    def _observed(
        self, ray: Any, rows: list[dict[str, Any]], task: Task
    ) -> Iterator[tuple[int, State]]:
        """What shards add, as it arrives."""
        ledger = new_ledger(ray)
        shards = ray.data.from_items(rows, override_num_blocks=len(rows))
        states = shards.map_batches(
            Worker,
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=self._workers(ray, len(rows))),
            num_cpus=self.options.cpus,
            num_gpus=self.options.gpus,
            fn_constructor_args=(ray.put(_pickled(ray, task)), ledger),
        )
        try:
            for row in states.iter_rows():
                if row["error"]:
                    raise RegardError(f"{row['error']}; {_KEPT}")
                header, tensors = pickle.loads(row["state"])
                yield row["number"], State.of(task.statistics, header, tensors)
        except ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[0]
            raise RegardError(f"collect: {type(error).__name__}: {reason}; {_KEPT}") from error

    def _workers(self, ray: Any, n_shards: int) -> int:
        """How many there is room for, unless it was said."""
        needs = {"CPU": self.options.cpus, "GPU": self.options.gpus}
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = sum(
            int(min(node.get(name, 0) // need for name, need in needs.items() if need))
            for node in nodes
        )
        if not room and (self.options.workers is None or self.options.address is None):
            needed = ", ".join(f"{need:g} {name}" for name, need in needs.items() if need)
            has = ", ".join(
                f"{sum(node.get(name, 0) for node in nodes):g} {name}" for name in needs
            )
            raise RegardError(
                f"collect: a worker needs {needed}, and no node has that: Ray has {has} on "
                f"{len(nodes)} nodes; set cpus= or gpus=, or workers= where the cluster grows"
            )
        return min(n_shards, self.options.workers or room)


def new_ledger(ray: Any) -> Any:
    """An actor that counts how often something was begun since it last ended."""

    class Ledger:  # a class in a function is sent by value: its process need not load torch
        def __init__(self) -> None:
            self.begun: Counter[str] = Counter()

        def begin(self, key: str) -> int:
            """How often it was begun without an end, this time included."""
            self.begun[key] += 1
            return self.begun[key]

        def end(self, key: str) -> None:
            del self.begun[key]

    return ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Ledger).remote()


class Worker:
    """Loads the model, and observes shards. Errors are answers, as Ray would wrap them."""

    def __init__(self, pickled: Any, ledger: Any) -> None:
        self.ray, self.ledger = library(), ledger
        self.error = ""
        with self._told():
            actor = self.ray.get_runtime_context().get_actor_id()  # the same when it starts again
            with self._counted(
                f"actor {actor}", "a worker died {} times while it loaded the model"
            ):
                raw = self.ray.get(pickled)
                self.task = Task(**{name: pickle.loads(value) for name, value in raw.items()})
                self.observed = ExitStack().enter_context(self.task.observing())
                self.shards = ShardReader(self.task.corpus)

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, list[Any]]:
        row = {name: column[0] for name, column in rows.items()}
        answer = b""
        if not self.error:
            with self._told():
                answer = self._answer(row)
        return {"number": [int(row["number"])], "state": [answer], "error": [self.error]}

    def _answer(self, row: Mapping[str, Any]) -> bytes:
        number, first, size = (int(row[name]) for name in ("number", "first", "size"))
        named = f"shard {number}, documents {first} to {first + size - 1}"
        key = f"shard {number}"
        with self._counted(key, named + ": its worker died {} times while it read them"):
            if "documents" in row:
                shard = Shard(number, first, size, pickle.loads(row["documents"]), row["digest"])
            else:
                shard = self.shards.read(number)
            if shard.digest != row["digest"]:
                raise RegardError(
                    f"collect: {named}: a worker read others than the driver; the corpus must be "
                    "the same each time that it is read, and on each machine"
                )
            state = self.observed(shard)
        return pickle.dumps((state.header() | {"weights": state.weights}, state.tensors()))

    @contextmanager
    def _told(self) -> Iterator[None]:
        """The driver is told of errors."""
        try:
            yield
        except RegardError as error:
            self.error = str(error)
        except Exception as error:
            self.error = f"collect: {type(error).__name__}: {error}\n{traceback.format_exc()}"

    @contextmanager
    def _counted(self, key: str, why: str) -> Iterator[None]:
        """An error if this was begun too often without an end, because the process died."""
        attempts = self.ray.get(self.ledger.begin.remote(key))
        if attempts > ATTEMPTS:
            raise RegardError(f"collect: {why.format(attempts - 1)}")
        yield
        self.ledger.end.remote(key)


class ShardReader:
    """Reads shards by number, in one pass where their numbers rise."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.shards: Iterator[Shard] = iter(())
        self.next = sys.maxsize

    def read(self, number: int) -> Shard:
        if number < self.next:
            self.shards = self.corpus.shards()
        for shard in self.shards:
            self.next = shard.number + 1
            if shard.number == number:
                return shard
        self.next = sys.maxsize
        return Shard(number, 0, 0, [], "")  # the corpus is shorter here


def library() -> Any:
    """Ray and Ray Data; raises with the command that installs them."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise MissingExtraError("ray", "ray") from error
    return ray


# -- where it runs


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Ray, with the caller's connection or one of our own that ends here. Never some cluster that
    happens to be there, which `ray.init()` would join."""
    with ExitStack() as stack:
        if address is None and "ray" not in sys.modules:  # it reads them once
            stack.enter_context(_environment(_LOCAL))
        ray = library()
        if not ray.is_initialized():
            options = {"include_dashboard": False} if address is None else {}
            stack.callback(ray.shutdown)
            address = address or "local"
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
            except Exception as error:  # Ray raises plain ones
                raise RegardError(f"collect: Ray did not start at {address!r}: {error}") from error
        context = ray.data.DataContext.get_current()
        for name in ("enable_progress_bars", "print_on_execution_start"):
            stack.callback(setattr, context, name, getattr(context, name))
            setattr(context, name, False)
        logger = logging.getLogger("ray.data")
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL)
        yield ray


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables that are not set otherwise, within a block."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


# -- shards


def _row(shard: Shard, carried: bool) -> dict[str, Any]:
    """A shard by name; with its documents if workers cannot read them."""
    row = {name: value for name, value in shard._asdict().items() if name != "documents"}
    return row | {"documents": pickle.dumps(shard.documents)} if carried else row


def _pickled(ray: Any, task: Task) -> dict[str, bytes]:
    """A task as workers take it."""
    pickled = {}
    for name, value in vars(task).items():
        try:
            pickled[name] = ray.cloudpickle.dumps(value)
        except Exception as error:
            hint = "; a function without parameters may load it" if name == "model" else ""
            raise RegardError(
                f"collect: engine='ray' sends the {name} to its workers, and it cannot be pickled: "
                f"{error}{hint}"
            ) from error
    return pickled
