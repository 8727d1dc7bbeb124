"""A script for test_process_safety: torch's compiler is imported in the middle of a capture."""

import sys
import warnings

import torch
from capture_models import fused, words

import regard


def main() -> None:
    model, x = fused(), words(2, 5, 8)
    expected, truth = model(x), model.weigh(x)
    assert "torch._dynamo" not in sys.modules, "imported too early: nothing would be tested"
    with regard.capture(model) as trace:
        model(x)
        compiled = torch.compile(model, backend="eager")
        assert "torch._dynamo" in sys.modules
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected)
        model(x)
    assert [record.step for record in trace] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    for index, record in enumerate(trace):
        torch.testing.assert_close(record.weights(), truth[index % len(truth)].detach())
    graphs = torch._dynamo.utils.counters["stats"]
    assert not graphs["unique_graphs"], "compiled during a capture"
    compiled(x)
    assert graphs["unique_graphs"], "the compiler is not back"


if __name__ == "__main__":
    warnings.simplefilter("error", regard.CaptureWarning)
    main()
    print("fine")
