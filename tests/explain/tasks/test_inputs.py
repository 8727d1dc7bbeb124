"""Which positions there are, which are real, and which may be removed."""

import pytest
import torch
from explain_models import CLS, padded, untrained

from regard import RegardError, explain
from regard.explain.tasks.inputs import Inputs


class Tokenizer:
    all_special_ids = (CLS, 99)


def test_special_tokens_and_padding_are_not_removable():
    data = padded()
    expected = (data["attention_mask"] == 1) & (data["input_ids"] != CLS)
    marked = {**data, "special_tokens_mask": (data["input_ids"] == CLS).long()}
    for task in (
        explain.Task(untrained(), data, special=[CLS]),
        explain.Task(untrained(), data, special=Tokenizer()),
        explain.Task(untrained(), marked),
        explain.Task(untrained(), data, removable=data["input_ids"] != CLS),
    ):
        assert torch.equal(task.removable, expected)
        assert torch.equal(task.real, data["attention_mask"] == 1)
        assert list(task.inputs.named) == ["input_ids", "attention_mask"]


def test_it_must_be_said_which_tokens_are_special():
    with pytest.raises(RegardError, match="special=tokenizer"):
        explain.Task(untrained(), padded())


def test_a_torch_padding_mask_is_true_where_nothing_is():
    inputs = Inputs.of({"src": torch.zeros(2, 3, 4), "src_key_padding_mask": torch.eye(2, 3) == 1})
    assert inputs.main == "src" and inputs.direct
    assert torch.equal(inputs.attended(), torch.eye(2, 3) == 0)


def test_rows_take_what_has_an_axis_of_examples():
    given = {
        "input_ids": torch.arange(6).reshape(3, 2),
        "position_ids": torch.arange(2)[None],
        "use_cache": False,
    }
    some = Inputs.of(given).rows(torch.tensor([2, 2, 0]))
    assert some.ids.tolist() == [[4, 5], [4, 5], [0, 1]]
    assert some.named["position_ids"] is given["position_ids"] and some.named["use_cache"] is False


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ([1, 2], {}, "a list, expected a tensor"),
        (torch.zeros(3), {}, r"\(3,\), expected ids"),
        ({"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}, {}, "input_name="),
        ({"a": torch.zeros(2, 2)}, {"input_name": "c"}, "the inputs have a"),
        (torch.zeros(0, 3), {}, "no examples"),
        (torch.zeros(2, 3, 4), {"removable": torch.ones(2, 3)}, "torch.bool"),
        (torch.zeros(2, 3, 4), {"removable": torch.ones(3, 2) == 1}, r"expected \(2, 3\)"),
        (torch.zeros(2, 3, 4), {"special": [1]}, "features, not numbers"),
        (torch.zeros(2, 3, 4), {"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_is_refused(given, options, message, without_shape_checks):
    with pytest.raises(RegardError, match=message):
        explain.Task(lambda x: x.sum(1), given, **options)
