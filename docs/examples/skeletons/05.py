"""The least that trains under horovodrun, on all GPUs of a machine or on CPU processes."""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()  # horovodrun has told this process who it is
device = (
    torch.device("cuda", hvd.local_rank()) if torch.cuda.is_available() else torch.device("cpu")
)
if device.type == "cuda":
    torch.cuda.set_device(device)
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
sampler = DistributedSampler(data, hvd.size(), hvd.rank(), seed=0)
model = nn.Linear(8, 2).to(device)  # not wrapped, and not channels_last: Horovod refuses that
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in DataLoader(data, batch_size=8, sampler=sampler):
        loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
        optimizer.zero_grad()
        loss.backward()  # each gradient sets off on its way as soon as it is there
        optimizer.step()  # waits for the averages, then updates
    mean = hvd.allreduce(loss.detach(), op=hvd.Average)  # a new tensor: loss is still this rank's
    print(f"rank {hvd.rank()} epoch {epoch} own loss {loss.item():.4f} mean {mean.item():.4f}")
hvd.shutdown()
