"""Gradients that pile up, a model that stays in eval mode, a tensor that never moves: notes, each
beside right programs that look much like it."""

from pathlib import Path

import faults
import pytest
from crew import Crew
from examined import assert_all_ran, examined_text
from programs import LOSS, MASKED
from test_sentences import COUNTED
from tiers import but

ZERO = "        optimizer.zero_grad()\n"
STEP = "        optimizer.step()\n"
BACKWARD = "        loss.backward()\n"
ACCUMULATED = (*COUNTED, STEP, "        if number % 2:\n            optimizer.step()\n")
EVERY_SECOND = "            optimizer.zero_grad(set_to_none=False)\n"
ADVERSARIAL = (  # gradients of the attack are thrown away before those of the step
    BACKWARD,
    "        ddp(images + 0.1).square().mean().backward()\n" + ZERO + BACKWARD,
)
GAN = (  # the other's gradients are left over, until it empties them
    "torch.manual_seed(rank)",
    "critic = DDP(nn.Linear(3, 1))\n"
    "learns = torch.optim.Adam(critic.parameters())\ntorch.manual_seed(rank)",
    BACKWARD,
    "        learns.zero_grad()\n        critic(ddp(images).detach()).mean().backward()\n"
    "        learns.step()\n        (loss - critic(ddp(images)).mean()).backward()\n",
)
BY_GRAD = (  # gradients are set, while backward() is called for another model
    "ddp = DDP(model)\n",
    "ddp = model\nbeside = nn.Linear(8, 1)\n"
    "for p in model.parameters():\n    dist.broadcast(p.data, 0)\n",
    ZERO, "",
    BACKWARD,
    "        beside(images).mean().backward()\n"
    "        found = torch.autograd.grad(loss, list(model.parameters()))\n"
    "        for p, grad in zip(model.parameters(), found):\n"
    "            dist.all_reduce(grad)\n"
    "            p.grad = grad / world_size\n",
)  # fmt: skip
EVAL = ("    model.train()\n", "")
LINEAR = "nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(), nn.Linear(16, 3)"
HALF = (  # updates of the first layer are too small for its type
    "nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout()",
    "First(), nn.Tanh()",
    "model = nn.Sequential(",
    "class First(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.weight = nn.Parameter(torch.ones(16, 8, dtype=torch.bfloat16))\n\n"
    "    def forward(self, x):\n"
    "        return x @ self.weight.float().T\n\n\n"
    "model = nn.Sequential(",
    "lr=0.1 * world_size", "lr=1e-4",
)  # fmt: skip
IN_MODEL = (  # as models of transformers compute it, under a DDP that wraps what they return
    "ddp = DDP(model)\n",
    "class WithLoss(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.model = model\n\n"
    "    def forward(self, images, targets):\n"
    "        return nn.functional.cross_entropy(self.model(images), targets)\n\n\n"
    "ddp = DDP(WithLoss(), find_unused_parameters=True)\n",
    LOSS, MASKED.replace(LOSS, "        loss = ddp(images, targets)\n"),
)  # fmt: skip
BY_HAND = (
    LOSS,
    "        counts = (images[:, 0] < 0).float()\n"
    "        losses = nn.functional.cross_entropy(ddp(images), targets, reduction='none')\n"
    "        loss = (losses * counts).sum() / counts.sum() + 0.1 * losses.mean()\n",
)
IN_CHECKPOINT = (
    LOSS,
    MASKED.replace("cross_entropy(ddp", "cross_entropy, ddp").replace(
        "nn.functional.", "torch.utils.checkpoint.checkpoint(nn.functional."
    ).replace("(images), targets)", "(images), targets, use_reentrant=False)"),
    "import torch\n", "import torch\nimport torch.utils.checkpoint\n",
)  # fmt: skip
NOTED = {
    "unequal counts of a model's own loss": (
        IN_MODEL, "unequal_counts", "In half of 15 steps it is 1.",
    ),
    "unequal counts of a mask": (BY_HAND, "unequal_counts", "In half of 15 steps it is 1."),
    "no zero_grad": ((ZERO, ""), "left_gradients", "in 14 of 15 steps"),
    "accumulation without zero_grad": ((*ACCUMULATED, ZERO, ""), "left_gradients", "in 6 of 7"),
    "a bucket view without zero_grad": (
        (ZERO, "", "DDP(model)", "DDP(model, gradient_as_bucket_view=True)"),
        "left_gradients", "of 15 steps",
    ),
    "eval mode since the first evaluation": (
        EVAL, "eval_mode", "steps 6 to 15 are trained without dropout",
    ),
    "a layer that never moves": (HALF, "untrained", "0.weight never moved in 8 steps"),
}  # fmt: skip
SILENT = {
    "accumulation": (
        *ACCUMULATED[:-1], ACCUMULATED[-1] + EVERY_SECOND, ZERO, "",
    ),
    "zeros in place of None": (ZERO, "        optimizer.zero_grad(set_to_none=False)\n"),
    "zeros in a bucket view": (
        "DDP(model)", "DDP(model, gradient_as_bucket_view=True)",
        ZERO, "        optimizer.zero_grad(set_to_none=False)\n",
    ),
    "emptied by hand": (
        ZERO, "        for p in model.parameters():\n            p.grad = None\n",
    ),
    "gradients of an attack": ADVERSARIAL,
    "a GAN": GAN,
    "gradients that are set": BY_GRAD,
    "eval mode from the start": ("    model.train()\n", "    model.eval()\n"),
    "frozen statistics": ("    model.train()\n", "    model.train()\n    model[1].eval()\n"),
    "eval mode without a difference": (
        *EVAL, "nn.BatchNorm1d(16), nn.Dropout()", "nn.Tanh()",
    ),
    "eval mode to act": (  # and training mode to learn
        BACKWARD, "        model.eval()\n        model(images)\n        model.train()\n" + BACKWARD,
    ),
    "a frozen layer": ("ddp = DDP", "model[0].requires_grad_(False)\nddp = DDP"),
    "a layer of rate 0": (
        "SGD(ddp.parameters(),", "SGD([{'params': model[0].parameters(), 'lr': 0.0},\n"
        "    {'params': [*model[1].parameters(), *model[3].parameters()]}],",
    ),
    "a layer whose gradient is 0": ("(ddp(images)", "(ddp(0 * images)"),
    "small in bfloat16, and large enough": (*HALF[:-1], "lr=0.5"),
}  # fmt: skip


