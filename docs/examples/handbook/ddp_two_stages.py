"""DDP with model parallelism: two stages, two replicas of each, four processes; equal to one.

torchrun --standalone --nproc-per-node 4 docs/examples/handbook/ddp_two_stages.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, LR = 3, 8, 0.1


def make_stages() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
    return first.double(), nn.Linear(16, 2).double()


def update(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= LR * parameter.grad
    module.zero_grad()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    # Ranks 0 and 1 have the first half of the model, 2 and 3 the other.
    stage, replica = divmod(rank, 2)
    # All ranks make both groups, in the same order; each is then in one of them.
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    model = DistributedDataParallel(make_stages()[stage], process_group=groups[stage])
    partner = rank + 2 if stage == 0 else rank - 2  # the other stage of the same replica

    torch.manual_seed(1)
    data = torch.randn(STEPS, BATCH, 4, dtype=torch.float64)
    mine = data.chunk(2, dim=1)[replica]
    for inputs in mine:
        if stage == 0:
            hidden = model(inputs)
            dist.send(hidden.detach(), partner)
            gradient = torch.empty_like(hidden)
            dist.recv(gradient, partner)
            hidden.backward(gradient)  # averages the gradients of stage 0, over ranks 0 and 1
        else:
            hidden = torch.empty(len(inputs), 16, dtype=torch.float64)
            dist.recv(hidden, partner)
            hidden.requires_grad_()
            model(hidden).square().mean().backward()  # those of stage 1, over ranks 2 and 3
            dist.send(hidden.grad, partner)
        update(model)

    stages = make_stages()  # one process, the whole model, the whole batch
    for inputs in data:
        stages[1](stages[0](inputs)).square().mean().backward()
        for module in stages:
            update(module)
    for ours, theirs in zip(model.parameters(), stages[stage].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    print(f"rank {rank} stage {stage} of replica {replica}: equal to one process")
    dist.barrier()
    dist.destroy_process_group()
