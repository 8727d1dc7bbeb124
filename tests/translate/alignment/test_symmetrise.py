"""Two directions made one, against the published loops over whole grids."""

import random

import pytest

from regard.errors import RegardError
from regard.translate.alignment import (
    SYMMETRISERS,
    grow_diag,
    grow_diag_final,
    grow_diag_final_and,
    symmetrise,
)

SIZE = 7


def loops(forward, backward, last):
    """Koehn's published steps, on grids of truth values, word by word."""
    inside = range(SIZE)
    grid = [[(s, t) in forward and (s, t) in backward for t in inside] for s in inside]
    either = [[(s, t) in forward or (s, t) in backward for t in inside] for s in inside]

    def source_free(s):
        return not any(grid[s][t] for t in inside)

    def target_free(t):
        return not any(grid[s][t] for s in inside)

    steps = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    added = True
    while added:
        added = False
        for s in inside:
            for t in inside:
                if not grid[s][t]:
                    continue
                for a, b in steps:
                    u, v = s + a, t + b
                    if u not in inside or v not in inside or not either[u][v] or grid[u][v]:
                        continue
                    if source_free(u) or target_free(v):
                        grid[u][v] = added = True
    for links in (forward, backward) if last else ():
        for s in inside:
            for t in inside:
                free = (source_free(s), target_free(t))
                if (s, t) in links and (any(free) if last == "final" else all(free)):
                    grid[s][t] = True
    return {(s, t) for s in inside for t in inside if grid[s][t]}


def two_directions(seed):
    chance = random.Random(seed)
    forward = frozenset((chance.randrange(SIZE), t) for t in range(SIZE) if chance.random() < 0.8)
    backward = frozenset((s, chance.randrange(SIZE)) for s in range(SIZE) if chance.random() < 0.8)
    near = frozenset((s, min(SIZE - 1, s + chance.randrange(2))) for s in range(SIZE))
    return forward | (near if seed % 2 else frozenset()), backward | near


def test_the_grow_family_is_that_of_plain_loops():
    differ = set()
    for seed in range(300):
        forward, backward = two_directions(seed)
        found = {name: how(forward, backward) for name, how in SYMMETRISERS.items()}
        assert found["intersection"] == forward & backward
        assert found["union"] == forward | backward
        assert found["grow-diag"] == loops(forward, backward, None)
        assert found["grow-diag-final"] == loops(forward, backward, "final")
        assert found["grow-diag-final-and"] == loops(forward, backward, "final-and")
        differ |= {(a, b) for a in found for b in found if found[a] != found[b]}
    assert len(differ) == 20  # every two of the five differ somewhere


def test_an_example_worked_by_hand():
    forward = frozenset({(0, 0), (1, 1), (1, 2), (4, 3)})
    backward = frozenset({(0, 0), (2, 1), (3, 5)})
    # Both say 0-0. Beside it (diagonally) is 1-1, beside that 1-2 and 2-1. 4-3 and 3-5 touch none.
    grown = {(0, 0), (1, 1), (1, 2), (2, 1)}
    assert grow_diag(forward, backward) == grown
    assert grow_diag_final(forward, backward) == grown | {(4, 3), (3, 5)}
    assert grow_diag_final_and(forward, backward) == grown | {(4, 3), (3, 5)}
    assert grow_diag_final(forward | {(5, 1)}, backward) == grown | {(4, 3), (3, 5), (5, 1)}
    assert grow_diag_final_and(forward | {(5, 1)}, backward) == grown | {(4, 3), (3, 5)}


def test_nothing_gives_nothing_and_order_of_directions_matters_only_at_the_end():
    empty = frozenset()
    assert all(how(empty, empty) == empty for how in SYMMETRISERS.values())
    for seed in range(50):
        forward, backward = two_directions(seed)
        assert grow_diag(forward, backward) == grow_diag(backward, forward)


def test_an_unknown_way_is_refused():
    with pytest.raises(RegardError, match="'grow', expected one of intersection, union, grow-diag"):
        symmetrise(frozenset(), frozenset(), "grow")
