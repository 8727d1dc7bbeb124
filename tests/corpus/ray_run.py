"""Collects with Ray, and writes what happened into the file of the first argument, as JSON: on this
machine, on a cluster of two nodes, and with a dataset of Ray, as the other arguments say.

A process that tests/corpus/test_ray.py starts: Ray changes a process for good, and warnings of its
own would be errors.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from corpus_models import Reader, digest, documents_of_a_run, run

import regard
from regard.corpus import Corpus, RayOptions, load
from regard.errors import RegardError

OUT = Path(*sys.argv[1:2]).parent
STORE = 128 * 2**20
LOOPBACK = ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]")


def listening():
    """Addresses other than loopback on which processes that this one started listen."""
    import psutil

    children = {process.pid for process in psutil.Process().children(recursive=True)}
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout
    ours = [line.split() for line in lines.splitlines() if children & pids(line)]
    return len(ours), [line[3] for line in ours if line[3].rpartition(":")[0] not in LOOPBACK]


def pids(line):
    return {int(word.partition(",")[0]) for word in line.split("pid=")[1:]}


def left():
    """Processes that are still there."""
    import psutil

    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=20)
    return [" ".join(process.cmdline()[:2]) for process in alive]


def failing(statement):
    try:
        statement()
    except RegardError as error:
        return str(error)
    return "nothing"


class Fatal(Reader):
    """Kills its process at a document, each time or the first time."""

    def __init__(self, document, mark=None):
        super().__init__()
        self.document, self.mark = document, mark

    def forward(self, input_ids, attention_mask):
        if self.document in [row[: len(self.document)].tolist() for row in input_ids] and (
            self.mark is None or not self.mark.exists()
        ):
            if self.mark is not None:
                self.mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        with (OUT / "passes").open("a") as file:  # one line, written at once
            file.write(f"{int(input_ids[0, 0]) * 10 + int(input_ids[0, 1])}\n")
        time.sleep(0.05)
        return super().forward(input_ids, attention_mask)


def corpus(documents=None, **options):
    return Corpus(
        documents or documents_of_a_run(), **({"batch_size": 4, "shard_size": 5} | options)
    )


def on_this_machine():
    """Ray that collect starts, and ends."""
    ended, reports = threading.Event(), []

    def watch():
        while not ended.wait(1.0):
            reports.append(listening())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        collection = run(None, model=lambda: Reader(), engine=RayOptions(workers=2))
    finally:
        ended.set()
        watching.join()
    return {
        "same": digest(collection) == digest(run(None)),
        "sockets": max(number for number, _ in reports),
        "elsewhere": sorted({address for _, others in reports for address in others}),
        "left": left(),
    }


def disturbed(cluster, second):
    """A worker that is killed in the middle, then a node that is lost and replaced."""
    folder, mark = OUT / "disturbed", OUT / "killed"
    fatal = documents_of_a_run()[7]
    collections = []

    def collect():
        collections.append(
            regard.collect(lambda: Fatal(fatal, mark), corpus(), out=folder, engine="ray")
        )

    collecting = threading.Thread(target=collect)
    collecting.start()
    while collecting.is_alive():
        if mark.exists() and len(list((folder / "shards").glob("*.safetensors"))) >= 3:
            cluster.remove_node(second, allow_graceful=False)
            add_node(cluster)  # Ray allows it in the main thread alone
            break
        time.sleep(0.05)
    collecting.join()
    (collection,) = collections
    passes = (OUT / "passes").read_text().split()
    expected = regard.collect(Reader(), corpus())
    sockets, elsewhere = listening()
    return {
        "killed": mark.exists(),
        "same": digest(collection) == digest(expected),
        "loaded": digest(load(folder)) == digest(expected),
        "documents": collection.examples,
        "passes": len(passes),
        "sockets": sockets,
        "elsewhere": elsewhere,
    }


def poisoned():
    """A document that fails, and one that kills whoever reads it."""
    documents = documents_of_a_run()
    documents[17] = [1, 11, 2]
    options = {"engine": RayOptions(workers=2)}
    raised = failing(lambda: regard.collect(Reader(), corpus(documents), **options))
    skipped = regard.collect(Reader(), corpus(documents), on_error="skip", **options)
    expected = regard.collect(Reader(), corpus(documents), on_error="skip")
    fatal = documents_of_a_run()[38]
    folder = OUT / "poisoned"
    killed = failing(
        lambda: regard.collect(lambda: Fatal(fatal), corpus(), out=folder, engine="ray")
    )
    kept = len(list((folder / "shards").glob("*.safetensors")))
    return {
        "raised": raised,
        "skipped": digest(skipped) == digest(expected),
        "failures": [failure.document for failure in skipped.failures],
        "killed": killed,
        "kept": kept,
    }


def dataset(ray):
    """Documents of a dataset of Ray, in any order, and those whose ids are not as they must be."""
    documents = documents_of_a_run()
    rows = [{"id": number, "input_ids": tokens} for number, tokens in enumerate(documents)]
    shuffled = ray.data.from_items(rows[20:] + rows[:20], override_num_blocks=3)
    folder = OUT / "dataset"
    collection = regard.collect(Reader(), corpus(shuffled), out=folder, engine="ray")
    (folder / "shards" / "2.safetensors").unlink()
    again = regard.collect(Reader(), corpus(shuffled), out=folder, engine="ray", resume=True)
    alone = regard.collect(Reader(), corpus([{"input_ids": row["input_ids"]} for row in rows]))
    twice = ray.data.from_items([*rows, rows[3]])
    gap = ray.data.from_items(rows[1:])
    nameless = ray.data.from_items([{"text": "a"}])
    return {
        "same": digest(collection) == digest(alone) == digest(again),
        "twice": failing(lambda: regard.collect(Reader(), corpus(twice), engine="ray")),
        "nameless": failing(lambda: regard.collect(Reader(), corpus(nameless), engine="ray")),
        "gap": failing(lambda: regard.collect(Reader(), corpus(gap), engine="ray")),
        "iterator": digest(regard.collect(Reader(), corpus(iter(documents)), engine="ray"))
        == digest(regard.collect(Reader(), corpus())),
    }


def add_node(cluster):
    return cluster.add_node(num_cpus=1, object_store_memory=STORE, node_ip_address="127.0.0.1")


def on_a_cluster(parts):
    import ray
    from ray.cluster_utils import Cluster

    head = {
        "num_cpus": 1,
        "object_store_memory": STORE,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.1",
    }
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = add_node(cluster)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        cluster.wait_for_nodes()
        if "disturbed" in parts:
            yield "disturbed", disturbed(cluster, second)
        if "poisoned" in parts:
            yield "poisoned", poisoned()
        if "dataset" in parts:
            yield "dataset", dataset(ray)
    finally:
        ray.shutdown()
        cluster.shutdown()
    yield "left", left()


def main():
    parts, outcome = sys.argv[2:], {}
    if "machine" in parts:
        outcome["machine"] = on_this_machine()
        parts.remove("machine")
    for name, result in on_a_cluster(parts) if parts else ():
        outcome[name] = result
        print(f"{time.perf_counter():.0f} s", name, result, flush=True)
    Path(sys.argv[1]).write_text(json.dumps(outcome))


if __name__ == "__main__":
    main()
