"""Plain loops over positions, written from the papers' equations, for one head of one example."""

import math

import torch


def katharopoulos(query, key, value, decay=None, normalised=True):
    """ "Transformers are RNNs", eqs. 16-20, on features; `decay` is α of each position."""
    memory = torch.zeros(key.shape[1], value.shape[1], dtype=key.dtype)
    total = torch.zeros(key.shape[1], dtype=key.dtype)
    outputs = []
    for position in range(len(key)):
        alpha = 1.0 if decay is None else decay[position]
        for feature in range(key.shape[1]):
            memory[feature] = alpha * memory[feature] + key[position, feature] * value[position]
            total[feature] = alpha * total[feature] + key[position, feature]
        read = sum(query[position, i] * memory[i] for i in range(key.shape[1]))
        if normalised:
            read = read / sum(query[position, i] * total[i] for i in range(key.shape[1]))
        outputs.append(read)
    return torch.stack(outputs)


def schlag(query, key, value, beta, decay=None):
    """ "Fast weight programmers", eqs. 21-24: retrieve, compare, write. W is value × key there."""
    matrix = torch.zeros(value.shape[1], key.shape[1], dtype=key.dtype)
    outputs = []
    for position in range(len(key)):
        if decay is not None:  # Yang et al. 2024, eq. 10: the old matrix fades first
            matrix = decay[position] * matrix
        held = torch.mv(matrix, key[position])
        new = beta[position] * value[position] + (1 - beta[position]) * held
        matrix = matrix + torch.outer(new, key[position]) - torch.outer(held, key[position])
        outputs.append(torch.mv(matrix, query[position]))
    return torch.stack(outputs)


def elu_plus_one(numbers):
    return torch.tensor(
        [[x + 1 if x > 0 else math.exp(x) for x in row] for row in numbers.tolist()],
        dtype=numbers.dtype,
    )


def heads_of(projected, n_heads):
    """(position, heads · width) of one example, as a list of (position, width)."""
    return projected.chunk(n_heads, dim=-1)
