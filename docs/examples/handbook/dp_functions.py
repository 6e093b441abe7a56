"""The four steps of DataParallel as functions: which of them answer without a GPU.

python docs/examples/handbook/dp_functions.py
"""

import os
from collections.abc import Callable

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: the same output on every machine

import torch
from torch import nn
from torch.nn.parallel import gather, parallel_apply, replicate, scatter


def show(call: str, run: Callable, words: bool = True) -> None:
    """What comes back, or the error; its words only if they are the same in every torch build."""
    try:
        print(f"{call:<36} {run()}")
    except Exception as error:
        said = f"{type(error).__name__}: {error}" if words else "fails: it asks for a GPU"
        print(f"{call:<36} {said}")


if __name__ == "__main__":
    gpus, x = [0, 1], torch.arange(4.0)
    print("-- what they do to tensors needs GPUs")
    show("scatter(x, [0, 1])", lambda: scatter(x, gpus), words=False)
    show('scatter(x, ["cpu", "cpu"])', lambda: scatter(x, ["cpu", "cpu"]))
    show("replicate(linear, [0, 1])", lambda: replicate(nn.Linear(1, 1), gpus))
    show(
        "parallel_apply([relu] * 2, [x] * 2)",
        lambda: parallel_apply([nn.ReLU()] * 2, [x] * 2),
        False,
    )
    show('gather([x, x], "cpu")', lambda: gather([x, x], "cpu"))
    print("-- everything else they handle here, too")
    show('scatter(("a", [7]), [0, 1])', lambda: scatter(("a", [7]), gpus))
    first, second = scatter([{"rate": 0.1}], gpus)
    show('scatter([{"rate": 0.1}], [0, 1])', lambda: (first, second, first[0] is second[0]))
    shared = object()
    first, second = scatter([shared], gpus)
    show("scatter([object], [0, 1])", lambda: f"the same object: {first[0] is second[0] is shared}")
    show("replicate(relu, [0, 1])", lambda: replicate(nn.ReLU(), gpus))
    show('gather([None, None], "cpu")', lambda: gather([None, None], "cpu"))
    show('gather([1, 2], "cpu")', lambda: gather([1, 2], "cpu"))
