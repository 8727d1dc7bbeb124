"""What statistics say, against plain loops; and that batches, order and padding change nothing."""

import random
from dataclasses import is_dataclass, replace

import corpus_loops as loops
import pytest
import torch
from corpus_models import Reader, Undefined, texts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import regard
from regard.aggregate import Report
from regard.corpus import (
    Agreement,
    Average,
    CoAttention,
    Corpus,
    Drift,
    Figures,
    Mean,
    Shares,
    Sharpness,
    Statistic,
    StrongestPairs,
)
from regard.errors import RegardError

TEXTS = texts(30)


def labels(batch):
    return {"odd": batch.tokens % 2 == 1, "half": batch.tokens // 6}


class LateKeys(Statistic):
    """Weight on the second half of each text."""

    def asks(self, batch):
        late = batch.real.cumsum(1) > batch.real.sum(1, keepdim=True) / 2
        return {"late": regard.WeightedSum(late[:, None, None].float())}

    def start(self):
        return {"share": Mean()}

    def update(self, parts, attention):
        parts["share"].add(attention.answers["late"][:, :, 0], attention.rows)


def everything():
    return [
        Figures(reach=4),
        Sharpness(),
        Shares(["odd", "half"]),
        CoAttention(["low", "high"], "half"),
        StrongestPairs(3),
        Agreement(),
        Drift(Reader(seed=1)),
        Average(regard.Histogram(8)),
        LateKeys(),
    ]


def collected(model, documents, statistics=None, **options):
    options = {"batch_size": 8, "shard_size": 16, "labels": labels, **options}
    return regard.collect(model, Corpus(documents, **options), statistics or everything())


@pytest.fixture(scope="module", params=[False, True], ids=["full", "causal"])
def model(request):
    return Reader(causal=request.param)


@pytest.fixture(scope="module")
def found(model):
    return collected(model, TEXTS)


# -- what they say


@pytest.mark.parametrize(
    ("name", "value", "estimate"),
    [
        ("sharpness", loops.entropy, lambda result: result.entropy),
        ("sharpness", loops.effective, lambda result: result.effective),
        ("shares", loops.on_odd, lambda result: result["odd"]),
        ("shares", loops.in_half, lambda result: result["half"]),
        ("figures", loops.entropy, lambda result: result.figures["entropy"]),
        ("figures", loops.distance, lambda result: result.figures["distance"]),
    ],
)
def test_means_and_errors_are_those_of_loops(model, found, name, value, estimate):
    for site in found.sites:
        by_text = [value(loops.alone(model, tokens)[site], tokens) for tokens in TEXTS]
        answer = estimate(found[name][site])
        rows = torch.cat(by_text, 1)
        assert answer.number.tolist() == pytest.approx([rows.shape[1]] * 3)
        if answer.variance is not None:
            torch.testing.assert_close(answer.variance, rows.var(1))
        for head in range(3):
            mean, error = loops.clustered([rows[head] for rows in by_text])
            assert answer.mean[head].item() == pytest.approx(mean)
            assert answer.error[head].item() == pytest.approx(error)


def test_weights_between_categories(model, found):
    for site in found.sites:
        answer = found["co_attention"][site]
        truth = loops.between(model, TEXTS, site, 2)
        torch.testing.assert_close(answer.between.mean, truth)
        torch.testing.assert_close(
            answer.received.mean[:, 1],
            loops.rows_of(
                model, TEXTS, lambda weights, t: weights[:, :, torch.tensor(t) >= 6].sum(2)
            )[site].mean(1),
        )


def test_strongest_pairs(model, found):
    for site in found.sites:
        for head, strong in enumerate(found["strongest_pairs"][site]):
            truth = loops.strongest(model, TEXTS, site, head, 3)
            pairs = [(one.example.number, one.query, one.key) for one in strong]
            assert pairs == [pair[1:] for pair in truth]
            assert [one.score for one in strong] == pytest.approx([p[0] for p in truth], abs=1e-6)
            assert [one.example.tokens for one in strong] == [TEXTS[p[1]] for p in truth]


def test_agreement_and_drift(model, found):
    other = Reader(seed=1)
    truth = loops.rows_of(model, TEXTS, loops.agreement)
    for site in found.sites:
        answer = found["agreement"][site].mean
        upper = torch.ones(3, 3).triu(1) > 0
        torch.testing.assert_close(answer[upper], truth[site][0].mean(0)[upper])
        assert answer[~upper].isnan().all()
        rows = []
        for tokens in TEXTS:
            mine, theirs = loops.alone(model, tokens)[site], loops.alone(other, tokens)[site]
            rows.append(torch.stack([loops.divergence(*pair) for pair in zip(mine, theirs)]))
        torch.testing.assert_close(found["drift"][site].mean, torch.cat(rows, 1).mean(1))


def test_a_reducer_is_averaged_without_padding(model, found):
    for site in found.sites:
        counts = [
            regard.reduce(
                regard.recipe.Given(loops.alone(model, t)[site][None], None), [regard.Histogram(8)]
            )[0]
            for t in TEXTS
        ]
        torch.testing.assert_close(
            found["histogram"][site].mean, torch.cat(counts).double().mean(0)
        )


def test_a_statistic_of_ones_own(model, found):
    def late(weights, tokens):
        return weights[:, :, (torch.arange(len(tokens)) + 1) > len(tokens) / 2].sum(2)

    truth = loops.rows_of(model, TEXTS, late)
    for site in found.sites:
        torch.testing.assert_close(found["late_keys"][site].mean, truth[site].mean(1))


def test_the_report_is_that_of_one_batch(model):
    """With every distance a place of its own, figures over a corpus are those of a trace."""
    found = collected(model, TEXTS, [Figures(reach=32)], batch_size=4)
    longest = max(map(len, TEXTS))
    ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in TEXTS])
    real = torch.arange(longest) < torch.tensor([[len(tokens)] for tokens in TEXTS])
    with torch.no_grad(), regard.capture(model) as trace:
        model(input_ids=ids, attention_mask=real.long())
    truth = Report.of(trace, tokens=ids, real=real)
    for mine, theirs in zip(found.report(), truth, strict=True):
        assert (mine.label, mine.layer, mine.head) == (theirs.label, theirs.layer, theirs.head)
        for figure in regard.aggregate.statistics.head_statistics.FIGURES:
            want = pytest.approx(getattr(theirs, figure), nan_ok=True, abs=1e-9)
            assert getattr(mine, figure) == want, figure


