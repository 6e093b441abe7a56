"""pytorch/pytorch issue 104336, 2023-06-28: the wrapped model is moved away and back.

https://github.com/pytorch/pytorch/issues/104336
The model was parked on the CPU while the GPU built a search index, and moved back. DDP's hooks
hang on the tensors that it was given; a move swaps the tensors, so that nothing was averaged
afterwards, without a warning. The reporter noticed it when he compared the gradients of the
ranks with and without the move. A change of type does the same, and stands for the move here.
Mended as a maintainer advised: after the move the model is wrapped again.
Doctor: unequal_gradients at DistributedDataParallel(ToyModel())
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MENDED = "--mended" in sys.argv


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 16)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


@torch.no_grad()
def build_index(model: nn.Module, passages: torch.Tensor) -> torch.Tensor:
    """Embed all passages in double precision; the model comes back in single precision."""
    index = model.double()(passages.double())
    model.float()
    return index


dist.init_process_group("gloo")
torch.manual_seed(0)
questions = torch.randn(64, 10)
dataset = TensorDataset(questions, questions[:, :5].argmax(1))
sampler = DistributedSampler(dataset)
dataloader = DataLoader(dataset, batch_size=8, sampler=sampler)

ddp_model = DistributedDataParallel(ToyModel())
optimizer = torch.optim.SGD(ddp_model.parameters(), lr=0.1)
loss_fn = nn.CrossEntropyLoss()

for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in dataloader:
        loss = loss_fn(ddp_model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model = ddp_model.module
    index = build_index(model, questions)
    if MENDED:
        ddp_model = DistributedDataParallel(model)

dist.destroy_process_group()
