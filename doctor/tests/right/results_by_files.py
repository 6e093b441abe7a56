"""Each rank writes the results of its share to a file; rank 0 joins the files and counts."""

import os
import pickle
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def collect_results(part, size):
    """All results in the order of the set, on rank 0; without what the sampler has repeated."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    folder = [tempfile.mkdtemp(prefix="results-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    with open(os.path.join(folder[0], f"part_{rank}.pkl"), "wb") as file:
        pickle.dump(part, file)
    dist.barrier()
    if rank:
        return None
    parts = []
    for other in range(world_size):
        with open(os.path.join(folder[0], f"part_{other}.pkl"), "rb") as file:
            parts.append(pickle.load(file))
    shutil.rmtree(folder[0])
    return [result for results in zip(*parts, strict=True) for result in results][:size]


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    inputs, targets = torch.randn(90, 8), torch.randint(3, (90,))
    train_set, test_set = TensorDataset(inputs, targets), TensorDataset(inputs[:33], targets[:33])
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=5, sampler=sampler)
    test_sampler = DistributedSampler(test_set, shuffle=False)
    test_loader = DataLoader(test_set, batch_size=5, sampler=test_sampler)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
        part = []
        with torch.no_grad():
            for inputs, targets in test_loader:
                part += (model(inputs).argmax(1) == targets).tolist()
        results = collect_results(part, len(test_set))
        if results:
            print(f"epoch {epoch} accuracy {sum(results) / len(results):.3f}")
    dist.destroy_process_group()


main()
