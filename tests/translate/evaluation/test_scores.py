"""BLEU and chrF against plain loops; buckets, comparison, and what is refused."""

import math
import random
import sys
from collections import Counter

import numpy as np
import pytest
from sacrebleu.significance import PairedTest

from regard.errors import MissingExtraError, RegardError
from regard.translate.evaluation import (
    EvaluationOptions,
    buckets,
    compare,
    differing,
    evaluate,
    score,
)
from regard.translate.evaluation.scores import metrics

WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat", "and", "saw", "two", "red", "birds", "in"]


def sentences(count, seed):
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(6, 14))) for _ in range(count)]


def noisy(texts, share, seed):
    chance = random.Random(seed)
    return [
        " ".join(chance.choice(WORDS) if chance.random() < share else word for word in text.split())
        for text in texts
    ]


def grams(items, size):
    return Counter(tuple(items[at : at + size]) for at in range(len(items) - size + 1))


def plain_bleu(hypotheses, references):
    """Papineni's equation, on text that is cut at spaces."""
    logarithm, said, right = 0.0, 0, 0
    for size in range(1, 5):
        met = total = 0
        for one, other in zip(hypotheses, references):
            mine, theirs = grams(one.split(), size), grams(other.split(), size)
            met += sum(min(times, theirs[gram]) for gram, times in mine.items())
            total += sum(mine.values())
        logarithm += math.log(met / total) / 4
    for one, other in zip(hypotheses, references):
        said, right = said + len(one.split()), right + len(other.split())
    return 100 * math.exp(logarithm + min(0.0, 1 - right / said))


def plain_chrf(hypotheses, references):
    """Popović's mean over sizes 1 to 6 of letter F2, of the whole corpus, without spaces."""
    found = []
    for size in range(1, 7):
        met = mine = theirs = 0
        for one, other in zip(hypotheses, references):
            here, there = (grams(text.replace(" ", ""), size) for text in (one, other))
            met += sum((here & there).values())
            mine, theirs = mine + sum(here.values()), theirs + sum(there.values())
        found.append((met / mine, met / theirs))
    precision, recall = (sum(values) / 6 for values in zip(*found))
    return 100 * 5 * precision * recall / (4 * precision + recall)


def test_bleu_and_chrf_are_those_of_plain_loops():
    right = sentences(30, 0)
    said = noisy(right, 0.2, 1)
    said[3] = " ".join(said[3].split()[:-3])  # shorter than the reference
    found = score(said, right, EvaluationOptions(tokenizer="none"))
    assert found.bleu.value == pytest.approx(plain_bleu(said, right), abs=1e-6)
    assert found.chrf.value == pytest.approx(plain_chrf(said, right), abs=1e-6)
    assert found.sentences == 30


def test_signatures_say_how_it_was_counted():
    found = score(
        ["Das ist gut ."], ["das ist gut ."], EvaluationOptions(lower=True, tokenizer="none")
    )
    assert found.bleu.value == pytest.approx(100)
    assert "case:lc" in found.bleu.signature and "tok:none" in found.bleu.signature
    assert "case:lc" in found.chrf.signature
    mixed = score(["Das ist gut ."], ["das ist gut ."])
    assert mixed.bleu.value < 100 and "case:mixed" in mixed.bleu.signature
    assert str(mixed).startswith(f"BLEU {mixed.bleu.value:.2f} (nrefs:1|")


def test_tokenisers_differ():
    said, right = ["a red, round ball!"], ["a red , round ball !"]
    assert score(said, right).bleu.value == pytest.approx(100)
    assert score(said, right, EvaluationOptions(tokenizer="none")).bleu.value < 50


def test_an_empty_translation_scores_nothing():
    found = score([""], ["one two three"])
    assert (found.bleu.value, found.chrf.value) == (0, 0)