def test_types_of_texts_are_those_of_their_own_reports(model, found):
    site = found.sites[0]
    counts = torch.zeros_like(found["figures"][site].type_counts)
    names = list(regard.aggregate.statistics.head_types.TYPES)
    for tokens in TEXTS:
        weights = loops.alone(model, tokens)[site][None]
        for row in Report.of(weights, tokens=torch.tensor(tokens)):
            counts[row.head, names.index(row.type)] += 1
    assert torch.equal(found["figures"][site].type_counts, counts)
    shares = found["figures"][site].type_shares[0]
    assert sum(shares.values()) == pytest.approx(1.0)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)


def test_the_profile_is_over_offsets(model):
    site_profiles = collected(model, TEXTS, [Figures(reach=32)])["figures"]
    for site, figures in site_profiles.items():
        profile = figures.profile
        total = torch.zeros(3, len(profile.offset), dtype=torch.float64)
        for tokens in TEXTS:
            weights = loops.alone(model, tokens)[site]
            for place, offset in enumerate(profile.offset.long().tolist()):
                total[:, place] += weights.diagonal(offset, 1, 2).sum(1)
        torch.testing.assert_close(profile.share, total / total.sum(1, keepdim=True))
        assert profile.width.tolist() == [1.0] * len(profile.offset)
        torch.testing.assert_close(profile.even.sum(1), torch.ones(3, dtype=torch.float64))


def test_places_far_away_stand_for_several_offsets():
    figures = Figures(reach=4)
    offset, width = figures._places(40)
    assert width.sum() == 2 * 40 - 1 and offset[width > 0].min() > -40
    exact = (offset.abs() <= 4) & (width > 0)
    assert width[exact].tolist() == [1.0] * 9 and offset[exact].tolist() == list(range(-4, 5))
    summed = figures._placed(torch.ones(1, 79, dtype=torch.float64))[0]
    assert torch.equal(summed, width)


# -- what changes nothing


def assert_alike(mine, theirs):
    """All numbers agree to 1e-9, and all examples."""
    assert mine.sites == theirs.sites and (mine.examples, mine.tokens) == (
        theirs.examples,
        theirs.tokens,
    )
    for name in mine:
        for site in mine.sites:
            first, second = (leaves(each[name][site]) for each in (mine, theirs))
            assert len(first) == len(second) and first
            for one, other in zip(first, second):
                if isinstance(one, Tensor):
                    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, equal_nan=True)
                else:
                    assert one == other, (name, site)


def leaves(result):
    flat = []
    for leaf in tree_leaves(result):
        flat += leaves(vars(leaf)) if is_dataclass(leaf) else [leaf]
    return flat


