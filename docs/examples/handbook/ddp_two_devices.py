"""DDP around a model that lies on two devices; on a CPU both are the same.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_two_devices.py
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class TwoDevices(nn.Module):
    """The first layer here, the second one there; forward carries the activations over."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.devices = first, second
        self.a = nn.Linear(4, 8).to(first)
        self.b = nn.Linear(8, 2).to(second)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.a(inputs.to(self.devices[0])).relu()
        return self.b(hidden.to(self.devices[1]))


def my_devices() -> list[torch.device]:
    """Two GPUs of this machine, if it has two for each of its ranks."""
    local_rank, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if torch.cuda.device_count() < 2 * count:
        return [torch.device("cpu")] * 2
    return [torch.device("cuda", 2 * local_rank + i) for i in range(2)]


if __name__ == "__main__":
    devices = my_devices()
    dist.init_process_group("nccl" if devices[0].type == "cuda" else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(rank)
    # No device_ids: the module says itself where its inputs go.
    model = DistributedDataParallel(TwoDevices(*devices))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        outputs = model(torch.randn(4, 4))
        nn.functional.mse_loss(outputs, torch.zeros(4, 2, device=outputs.device)).backward()
        optimizer.step()
        optimizer.zero_grad()
    total = sum(p.detach().double().sum().cpu() for p in model.parameters())
    print(f"rank {rank} sum of all weights after 3 steps: {total:.4f}")
    dist.barrier()
    dist.destroy_process_group()
