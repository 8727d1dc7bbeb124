"""Collects into the folder of the first argument, and stops for long at the document of the second.

A second process that tests/corpus/test_resume.py kills.
"""

import sys
import time

from corpus_models import Reader, documents_of_a_run, run

if __name__ == "__main__":
    folder, stop = sys.argv[1], int(sys.argv[2])
    forward, poisoned = Reader.forward, documents_of_a_run()[stop]

    def slow_forward(self, input_ids, attention_mask):
        if poisoned in [row[: len(poisoned)].tolist() for row in input_ids]:
            time.sleep(600)
        return forward(self, input_ids, attention_mask)

    Reader.forward = slow_forward
    run(folder)