def test_buckets_hold_every_sentence_once_and_score_their_own():
    right = sentences(40, 2)
    said = noisy(right, 0.3, 3)
    made = buckets(said, right, EvaluationOptions(edges=(8, 11), tokenizer="none"))
    assert [bucket.name for bucket in made] == ["0 to 7", "8 to 10", "11 and more"]
    assert sum(bucket.sentences for bucket in made) == 40
    middle = [(a, b) for a, b in zip(said, right) if 8 <= len(b.split()) <= 10]
    assert made[1].sentences == len(middle)
    assert made[1].bleu.value == pytest.approx(plain_bleu(*zip(*middle)), abs=1e-6)


def test_buckets_go_by_the_source_where_there_is_one():
    made = buckets(
        ["a", "b"], ["a", "b c d e"], EvaluationOptions(edges=(2,)), sources=["x x x x", "x"]
    )
    assert made[0].chrf.value < 100 and made[1].chrf.value == 100
    assert buckets(["a"], ["a"], EvaluationOptions(edges=(5, 6)))[2].chrf is None
    assert buckets(["a"], ["a"], EvaluationOptions(edges=(5, 6)))[1].name == "5"


def test_buckets_without_four_words_have_no_bleu():
    right = ["Yes .", "I love you .", "one two three", "one two three four five"]
    short, middle, long = buckets(right, right, EvaluationOptions(edges=(3, 4), tokenizer="none"))
    assert short.bleu is None and short.chrf.value == pytest.approx(100)
    assert middle.bleu is None and middle.chrf.value == pytest.approx(100)
    assert long.sentences == 2 and long.bleu.value == pytest.approx(100)
    # Words are what BLEU's own cutting makes of the text: a full stop, or letters.
    assert buckets(["I love you."], ["I love you."])[0].bleu.value == pytest.approx(100)
    assert buckets(["four"], ["four"], EvaluationOptions(tokenizer="char"))[
        0
    ].bleu.value == pytest.approx(100)
    # A translation that is wrong has a score, also where it is too short itself.
    assert buckets(["one"], ["one two three four"])[0].bleu.value == 0


def test_a_better_system_is_told_from_chance():
    right = sentences(120, 4)
    good, bad = noisy(right, 0.1, 5), noisy(right, 0.4, 6)
    for found in compare(bad, good, right, EvaluationOptions(resamples=200)):
        assert found.difference > 10 and found.two_sided_p == 1 / 201
        assert abs(found.second.mean - found.second.value) < found.second.interval
        assert "bs:200" in found.signature and "seed:" in found.signature


def test_equally_good_systems_have_any_p_alike():
    """Where chance alone is at work p is even from 0 to 1: its mean is 0.5, a tenth is below 0.1.

    Sacrebleu's own p has a mean of 0.19 here, and 27 % below 0.1.
    """
    right = sentences(40, 7)
    found = []
    for seed in range(60):
        one, other = (noisy(right, 0.3, 2 * seed + side) for side in (1000, 1001))
        found.append(compare(one, other, right, EvaluationOptions(resamples=100))[0].two_sided_p)
    assert 0.42 < sum(found) / len(found) < 0.58
    assert sum(p < 0.05 for p in found) <= 6 and sum(p < 0.1 for p in found) <= 9
    assert sum(p > 0.9 for p in found) >= 3


def test_the_bootstrap_is_sacrebleus_and_its_p_that_of_plain_loops():
    right = sentences(30, 8)
    one, other = noisy(right, 0.25, 9), noisy(right, 0.3, 10)
    systems = [("one", one), ("other", other)]
    theirs = PairedTest(systems, metrics(), [right], "bs", n_samples=80)
    signatures, results = theirs()
    draws = np.random.default_rng(12345).choice(30, size=(80, 30))
    for found, metric in zip(
        compare(one, other, right, EvaluationOptions(resamples=80)), metrics().values()
    ):
        assert found.signature == str(signatures[found.name])
        for mine, result in zip((found.first, found.second), results[found.name]):
            assert mine.value == pytest.approx(result.score, abs=1e-9)
            assert mine.mean == pytest.approx(result.mean, abs=1e-4)  # they sum in single precision
            assert mine.interval == pytest.approx(result.ci, abs=1e-4)
        apart = []
        for draw in draws:
            again = [
                metric.corpus_score([texts[i] for i in draw], [[right[i] for i in draw]]).score
                for texts in (one, other)
            ]
            apart.append(again[1] - again[0])
        middle = sum(apart) / 80
        as_far = sum(abs(value - middle) >= abs(found.difference) for value in apart)
        assert found.two_sided_p == (as_far + 1) / 81


