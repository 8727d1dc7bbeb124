"""Collects on each rank into the folder of the first argument; rank 1 kills itself at document 35
of its first start if the second argument says so.

Processes that tests/corpus/test_torchrun.py starts by torchrun.
"""

import os
import signal
import sys
from pathlib import Path

from corpus_models import Reader, digest, documents_of_a_run, run

if __name__ == "__main__":
    folder, dies = Path(sys.argv[1]), sys.argv[2] == "dies"
    forward, fatal = Reader.forward, documents_of_a_run()[35]

    def fatal_forward(self, input_ids, attention_mask):
        if fatal in [row[: len(fatal)].tolist() for row in input_ids]:
            os.kill(os.getpid(), signal.SIGKILL)
        return forward(self, input_ids, attention_mask)

    if dies and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        Reader.forward = fatal_forward
    collection = run(folder, resume=True)
    answer = folder.with_name(f"{folder.name}-{os.environ['RANK']}")
    answer.write_text(digest(collection))
