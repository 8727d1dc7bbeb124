"""Every statistic again, as plain loops over texts that are read alone."""

import math

import torch

import regard


def alone(model, tokens):
    """The weights of each attention on one text, (head, query, key)."""
    ids = torch.tensor([tokens])
    with torch.no_grad(), regard.capture(model) as trace:
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    return {record.name: record.weights()[0] for record in trace}


def rows_of(model, texts, value):
    """`value(weights, tokens)`, (head, query) or more, of all texts, site by site."""
    by_site = {}
    for tokens in texts:
        for site, weights in alone(model, tokens).items():
            by_site.setdefault(site, []).append(value(weights, tokens))
    return {site: torch.cat(values, 1) for site, values in by_site.items()}


def entropy(weights, tokens):
    return -(weights * weights.clamp_min(1e-300).log()).sum(2)


def effective(weights, tokens):
    return 1 / weights.square().sum(2)


def on_odd(weights, tokens):
    return weights[:, :, torch.tensor(tokens) % 2 == 1].sum(2)


def in_half(weights, tokens):
    half = torch.tensor(tokens) // 6
    return (weights * (half[:, None] == half)).sum(2)


def distance(weights, tokens):
    places = torch.arange(len(tokens))
    return (weights * (places[:, None] - places).abs()).sum(2)


def between(model, texts, site, labels):
    """(head, from, to): mean weight of queries of one label on keys of the other."""
    total, number = torch.zeros(3, labels, labels, dtype=torch.float64), torch.zeros(labels)
    for tokens in texts:
        weights = alone(model, tokens)[site]
        for query, token in enumerate(tokens):
            number[token // 6] += 1
            for key, other in enumerate(tokens):
                total[:, token // 6, other // 6] += weights[:, query, key]
    return total / number[:, None]


def strongest(model, texts, site, head, k):
    """(score, example, query, key) of the strongest pair of each text, the strongest first."""
    pairs = []
    for number, tokens in enumerate(texts):
        weights = alone(model, tokens)[site][head].clone()
        weights.fill_diagonal_(-1.0)
        weights[:, 0] = -1.0  # the first token is where heads rest
        if len(tokens) > 1:
            best, place = weights.flatten().max(0)
            pairs.append((float(best), number, *divmod(int(place), len(tokens))))
    return sorted(pairs, key=lambda pair: (-round(pair[0] * 2**20), pair[1]))[:k]


def divergence(first, second):
    """Jensen–Shannon divergence of rows, (query,)."""
    middle = (first + second) / 2

    def against(weights):
        ratio = weights.clamp_min(1e-300).log() - middle.clamp_min(1e-300).log()
        return (weights * ratio).sum(1)

    return (against(first) + against(second)) / 2


def agreement(weights, tokens):
    """(1, query, head, head) of one text."""
    heads = range(len(weights))
    rows = [[divergence(weights[a], weights[b]) for b in heads] for a in heads]
    return torch.stack([torch.stack(row) for row in rows]).permute(2, 0, 1)[None]


def clustered(by_text):
    """Mean over all rows of texts, and its standard error when texts are drawn at random."""
    total = torch.tensor([float(rows.sum()) for rows in by_text], dtype=torch.float64)
    number = torch.tensor([float(len(rows)) for rows in by_text], dtype=torch.float64)
    mean = float(total.sum() / number.sum())
    rest = (total - mean * number).square().sum()
    texts = len(by_text)
    return mean, math.sqrt(float(rest) * texts / (texts - 1)) / float(number.sum())