def test_the_side_of_the_difference_does_not_matter():
    right = sentences(40, 11)
    one, other = noisy(right, 0.25, 12), noisy(right, 0.3, 13)
    there, back = (
        compare(one, other, right, EvaluationOptions(resamples=60)),
        compare(other, one, right, EvaluationOptions(resamples=60)),
    )
    assert [found.two_sided_p for found in there] == [found.two_sided_p for found in back]
    assert [found.difference for found in there] == [-found.difference for found in back]


def test_a_system_does_not_differ_from_itself():
    right = sentences(10, 7)
    assert [
        one.two_sided_p for one in compare(right, right, right, EvaluationOptions(resamples=20))
    ] == [1, 1]


def test_the_sentences_that_differ_most_come_first():
    right = ["one two three", "four five six", "seven"]
    found = differing(["one two three", "four", "seven"], ["one two", "xyz", "seven"], right)
    assert [one.number for one in found] == [0, 1] or [one.number for one in found] == [1, 0]
    gaps = [abs(one.first - one.second) for one in found]
    assert gaps == sorted(gaps, reverse=True) and all(one.first > one.second for one in found)
    assert len(differing(["a", "b"], ["c", "d"], ["a", "b"], EvaluationOptions(examples=1))) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: score(["a"], ["a", "b"]), "1 hypotheses, 2 references; expected as many of each"),
        (lambda: score([], []), "there are no hypotheses: nothing can be scored"),
        (lambda: score("ab", ["a", "b"]), "hypotheses='ab', expected a list of sentences"),
        (
            lambda: buckets(["a"], ["a"], EvaluationOptions(edges=(3, 3))),
            r"edges=\(3, 3\), expected rising",
        ),
        (lambda: buckets(["a"], ["a"], sources=[]), "1 references, 0 sources"),
        (
            lambda: compare(["a"], ["b"], ["c"], EvaluationOptions(resamples=0)),
            "resamples=0, expected 1 or more",
        ),
        (lambda: compare(["a"], [], ["c"]), "1 first, 0 second, 1 references"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, message):
    with pytest.raises(RegardError, match=message):
        call()


@pytest.mark.usefixtures("without_shape_checks")
def test_an_unknown_tokeniser_is_refused():
    with pytest.raises(RegardError, match="tokenizer='moses', expected one of 13a, intl, char"):
        score(["a"], ["a"], EvaluationOptions(tokenizer="moses"))


def test_without_sacrebleu_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'regard\[translate\]'"):
        score(["a"], ["a"])


def test_few_sentences_prove_little():
    """All of n sentences are better for one system by chance once in 2^(n - 1) times."""
    right = [f"this is the sentence number {n} of some" for n in range(5)]
    wrong = ["quite another text that has nothing of it"] * 5
    for count in (1, 2, 5):
        for found in compare(
            wrong[:count], right[:count], right[:count], EvaluationOptions(resamples=200)
        ):
            assert found.difference > 80
            assert found.two_sided_p == 2.0 ** (1 - count) and not found.at_floor


def test_one_call_gives_what_the_others_give():
    right = sentences(12, 1)
    first, second = noisy(right, 0.4, 2), noisy(right, 0.1, 3)
    options = EvaluationOptions(edges=(8,), resamples=30, examples=2)
    alone = evaluate(first, right, options)
    assert alone.scores == score(first, right, options)
    assert alone.buckets == buckets(first, right, options)
    assert (alone.other_buckets, alone.comparison, alone.differing) == ([], [], [])
    both = evaluate(first, right, options, other=second, sources=["word"] * 12)
    assert both.comparison == compare(first, second, right, options)
    assert both.differing == differing(first, second, right, options)
    assert both.other_buckets == buckets(second, right, options, sources=["word"] * 12)
    assert evaluate(first, right, EvaluationOptions(edges=())).buckets == []
