"""nn.DataParallel where there is no GPU: the wrapper just calls the module.

python docs/examples/handbook/dp_cpu.py
"""

import os
import threading

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # before torch looks: the same output on every machine

import torch
from torch import Tensor, nn
from torch.nn.parallel import data_parallel


class Model(nn.Module):
    """Counts its calls, and says who runs it with how much."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        print(f"forward: {len(x)} images in {threading.current_thread().name}")
        return self.linear(x)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.DataParallel(Model(), device_ids=[0, 1], dim=1)  # asked for two GPUs
    images = torch.randn(6, 4)
    outputs = model(images)
    torch.testing.assert_close(outputs, model.module(images), rtol=0, atol=0)
    print(f"device_ids {model.device_ids}; calls counted: {model.module.calls}")
    print("has dim:", hasattr(model, "dim"), "has output_device:", hasattr(model, "output_device"))
    print("names:", *model.state_dict())
    try:
        model.linear  # noqa: B018
    except AttributeError as error:
        print(f"AttributeError: {error}")
    try:
        data_parallel(model.module, images)
    except RuntimeError as error:
        print(f"data_parallel, RuntimeError: {error}")
