"""Minimal training under horovodrun, on all GPUs of a machine or on CPU processes.

horovodrun -np 2 -H localhost:2 --gloo python 05_horovod/minimal.py
"""

import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

hvd.init()  # horovodrun has told this process who it is
rank, world_size = hvd.rank(), hvd.size()
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank())
    torch.cuda.set_device(device)

torch.manual_seed(0)
points = torch.randn(512, 8)
data = TensorDataset(points, (points.sum(1) > 0).long())
global_batch = 64  # of all processes together
sampler = DistributedSampler(data, world_size, rank)  # there is no process group to ask
loader = DataLoader(data, batch_size=global_batch // world_size, sampler=sampler)

model = nn.Linear(8, 2).to(device)  # not wrapped, and not channels_last
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)

for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        logits = model(inputs.to(device))
        loss = nn.functional.cross_entropy(logits, targets.to(device))
        optimizer.zero_grad()
        loss.backward()  # each gradient sets off on its way as soon as it is there
        optimizer.step()  # waits for the averages, then updates
    mean = hvd.allreduce(loss.detach(), op=hvd.Average)  # on all ranks
    if rank == 0:
        print(f"epoch {epoch}  own loss {loss.item():.4f}  mean {mean.item():.4f}")

if rank == 0:
    torch.save(model.state_dict(), "model.pt")
hvd.shutdown()
