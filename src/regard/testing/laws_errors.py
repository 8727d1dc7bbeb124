"""Laws of bad input: an error that names axis, size and expectation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from regard.contract import Mechanism
from regard.testing.law import law
from regard.testing.subject import Subject, Unchecked, call


@law("wrong shapes raise an error that names the axis, the size and what was expected")
def wrong_shapes(subject: Subject) -> None:
    module = subject.module()
    query, key, value = subject.inputs()
    refuses(lambda: call(module, query[0], key, value), "3")
    if subject.traits.self_only:
        return
    batch, keys = query.shape[0], key.shape[1]
    refuses(lambda: call(module, query, key[:1], value[:1]), "batch", "1", str(batch))
    if subject.takes_value:
        refuses(lambda: call(module, query, key, value[:, :-1]), "key", str(keys - 1), str(keys))
    if isinstance(module, Mechanism) and subject.traits.longest is not None:
        most = subject.traits.longest
        long = subject.inputs(keys=most + 1)
        refuses(lambda: call(module, *long), "key", str(most + 1), str(most))


@law("wrong masks raise an error that names the axis, or the argument they belong to")
def wrong_masks(subject: Subject) -> None:
    module = subject.module()
    subject.takes("mask")
    query, key, value = subject.inputs()
    keys, queries = key.shape[1], query.shape[1]
    refuses(lambda: call(module, query, key, value, mask=torch.zeros(1, 1, queries, keys)), "bias")
    flat = torch.ones(queries, keys, dtype=torch.bool)
    refuses(lambda: call(module, query, key, value, mask=flat), "2", "4", "pairs")
    long = torch.ones(1, 1, queries, keys + 1, dtype=torch.bool)
    refuses(lambda: call(module, query, key, value, mask=long), "key", str(keys + 1), str(keys))


@law("wrong dtypes raise an error that names the argument and the dtype")
def wrong_dtypes(subject: Subject) -> None:
    module = subject.module()
    query, key, value = subject.inputs()
    refuses(lambda: call(module, query.long(), key, value), "query", "int64")
    if not subject.traits.self_only:
        refuses(
            lambda: call(module, query, key.float(), value.float()), "key", "float32", "float64"
        )


def refuses(call: Callable[[], Any], *words: str) -> None:
    """Fail unless the call raises an error whose text has all the words."""
    try:
        call()
    except Unchecked:
        raise
    except Exception as error:
        missing = [word for word in words if word not in str(error)]
        text = f"{type(error).__name__}: {error}"
        assert not missing, f"the error does not say {', '.join(missing)}; it says: {text}"
    else:
        raise AssertionError(
            f"wrong input was accepted; expected an error that says {', '.join(words)}"
        )
