"""Every transformers architecture that can be built here, captured and compared.

    python tests/tracing/hf/sweep.py                    # all, two processes, a table on stdout
    python tests/tracing/hf/sweep.py bert llama -j out.json

Each architecture has a process of its own, forked from one that has transformers loaded: it ends by
itself, at a time limit, or at a memory limit, and harms no other.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parent))

SECONDS, PATIENCE, BYTES = 40, 240, 10 << 30  # of its processor; by the clock


def load() -> list[str]:
    """Import what every child needs, and return the names of all architectures."""
    import torch

    torch.set_num_threads(1)
    import tiny
    from torchvision_stub import imported
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    imported("timm")
    # modules that most others import
    import examine
    import transformers.models.bart.modeling_bart
    import transformers.models.clip.modeling_clip
    import transformers.models.llama.modeling_llama
    import transformers.models.llava.modeling_llava

    import regard

    assert examine and regard and transformers
    return [name for name in CONFIG_MAPPING_NAMES if tiny.architecture(name)]


def sweep(names: list[str], processes: int = 2, say=None) -> list[dict]:
    """Results of these architectures, in their order. `load` must have been called."""
    waiting, running, done = list(names), {}, {}
    while waiting or running:
        while waiting and len(running) < processes:
            name = waiting.pop(0)
            running[_start(name)] = (name, bytearray(), time.monotonic())
        for pipe, (name, heard, began) in list(running.items()):
            ended = pipe.read(heard)
            late = time.monotonic() - began > PATIENCE
            if ended or late:
                done[name] = pipe.close(name, heard, late)
                del running[pipe]
                if say:
                    say(done[name])
        time.sleep(0.005)
    return [done[name] for name in names]


class _Child:
    """A forked process and the pipe it answers through."""

    def __init__(self, pid: int, end: int) -> None:
        self.pid, self.end = pid, end
        os.set_blocking(end, False)

    def read(self, heard: bytearray) -> bool:
        """Take what was said; True when it has ended."""
        while True:
            try:
                part = os.read(self.end, 1 << 16)
            except BlockingIOError:
                return False
            if not part:
                return True
            heard += part

    def close(self, name: str, heard: bytearray, late: bool) -> dict:
        if late:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.end)
        _, status = os.waitpid(self.pid, 0)
        if not late and heard:
            return json.loads(bytes(heard))
        late = late or os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
        why = f"more than {SECONDS} s" if late else f"died with status {status}"
        return {"architecture": name, "verdict": "unbuilt", "reason": why, "seconds": SECONDS}


def _start(name: str) -> _Child:
    end, other = os.pipe()
    pid = os.fork()
    if pid:
        os.close(other)
        return _Child(pid, end)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        from examine import examine

        answer = json.dumps(examine(name).as_dict()).encode()
        while answer:
            answer = answer[os.write(other, answer) :]
    finally:
        os._exit(0)


def table(results: list[dict]) -> str:
    """Markdown: one row an architecture."""
    lines = [
        "| architecture | verdict | sites | compared | worst | reason |",
        "|---|---|---|---|---|---|",
    ]
    for found in results:
        worst = f"{found.get('worst', 0):.0e}" if found.get("captured") else ""
        compared = f"{found.get('compared', 0)} + {found.get('by_output', 0)} by output"
        lines.append(
            f"| {found['architecture']} | {found['verdict']} | {found.get('captured', 0)} "
            f"| {compared} | {worst} | {found['reason'].replace('|', '/')[:200]} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("-j", "--json", type=Path)
    parser.add_argument("-n", "--processes", type=int, default=2)
    options = parser.parse_args()
    start = time.monotonic()
    everything = load()
    results = sweep(options.names or everything, options.processes)
    print(table(results))
    print()
    print(dict(Counter(found["verdict"] for found in results)), f"{time.monotonic() - start:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
