"""Save on rank 0, wait, load everywhere, go on: as if nothing had happened.

torchrun --standalone --nproc-per-node 2 docs/examples/handbook/ddp_checkpoint.py
"""

import os
import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device("cpu")  # on GPUs: torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(nn.Linear(3, 2).to(DEVICE))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, batches: Tensor) -> None:
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


def save(path: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Called by all ranks; one writes, and nobody returns before the file is whole."""
    if dist.get_rank() == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"{path}.tmp")
        os.replace(f"{path}.tmp", path)
    dist.barrier()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)  # a pickle: only among processes that trust each other
    path = os.path.join(folder[0], "checkpoint.pt")

    torch.manual_seed(rank)
    batches = torch.randn(6, 4, 3)
    model, optimizer = build()
    train(model, optimizer, batches[:3])
    save(path, model, optimizer)
    train(model, optimizer, batches[3:])  # the run that is not disturbed

    resumed, its_optimizer = build()  # new, random weights
    # Without map_location the tensors go to where rank 0 had them: all ranks to GPU 0.
    state = torch.load(path, map_location=DEVICE)
    resumed.module.load_state_dict(state["model"])
    its_optimizer.load_state_dict(state["optimizer"])  # DDP does not share this one out
    train(resumed, its_optimizer, batches[3:])
    for ours, theirs in zip(resumed.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    print(f"rank {rank} resumed: the same weights as without the pause")

    prefixed = model.state_dict()  # of the wrapper: a plain model does not know these names
    print(f"rank {rank} saved {list(state['model'])}, the wrapper's names are {list(prefixed)}")
    consume_prefix_in_state_dict_if_present(prefixed, "module.")  # in place
    nn.Linear(3, 2).load_state_dict(prefixed)
    dist.barrier()
    if rank == 0:
        os.remove(path)
        os.rmdir(folder[0])
    dist.destroy_process_group()
