"""Figures of a head as loops over single weights, and weights for all tests of them."""

import math

import torch

WINDOW = 2


def softmaxed(seed, batch, heads, queries, keys, causal=False, sharp=2.0):
    random = torch.Generator().manual_seed(seed)
    scores = sharp * torch.randn(batch, heads, queries, keys, generator=random).double()
    if causal:
        later = torch.ones(queries, keys, dtype=torch.bool).triu(keys - queries + 1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores.softmax(-1)


class Loops:
    """Every figure of one head, written from its definition, a weight at a time."""

    def __init__(self, weights, ahead, real=None, special=None, tokens=None):
        self.w = weights.tolist()  # (batch, query, key) of one head
        self.batch, self.n_queries, self.n_keys = weights.shape
        shift = self.n_keys - self.n_queries
        real = torch.ones(self.batch, self.n_keys) if real is None else real
        self.real = real.bool().tolist()
        self.special = None if special is None else special.tolist()
        self.tokens = None if tokens is None else tokens.tolist()
        self.first = [row.index(True) for row in self.real]
        self.last = [self.n_keys - 1 - row[::-1].index(True) for row in self.real]
        self.ahead = ahead
        # rows that count: example, query, own position
        self.rows = [
            (b, i, i + shift)
            for b in range(self.batch)
            for i in range(self.n_queries)
            if self.real[b][i + shift] and sum(self.w[b][i]) > 0
        ]

    def row(self, b, i):
        """A row divided by its sum."""
        return [x / sum(self.w[b][i]) for x in self.w[b][i]]

    def mean(self, figure, rows=None):
        rows = self.rows if rows is None else rows
        return sum(figure(*row) for row in rows) / len(rows) if rows else math.nan

    def entropy(self):
        return self.mean(lambda b, i, own: -sum(x * math.log(x) for x in self.row(b, i) if x > 0))

    def in_sight(self, b, own):
        return range(self.first[b], (self.last[b] if self.ahead else own) + 1)

    def even(self):
        return self.mean(lambda b, i, own: math.log(len(self.in_sight(b, own))))

    def evenness(self):
        return self.entropy() / self.even()

    def effective(self):
        return self.mean(lambda b, i, own: 1 / sum(x * x for x in self.row(b, i)))

    def by_offset(self, weigh):
        """Real pairs gathered by j − i."""
        found: dict[int, float] = {}
        for b, i, own in self.rows:
            for j in range(self.n_keys):
                if self.real[b][j]:
                    found[j - own] = found.get(j - own, 0.0) + weigh(b, i, own, j)
        whole = sum(found.values())
        return {d: x / whole for d, x in found.items()}

    def seen(self):
        return self.by_offset(lambda b, i, own, j: self.w[b][i][j])

    def distance(self):
        return sum(abs(d) * x for d, x in self.seen().items())

    def spread(self):
        mean = self.distance()
        return math.sqrt(sum((abs(d) - mean) ** 2 * x for d, x in self.seen().items()))

    def at(self, d):
        rows = [
            (b, i, own)
            for b, i, own in self.rows
            if 0 <= own + d < self.n_keys and self.real[b][own + d]
        ]
        return self.mean(lambda b, i, own: self.w[b][i][own + d], rows)

    def itself(self):
        return self.at(0)

    def previous(self):
        return self.at(-1)

    def next(self):
        return self.at(1)

    def sink(self):
        return self.mean(lambda b, i, own: self.w[b][i][self.first[b]])

    def mass(self, b, i, keys):
        return sum(self.w[b][i][j] for j in keys)

    def special_(self):
        if self.special is None:
            return math.nan
        return self.mean(
            lambda b, i, own: self.mass(b, i, [j for j in range(self.n_keys) if self.special[b][j]])
        )

    def local(self):
        return self.mean(
            lambda b, i, own: self.mass(
                b,
                i,
                [j for j in range(self.n_keys) if abs(j - own) <= WINDOW and self.real[b][j]],
            )
        )

    def peak(self):
        best = []
        for b in range(self.batch):
            rows = [i for example, i, _ in self.rows if example == b]
            if rows:
                got = [sum(self.w[b][i][j] for i in rows) / len(rows) for j in range(self.n_keys)]
                best.append(max(got))
        return sum(best) / len(best)

    def aside(self):
        total = 0.0
        for b in range(self.batch):
            rows = [i for example, i, _ in self.rows if example == b]
            for j in range(self.n_keys):
                column = sum(self.w[b][i][j] for i in rows)
                special = self.special is not None and self.special[b][j]
                if special or (rows and column / len(rows) >= 0.4):
                    total += column
        return total / len(self.rows) if self.rows else math.nan

    def copies(self, b, own, after):
        if self.tokens is None:
            return []
        return [
            j
            for j in range(after, own - 1)
            if self.tokens[b][j - after] == self.tokens[b][own]
            and self.real[b][j]
            and j != self.first[b]
            and not (self.special is not None and self.special[b][j])
        ]

    def copied(self, after):
        rows = [(b, i, own) for b, i, own in self.rows if self.copies(b, own, after)]
        return self.mean(lambda b, i, own: self.mass(b, i, self.copies(b, own, after)), rows)

    def induction(self):
        return self.copied(1)

    def duplicate(self):
        return self.copied(0)

    def positional(self):
        def entropy(shares):
            return -sum(x * math.log(x) for x in shares.values() if x > 0)

        evenly = self.by_offset(
            lambda b, i, own, j: (
                1 / len(self.in_sight(b, own)) if j in self.in_sight(b, own) else 0.0
            )
        )
        rows = self.even() - self.entropy()
        if rows <= 0.01:
            return math.nan
        return min(1.0, max(0.0, (entropy(evenly) - entropy(self.seen())) / rows))
