"""The equations of NTM and DNC in plain Python, one example and one number at a time."""

import math


def cosine(key, slot):
    norms = math.sqrt(sum(x * x for x in key) + 1e-6) * math.sqrt(sum(x * x for x in slot) + 1e-6)
    return sum(x * y for x, y in zip(key, slot)) / norms


def softmax(numbers):
    largest = max(numbers)
    exponentials = [math.exp(number - largest) for number in numbers]
    return [share / sum(exponentials) for share in exponentials]


def sigmoid(number):
    return 1 / (1 + math.exp(-number))


def softplus(number):
    return math.log(1 + math.exp(number))


def content(key, memory, strength):
    return softmax([strength * cosine(key, slot) for slot in memory])


def shifted(weights, kernel):
    """Every slot sends its weight on: by j − r slots with kernel[j]."""
    slots, reach = len(weights), len(kernel) // 2
    moved = [0.0] * slots
    for slot, weight in enumerate(weights):
        for index, share in enumerate(kernel):
            moved[(slot + index - reach) % slots] += weight * share
    return moved


def sharpened(weights, exponent):
    powers = [weight**exponent for weight in weights]
    return [power / sum(powers) for power in powers]


def written(memory, heads):
    """`heads`: (weights, erase, vector) each; all erase, then all add."""
    memory = [list(slot) for slot in memory]
    for weights, erase, _ in heads:
        for slot, weight in zip(memory, weights):
            for feature in range(len(slot)):
                slot[feature] *= 1 - weight * erase[feature]
    for weights, _, vector in heads:
        for slot, weight in zip(memory, weights):
            for feature in range(len(slot)):
                slot[feature] += weight * vector[feature]
    return memory


def read(memory, weights):
    return [
        sum(weight * slot[feature] for weight, slot in zip(weights, memory))
        for feature in range(len(memory[0]))
    ]


def usage(previous, write, reads, free):
    answer = []
    for slot in range(len(previous)):
        retention = 1.0
        for weights, gate in zip(reads, free):
            retention *= 1 - gate * weights[slot]
        u, w = previous[slot], write[slot]
        answer.append((u + w - u * w) * retention)
    return answer


def allocation(usage):
    answer, product = [0.0] * len(usage), 1.0
    for slot in sorted(range(len(usage)), key=lambda slot: usage[slot]):
        answer[slot] = (1 - usage[slot]) * product
        product *= usage[slot]
    return answer


def links(previous, write, precedence):
    slots = range(len(write))
    return [
        [
            0.0 if i == j else (1 - write[i] - write[j]) * previous[i][j] + write[i] * precedence[j]
            for j in slots
        ]
        for i in slots
    ]


def precedence(previous, write):
    return [(1 - sum(write)) * p + w for p, w in zip(previous, write)]


def forward(links, weights):
    slots = range(len(weights))
    return [sum(links[i][j] * weights[j] for j in slots) for i in slots]


def backward(links, weights):
    slots = range(len(weights))
    return [sum(links[j][i] * weights[j] for j in slots) for i in slots]
