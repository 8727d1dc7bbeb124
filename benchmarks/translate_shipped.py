"""What a translator that ships scores on sentences that it never saw, and how fast it is.

The test part is split off by distinct English sentence: none of them was trained on. A sentence may
have several translations in the data; "one reference" scores every pair for itself, "all
references" every sentence against all its translations. Captions of Multi30k are not like what it
learned from; their score is for comparison with other translators.

    python benchmarks/translate_shipped.py [--quick] [--data FOLDER] [--beam 5] \
        [--model french-english]

The folder holds tatoeba/eng-fra.tsv.gz; when not given, the environment variable REGARD_DATA.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import replace

import torch
from timing import table

from regard.translate.data import pair_file
from regard.translate.evaluation import score
from regard.translate.evaluation.scores import metrics
from regard.translate.shipped import SHIPPED
from regard.translate.training.corpus import read_data
from regard.translate.translator import Translator

CAPTIONS = "multi30k/test_2016_flickr"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="200 sentences, under a minute")
    parser.add_argument("--data", help="the folder of the data")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--model", choices=SHIPPED, default=SHIPPED[0])
    given = parser.parse_args()
    if given.data is not None:
        os.environ["REGARD_DATA"] = given.data
    if "REGARD_DATA" not in os.environ:
        raise SystemExit("say --data FOLDER, or set REGARD_DATA: the folder that holds tatoeba/")
    translator = Translator.load(given.model)
    forwards = given.model == SHIPPED[0]
    data = translator.checkpoint.config.data
    data = replace(data, train=tuple(os.path.expandvars(path) for path in data.train))
    by_source: dict[str, list[str]] = {}
    for pair in read_data(data).test:
        source, target = (pair.source, pair.target)[:: 1 if forwards else -1]
        by_source.setdefault(source, []).append(target)
    sources = list(by_source)[: 200 if given.quick else None]
    start = time.perf_counter()
    found = translator.translate(sources, beam=given.beam, show=None)
    taken = time.perf_counter() - start
    texts = {source: best[0].text for source, best in zip(sources, found)}
    pairs = [(texts[source], target) for source in sources for target in by_source[source]]
    one = score(*map(list, zip(*pairs)))
    most = max(len(by_source[source]) for source in sources)
    references = [
        [by_source[source][n] if n < len(by_source[source]) else None for source in sources]
        for n in range(most)
    ]
    several = [
        metric.corpus_score([texts[source] for source in sources], references).score
        for metric in metrics().values()
    ]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, beam {given.beam}")
    rows = [
        ["one reference", f"{len(pairs)}", f"{one.bleu.value:.1f}", f"{one.chrf.value:.1f}"],
        ["all references", f"{len(sources)}", f"{several[0]:.1f}", f"{several[1]:.1f}"],
    ]
    files = [f"{os.environ['REGARD_DATA']}/{CAPTIONS}.{side}.gz" for side in ("en", "fr")]
    captions = [*pair_file(*files[:: 1 if forwards else -1])][: 200 if given.quick else None]
    translated = translator.translate(
        [pair.source for pair in captions], beam=given.beam, show=None
    )
    of_captions = score([best[0].text for best in translated], [pair.target for pair in captions])
    rows.append(
        [
            "captions of Multi30k",
            f"{len(captions)}",
            f"{of_captions.bleu.value:.1f}",
            f"{of_captions.chrf.value:.1f}",
        ]
    )
    table(f"{given.model}: held-out Tatoeba and captions", ["", "scored", "BLEU", "chrF"], rows)
    print(f"{one.bleu.signature}\n{one.chrf.signature}")
    print(f"{len(sources) / taken:.0f} sentences a second")


if __name__ == "__main__":
    main()