ALIKE_NOTED = {"accumulation without zero_grad", "a bucket view without zero_grad"}
ALIKE_SILENT = {
    "zeros in a bucket view", "emptied by hand", "frozen statistics", "eval mode from the start",
    "a layer whose gradient is 0", "small in bfloat16, and large enough",
}  # fmt: skip


@pytest.mark.parametrize("what", but(NOTED, ALIKE_NOTED), ids=lambda what: what.replace(" ", "-"))
def test_is_noted(what: str, crew: Crew, tmp_path: Path) -> None:
    words, name, said = NOTED[what]
    text = faults.changed(faults.RIGHT.read_text(), words)
    report = examined_text(crew, text, tmp_path)["en"]
    [found] = [found for found in report.findings if found.id != "no_sync"]  # of accumulation
    assert (found.id, found.severity) == (name, "note") and said in found.seen, found
    assert_all_ran(tmp_path, report)


@pytest.mark.parametrize("what", but(SILENT, ALIKE_SILENT), ids=lambda what: what.replace(" ", "-"))
def test_is_silent(what: str, crew: Crew, tmp_path: Path) -> None:
    text = faults.changed(faults.RIGHT.read_text(), SILENT[what])
    report = examined_text(crew, text, tmp_path)["en"]
    ids = {"left_gradients", "eval_mode", "untrained"}
    assert not ids & {found.id for found in report.findings}, report.findings
    assert ids <= set(report.checked), report.not_checked
    assert_all_ran(tmp_path, report)


def test_a_count_that_a_checkpoint_would_make(crew: Crew, tmp_path: Path) -> None:
    """To read it would compute the loss once more: it is not read, and the verdict says so."""
    text = faults.changed(faults.RIGHT.read_text(), IN_CHECKPOINT)
    report = examined_text(crew, text, tmp_path)["en"]
    assert report.findings == [] and "a checkpoint" in report.not_checked["unequal_counts"]
    assert_all_ran(tmp_path, report)
