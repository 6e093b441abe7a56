"""Activation checkpointing: blocks keep their input only, and compute the rest a second time.

python docs/examples/handbook/large_checkpoint.py
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

BATCH, WIDTH, BLOCKS = 128, 64, 8


def build() -> nn.ModuleList:
    """The same blocks every time. Each is four times as wide inside as at its ends."""
    torch.manual_seed(0)
    layers = [
        nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4 * WIDTH, WIDTH)
        )
        for _ in range(BLOCKS)
    ]
    return nn.ModuleList(layers)


def train_once(how: str) -> list[Tensor]:
    """One forward and backward pass; prints what it kept, and returns the gradients."""
    blocks, passes, kept = build(), [], {}
    for block in blocks:
        block.register_forward_pre_hook(lambda *_: passes.append(1))
    own = {p.untyped_storage().data_ptr() for p in blocks.parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    torch.manual_seed(1)  # of the dropout
    x = torch.linspace(-1, 1, BATCH * WIDTH).view(BATCH, WIDTH)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        for block in blocks:
            if how == "checkpointed":
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        loss = x.square().mean()
    forward = len(passes)
    loss.backward()
    again = len(passes) - forward
    mib = sum(kept.values()) / 2**20
    print(f"{how:<12}  keeps {mib:5.2f} MiB, runs {forward} blocks in forward, {again} in backward")
    return [p.grad for p in blocks.parameters()]


if __name__ == "__main__":
    torch.testing.assert_close(train_once("plain"), train_once("checkpointed"), rtol=0, atol=0)
    print("the gradients are the same, dropout included")
