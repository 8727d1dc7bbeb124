"""A script for test_threads: four threads capture one encoder at once, beside two that do not.

python thread_safety.py SEED
"""

import sys
import threading
import warnings

import torch
from torch import nn

import regard

THREADS, PASSES = 4, 3


def encoder(seed: int) -> nn.TransformerEncoder:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


def weights_of(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    with regard.capture(model, path="full") as trace:
        model(x)
    return [record.weights() for record in trace]


def main(seed: int) -> None:
    model = encoder(seed)
    inputs = [torch.randn(number + 2, 5 + number, 16) for number in range(THREADS)]
    grad = bool(seed % 2)
    expected, truth = [], []
    torch.set_grad_enabled(grad)
    if seed % 3:  # otherwise kernels are registered while others run
        truth = [weights_of(model, x) for x in inputs]
    expected = [model(x) for x in inputs]
    gate, stop = threading.Barrier(THREADS + 2), threading.Event()
    traces: dict[int, regard.Trace] = {}
    errors: list[BaseException] = []

    def captures(number: int) -> None:
        try:
            torch.set_grad_enabled(grad)
            gate.wait(60)
            with regard.capture(model) as trace:
                for _ in range(PASSES):
                    assert torch.equal(model(inputs[number]), expected[number])
            traces[number] = trace
        except BaseException as error:
            errors.append(error)

    def stands_by(number: int) -> None:
        try:
            torch.set_grad_enabled(grad)
            gate.wait(60)
            while not stop.is_set():
                assert torch.equal(model(inputs[number]), expected[number])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=captures, args=(number,)) for number in range(THREADS)]
    standing = [threading.Thread(target=stands_by, args=(number,)) for number in range(2)]
    for thread in (*threads, *standing):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    for thread in standing:
        thread.join()
    assert errors == [], errors
    for number, x in enumerate(inputs):
        records = list(traces[number])
        own = truth[number] if truth else weights_of(model, x)
        assert [record.step for record in records] == [step for step in range(PASSES) for _ in own]
        for index, record in enumerate(records):
            torch.testing.assert_close(record.weights(), own[index % len(own)])


if __name__ == "__main__":
    warnings.simplefilter("error", regard.CaptureWarning)
    main(int(sys.argv[1]))
    print("fine")