@example(seed=0, batch_size=1, shard_size=1, padding=0)  # nothing is left at an offset,
@example(seed=195, batch_size=1, shard_size=1, padding=0)  # or beside a sink
@settings(max_examples=3, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    batch_size=st.integers(1, 9),
    shard_size=st.integers(1, 9),
    padding=st.integers(0, 3),
)
def test_batches_and_shards_and_padding_change_nothing(seed, batch_size, shard_size, padding):
    model = Reader(causal=bool(seed % 2))
    documents = texts(8, seed)
    plain = collected(model, documents, batch_size=8, shard_size=8)
    assert_alike(collected(model, documents, batch_size=batch_size, shard_size=shard_size), plain)

    class Padded(Corpus):
        """Every batch has more padding than it needs."""

        def joined(self, some):
            inputs = super().joined(some)
            wider = torch.nn.functional.pad
            ids = wider(inputs.tokens, (0, padding))
            real = wider(inputs.real, (0, padding))
            more = {"input_ids": ids, "attention_mask": real.long()}
            batch = replace(inputs, inputs=more, tokens=ids, real=real, labels={})
            return replace(batch, labels=labels(batch))

    corpus = Padded(documents, batch_size=batch_size, labels=labels)
    assert_alike(regard.collect(model, corpus, everything()), plain)


@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_texts_changes_no_number(seed):
    model, documents = Reader(), texts(8, seed)
    shuffled = random.Random(seed).sample(documents, len(documents))
    statistics = [each for each in everything() if not isinstance(each, StrongestPairs)]
    assert_alike(
        collected(model, shuffled, statistics, shard_size=5),
        collected(model, documents, statistics),
    )


def test_padding_on_the_left_counts_no_more(model):
    """As the tokenizers of language models put it."""
    longest = max(map(len, TEXTS))
    batches = []
    for start in range(0, len(TEXTS), 6):
        some = TEXTS[start : start + 6]
        ids = torch.tensor([[0] * (longest - len(tokens)) + tokens for tokens in some])
        real = torch.arange(longest) >= longest - torch.tensor([[len(tokens)] for tokens in some])
        batches.append({"input_ids": ids, "attention_mask": real.long()})
    assert_alike(collected(model, batches), collected(model, TEXTS))
    undefined = Reader(layer=Undefined)
    assert_alike(collected(undefined, batches), collected(undefined, TEXTS))


# -- what is refused


def test_attention_to_padding_is_refused():
    def without_mask(input_ids, attention_mask):
        return model(input_ids, torch.ones_like(attention_mask))

    model = Reader()
    corpus = Corpus(TEXTS, batch_size=8)
    with pytest.raises(RegardError, match=r"^documents .*: layers.0: tokens attend to padding"):
        regard.collect(without_mask, corpus, [Sharpness()])
    one_by_one = regard.collect(without_mask, Corpus(TEXTS, batch_size=1), [Sharpness()])
    assert_alike(one_by_one, regard.collect(model, corpus, [Sharpness()]))


@pytest.mark.parametrize(
    ("statistic", "text"),
    [
        (lambda: Shares(["colour"]), "Shares: no label 'colour', there are odd, half; collect"),
        (
            lambda: CoAttention(["low"], "half"),
            "label 'half' has numbers from 0 to 1, expected 0 to 0",
        ),
        (
            lambda: Average(regard.EffectiveKeys()),
            r"EffectiveKeys answers 2 tensors \(0 above, 1 eff",
        ),
        (lambda: Average(regard.Entropy()), "what is added up has one size for all texts"),
        (lambda: Drift(Reader(heads=2)), "layers.0 is an attention .*, the reference has one of"),
    ],
)
def test_what_does_not_fit_the_corpus_is_refused(statistic, text):
    with pytest.raises(RegardError, match=text):
        collected(Reader(), TEXTS, [statistic()])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Shares([]), "Shares: labels=\\[\\], expected a list"),
        (lambda: Shares("odd"), "Shares: labels='odd', expected a list"),
        (lambda: CoAttention([]), "CoAttention: \\[\\], expected a list of categories"),
        (lambda: Figures(window=0), "Figures: window=0, reach=64, expected at least 1"),
        (lambda: Sharpness(0), "Sharpness: bins=0, expected at least 1"),
        (lambda: StrongestPairs(0), "Strongest: k=0, expected at least 1"),
        (lambda: Average(regard.Entropy), "is not a Reducer; pass an object"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, text, without_shape_checks):
    with pytest.raises(RegardError, match=text):
        make()
