"""What breaks right.py, and what the doctor must then find.

python docs/examples/doctor/faults.py same_order > broken.py
python tools/doctor.py torchrun --nproc-per-node 2 broken.py
"""

import sys
from pathlib import Path

RIGHT = Path(__file__).with_name("right.py")
# finding -> what stands in right.py, what stands there instead; and so on
FAULTS = {
    "same_samples": ("DistributedSampler(train_set)", "DistributedSampler(train_set, 1, 0)"),
    "overlapping_samples": ("batch_size=8, sampler=sampler", "batch_size=8, shuffle=True"),
    "overlapping_samples:skipped": (
        "DistributedSampler(train_set)",
        "DistributedSampler(train_set, 4)",
    ),
    "same_order": ("    sampler.set_epoch(epoch)\n", ""),
    "unequal_steps": ("sampler=sampler", "sampler=range(40 * rank, 40 + 30 * rank)"),
    "unequal_steps:skipped": (
        "        optimizer.step()",
        "        if (targets == 2).sum() > 1:\n            optimizer.step()",
    ),
    "unequal_steps:epochs": ("range(3)", "range(2 + rank)"),
    "no_averaging": ("ddp = DDP(model)", "ddp = model"),
    "no_averaging:start": (
        "ddp = DDP(model)",
        "ddp = model\nnn.init.normal_(model[0].weight, std=1 + rank)",
        "        loss.backward()\n",
        "        loss.backward()\n"
        "        for parameter in model.parameters():\n"
        "            dist.all_reduce(parameter.grad)\n",
    ),
    "unequal_gradients": ("ddp(images)", "model(images)"),
    "drifting_weights": ("0.1 * world_size", "0.1 * world_size, momentum=0.1 * rank"),
    "drifting_weights:rates": ("scheduler.step(totals[0] / totals[1])", "scheduler.step(loss)"),
    "equal_randomness": ("torch.manual_seed(rank)  # for dropout\n", ""),
    "equal_randomness:drawn": (
        "torch.manual_seed(rank)  # for dropout\n",
        "",
        "    for images, targets in loader:\n",
        "    for _ in range(4):\n"
        "        images, targets = train_set[torch.randint(len(train_set), (8,))]\n",
    ),
    "shared_file": ("    if rank == 0:\n", "    if True:\n"),
    "wrapped_keys": ("model.state_dict()", "ddp.state_dict()"),
    "wrong_evaluation": (
        "DataLoader(share, batch_size=8)",
        "DataLoader(val_set, 8, sampler=DistributedSampler(val_set, shuffle=False))",
    ),
    "wrong_evaluation:part": ("share, batch_size=8", "share, batch_size=8, drop_last=True"),
    "wrong_evaluation:share": (
        "    dist.all_reduce(totals)\n    scheduler.step(totals[0] / totals[1])\n",
        "",
    ),
    "unequal_buffers": ("        dist.broadcast(buffer, 0)\n", "        pass\n"),
    "collective_order": (
        "    model.eval()\n",
        "    model.eval()\n    if rank == 0:\n        dist.barrier()\n",
    ),
    "slow_step:unused": ("DDP(model)", "DDP(model, find_unused_parameters=True)"),
    "learning_rate": ("lr=0.1 * world_size", "lr=0.1"),
}


def changed(text: str, words: tuple[str, ...]) -> str:
    """The text with every second of these words in place of the one before it."""
    for old, new in zip(words[::2], words[1::2], strict=True):
        if text.count(old) != 1:
            raise ValueError(f"{old!r} is {text.count(old)} times in it")
        text = text.replace(old, new)
    return text


def broken(fault: str) -> str:
    """right.py with one fault."""
    return changed(RIGHT.read_text(), FAULTS[fault])


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FAULTS:
        sys.exit(f"faults: error: name one of {', '.join(FAULTS)}")
    print(broken(sys.argv[1]), end="")
