"""Right programs of other kinds than one script under DDP, each written as its project would: the
doctor has nothing to say to any. Beside them faulty ones that are much alike, which it names."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from crew import Crew
from examined import assert_all_ran, examined_text
from harness import ROOT
from tiers import table

from ddp_doctor.report import Report

sys.path.append(str(ROOT / "docs/examples/doctor"))
import faults

FOLDER = Path(__file__).parent / "right"
SEED = r"manual_seed\((?:[^()]|\([^()]*\))*rank(?:[^()]|\([^()]*\))*\)"  # one by rank
GROUP_OF_ONE = (
    "dp_groups = [dist.new_group([n]) for n in range(CP)]\n"
    "model = nn.parallel.DistributedDataParallel(\n"
    "    Model(cp_groups[dp_rank]), process_group=dp_groups[cp_rank]\n"
    ")\n"
)
WHOLE = (
    "    optimizer = torch", "    rank = dist.get_rank()\n    model.append(nn.Linear(4, 4))\n"
    "    optimizer = torch",
)  # fmt: skip
AVERAGED = """\
            for p in model[-1].parameters():
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            optimizer.step()
"""
CLIPPED = """\
            gradients = [p.grad for p in model.parameters()]
            parts = [g.to_local() for g in gradients if hasattr(g, "to_local")]
            squares = sum(part.square().sum() for part in parts)
            dist.all_reduce(squares, group=tp.get_group())
            squares += sum(g.square().sum() for g in gradients if not hasattr(g, "to_local"))
            for gradient in gradients:
                gradient *= min(1.0, 0.1 / squares.sqrt().item())
            optimizer.step()
"""
BY_TENSORS = (
    "class DividedAdam:\n", "class OfTensors:\n"
    "    def __init__(self, model, lr):\n"
    "        self.model, world_size = model, dist.get_world_size()\n"
    "        self.tensors = list(model.parameters())\n"
    "        own = self.tensors[dist.get_rank() :: world_size]\n"
    "        self.adam = torch.optim.Adam(own, lr=lr)\n\n"
    "    def step(self):\n"
    "        tensors, world_size = self.tensors, dist.get_world_size()\n"
    "        self.adam.step()\n"
    "        for n, tensor in enumerate(tensors):\n"
    "            dist.broadcast(tensor.data, n % world_size)\n"
    "        self.model.zero_grad()\n\n\n"
    "class DividedAdam:\n",
    "    optimizer = DividedAdam(model, lr=1e-2)\n",
    "    model = nn.parallel.DistributedDataParallel(model)\n"
    "    optimizer = OfTensors(model, lr=1e-2)\n",
    "model.state_dict()", "model.module.state_dict()",
)  # fmt: skip
SKIPS = (
    "super().__len__() - self.start", "super().__len__()", "super().__iter__())[self.start :]",
    "super().__iter__())", "        for inputs, targets in loader:\n",
    "        skip = done\n        for n, (inputs, targets) in enumerate(loader):\n"
    "            if n < skip:\n                continue\n",
)  # fmt: skip
# Programs that are another one but for some words: its name; what stands there, what stands there
# instead, and so on.
VARIANTS = {
    # A seed that all ranks share, so that their parts begin alike.
    "divided_classes_of_one_seed": ("divided_classes", "torch.manual_seed(1 + rank)\n    ", ""),
    # Expert weights begin equal, as the seed is: other tokens make them differ.
    "experts_of_one_seed": ("expert_parallel", "        torch.manual_seed(100 + rank)\n", ""),
    # The checkpoint was made at the end of an epoch: nothing is left of it.
    "resume_at_end": (
        "resume_in_epoch",
        "super().__len__() - self.start", "super().__len__()", "stop_after=11", "stop_after=8",
    ),
    # The order of the epoch is drawn again, and what had been trained on is taken and skipped; and
    # the same with the objects of before, which get their state back.
    "resume_that_skips": ("resume_in_epoch", *SKIPS),
    "resume_in_place": (
        "resume_in_epoch", *SKIPS,
        "    first, done, steps = 0, 0, 0\n",
        "    model, optimizer = globals().setdefault('parts', (model, optimizer))\n"
        "    first, done, steps = 0, 0, 0\n",
    ),
    # Gathered without autograd; each rank puts its own part back.
    "own_part": (
        "simclr",
        "    everyone = torch.cat(dist_nn.all_gather(mine.contiguous()))\n",
        "    parts = [torch.zeros_like(mine) for _ in range(dist.get_world_size())]\n"
        "    dist.all_gather(parts, mine.contiguous())\n"
        "    parts[dist.get_rank()] = mine\n"
        "    everyone = torch.cat(parts)\n",
    ),
    # Its sampler is a list, which does not say of what.
    "users_of_a_list": (
        "loader_of_users",
        "DistributedSampler(users, shuffle=False)",
        "users[dist.get_rank() :: dist.get_world_size()]",
    ),
    # All batches of an epoch are fetched before its first step.
    "prefetched_epoch": (
        "prefetch_thread",
        "depth=3", "depth=99",
        "threading.Thread(target=self.fill, args=(batches,), daemon=True).start()",
        "self.fill(batches)",
    ),
    # Batches are asked for under no_grad, as by a timer around it.
    "batches_under_no_grad": (
        "scheduler_by_design",
        "        for inputs, targets in loader:\n",
        "        batches = iter(loader)\n"
        "        for _ in range(len(loader)):\n"
        "            with torch.no_grad():\n"
        "                inputs, targets = next(batches)\n",
    ),
    # ZeRO steps an optimizer inside it, which has groups of parameters of its own.
    "zero_of_torch": (
        "scheduler_by_design",
        "optimizer = torch.optim.AdamW(model.parameters(), ",
        "from torch.distributed.optim import ZeroRedundancyOptimizer\n"
        "    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, ",
    ),
    # A library writes the files, and joins them.
    "results_of_a_library": (
        "results_by_files", "\n\ndef main():",
        "\n\ncode = collect_results.__code__\n"
        "collect_results.__code__ = code.replace(co_filename='/site-packages/results.py')\n"
        "\n\ndef main():",
    ),
    # DDP around it, over the data-parallel group, in which each rank is alone.
    "group_of_one": ("context_parallel", "model = Model(cp_groups[dp_rank])\n", GROUP_OF_ONE),
    # Workers of an endless pass ask for the next order before set_epoch is called.
    "wrong_infinite_loader": (
        "infinite_loader",
        "CountingSampler(len(dataset), rank, world_size)",
        "torch.utils.data.DistributedSampler(dataset)",
        "for _ in range(4):\n", "for epoch in range(4):\n        sampler.set_epoch(epoch)\n",
    ),
    # An augmentation whose weights are drawn anew in each step: they may differ.
    "fresh_mixing": (
        "normalizer",
        "normalizer = N", "mix = nn.Linear(WIDTH, WIDTH).requires_grad_(False)\nnormalizer = N",
        "        observed = normalizer(rank + 2 * torch.randn(8, WIDTH))\n",
        "        nn.init.orthogonal_(mix.weight)\n"
        "        observed = normalizer(mix(rank + 2 * torch.randn(8, WIDTH)))\n",
    ),
    # Frozen layers of the model, made under another seed on each rank.
    "wrong_frozen": (
        "normalizer",
        "stem = nn", "torch.manual_seed(rank)\nstem = nn",
        "predictor = nn", "torch.manual_seed(0)\npredictor = nn",
    ),
    # A whole module of that kind, beside the model.
    "wrong_beside": (
        "normalizer",
        "target = nn", "torch.manual_seed(rank)\ntarget = nn",
        "stem = nn", "torch.manual_seed(0)\nstem = nn",
    ),
    # One module holds both, and the average gets equal buffers right before it is evaluated.
    "average_in_a_task": (
        "average_of_weights",
        "nn.LayerNorm", "nn.BatchNorm1d",
        "    optimizer = ", "    task = nn.ModuleDict({'ddp': ddp, 'average': ema.model})\n"
        "    optimizer = ",
        "        accuracy = ", "        accuracy_of(task['ddp'].eval(), val_loader)\n"
        "        ddp.train()\n"
        "        for buffer in ema.model.buffers():\n"
        "            dist.broadcast(buffer, 0)\n"
        "        accuracy = ",
    ),
    # An average that begins with the weights of each rank, before DDP has made them equal.
    "wrong_average": (
        "average_of_weights", "    model = nn", "    torch.manual_seed(rank)\n    model = nn",
    ),
    # A layer that is whole on all ranks beside parts of others. A script averages its gradients.
    "whole_beside_parts": (
        "sharded_checkpoint", *WHOLE, "            optimizer.step()\n", AVERAGED,
    ),
    # The same, and nobody averages them: as LoRA that is added to a model after fully_shard.
    "wrong_whole_beside_parts": ("sharded_checkpoint", *WHOLE),
    "wrong_whole_of_few": ("sharded_checkpoint", *WHOLE, "AdamW(model", "AdamW(model[-1]"),
    # It is a layer of the rank's own, with weights or with samples of its own: experts.
    "own_beside_parts": (
        "sharded_checkpoint", *WHOLE,
        "    model.append(", "    torch.manual_seed(rank)\n    model.append(",
    ),
    "experts_beside_parts": (
        "sharded_checkpoint", *WHOLE,
        "            nn.functional.cross", "            mine = torch.empty_like(inputs)\n"
        "            dist.all_to_all_single(mine, inputs)\n            nn.functional.cross",
    ),
    # All ranks have all stages, and each optimizer one of them.
    "stages_of_one_model": (
        "pipeline_by_hand", "    stages = (\n", "    stages = nn.ModuleList((\n",
        "nn.Linear(HIDDEN, 3)),\n    )\n", "nn.Linear(HIDDEN, 3)),\n    ))\n",
    ),
    # The same ZeRO by whole tensors, under DDP, each sent by the rank that has stepped it.
    "zero_by_tensors": ("zero_by_hand", *BY_TENSORS),
    # Nobody sends one of them; or a rank keeps its share to itself.
    "wrong_zero_by_tensors": (
        "zero_by_hand", *BY_TENSORS, "enumerate(tensors)", "enumerate(tensors[:-1])",
    ),
    "wrong_zero_by_hand": (
        "zero_by_hand", "        dist.all_gather(parts, self.part.data)\n",
        "        parts = list(self.flat.chunk(self.world_size))\n"
        "        parts[self.rank] = self.part.data\n",
        "        self.part = ", "        self.flat = flat\n        self.part = ",
    ),
    # The norm of a model that is cut over ranks counts what is not cut once.
    "tensor_parallel_clipped": ("tensor_parallel", "            optimizer.step()\n", CLIPPED),
    "wrong_tensor_parallel_clipped": (
        "tensor_parallel", "            optimizer.step()\n",
        CLIPPED.replace("            dist.all_reduce(squares, group=tp.get_group())\n", ""),
    ),
    # Each rank shuffles all images for itself: their number of objects does not hide it.
    "wrong_detection": ("detection", "sampler=sampler)", "shuffle=True)"),
    # The same under contrastive training, whose ranks gather the features of all samples.
    "wrong_contrast": ("simclr", "sampler=sampler", "shuffle=True"),
    # Halves of each text, which ranks need not tell each other: words by themselves. And all take
    # the same half; or two places cut the text, which no rank can see.
    "parts_of_texts": ("sequence_halves", "Attention(), ", ""),
    "wrong_same_halves": (
        "sequence_halves", "Attention(), ", "", "tokens[:, :-1].chunk(world_size, dim=1)[rank]",
        "tokens[:, :-1].chunk(world_size, dim=1)[0]",
        "tokens[:, 1:].chunk(world_size, dim=1)[rank]",
        "tokens[:, 1:].chunk(world_size, dim=1)[0]",
    ),
    "texts_cut_twice": (
        "sequence_halves", "Attention(), ", "", "    for epoch in range(3):\n",
        "    for epoch in range(3):\n        part = slice(rank * 2, rank * 2 + 2)\n",
        "            loss = ", "            inputs, targets = inputs[:, part], targets[:, part]\n"
        "            loss = ",
    ),
    # All ranks take the same rays of the picture that they share.
    "wrong_same_rays": ("rays", "rays[rank::world_size]", "rays[: RAYS // world_size]"),
    # One rank leaves out a step: there its gradient is infinite.
    "local_sgd_scaled": (
        "local_sgd", "    dataset = Tensor", "    inputs[41] = 1e30\n    dataset = Tensor",
        "    step = 0\n", "    step, scaler = 0, torch.amp.GradScaler('cpu')\n",
        "            loss.backward()\n            optimizer.step()\n",
        "            scaler.scale(loss).backward()\n            scaler.step(optimizer)\n"
        "            scaler.update()\n",
    ),
    # A rank's own counter decides when weights are averaged: it waits at its first average.
    "wrong_own_counter": (
        "local_sgd", '"gloo"', '"gloo", timeout=__import__("datetime").timedelta(seconds=3)',
        "    average(model)  # equal from the start\n", "",
        "            step += 1\n", "            step += 1 + (rank == 1 and step == 0)\n"
        "            dist.all_reduce(loss.detach().clone())\n",
    ),
    # A step that only makes the optimizer's state, for a checkpoint to be read into.
    "made_state": (
        "sharded_checkpoint", "    for epoch in range(3):\n",
        "    for group in optimizer.param_groups:\n        group['lr'] = 0.0\n"
        "        for p in group['params']:\n            p.grad = torch.zeros_like(p)\n"
        "    optimizer.step()\n    for group in optimizer.param_groups:\n"
        "        group['lr'] = 1e-2\n    for state in optimizer.state.values():\n"
        "        state['step'].zero_()\n    optimizer.zero_grad()\n    for epoch in range(3):\n",
    ),
    # Statistics that nobody puts together.
    "wrong_statistics": ("normalizer", "    normalizer.synchronize()\n", ""),
    # FSDP gathers weights, not samples.
    "wrong_fsdp_alike": (
        "sharded_checkpoint",
        "DistributedSampler(dataset)", "DistributedSampler(dataset, 1, 0)",
    ),
    # Rank 0 tells the results of its own share as those of the test.
    "wrong_own_share": (
        "results_by_files",
        "collect_results(part, len(test_set))", "part if dist.get_rank() == 0 else None",
    ),
    # After an evaluation ranks vote whether to stop, and nothing adds up their scores.
    "wrong_vote": (
        "early_stop",
        "    dist.all_reduce(totals)\n", "",
        "        if best and rank == 0:\n",
        "        vote = torch.tensor(float(stop))\n"
        "        dist.all_reduce(vote, op=dist.ReduceOp.MAX)\n"
        "        stop = vote.item() > 0\n"
        "        if best and rank == 0:\n",
    ),
    # Layers are cut over pairs of ranks, and both pairs train on the same samples.
    "wrong_pairs_alike": (
        "tensor_parallel_in_ddp", "num_replicas=world_size // TP, rank=dp_rank",
        "num_replicas=1, rank=0",
    ),
}  # fmt: skip
# Of those that need more than two.
RANKS = {"pipeline_of_three": 3, "tensor_and_data_parallel": 4, "tensor_parallel_in_ddp": 4}
WRONG = {
    "wrong_contrast": "overlapping_samples",
    "wrong_detection": "overlapping_samples",
    "wrong_fsdp_alike": "same_samples",
    "wrong_infinite_loader": "same_order",
    "wrong_local_rank": "same_samples",
    "wrong_no_sampler": "same_samples",
    "wrong_own_share": "wrong_evaluation",
    "wrong_own_counter": "collective_order",
    "wrong_own_stop": "collective_order",
    "wrong_average": "drifting_weights",
    "wrong_beside": "drifting_weights",
    "wrong_frozen": "drifting_weights",
    "wrong_statistics": "unequal_buffers",
    "wrong_pairs_alike": "same_samples",
    "wrong_same_halves": "same_samples",
    "wrong_same_rays": "same_samples",
    "wrong_tensor_parallel_clipped": "clipped",
    "wrong_zero_by_hand": "drifting_weights",
    "wrong_zero_by_tensors": "drifting_weights",
    "wrong_whole_beside_parts": "drifting_weights",
    "wrong_whole_of_few": "drifting_weights",
    "wrong_vote": "wrong_evaluation",
    "wrong_skip": "unequal_steps",
}
PROGRAMS = {path.stem for path in FOLDER.glob("*.py")} | VARIANTS.keys()
IN_VAIN = {"wrong_own_counter", "wrong_own_stop", "wrong_skip"}  # there a rank waits in vain
RIGHT = sorted(PROGRAMS - WRONG.keys())
CORE = """
    dataset_readers grpo results_by_files results_of_a_library scheduler_by_design
    tensor_parallel_by_hand expert_parallel views_added_up federated wrong_fsdp_alike wrong_own_stop
    wrong_contrast wrong_vote curriculum episodes divided_classes_of_one_seed last_pass
    experts_beside_parts fresh_mixing normalizer resume_at_end
    resume_that_skips resume_in_place users_of_a_list wrong_average wrong_statistics
    wrong_zero_by_tensors rays parts_of_texts wrong_same_rays wrong_same_halves local_sgd_scaled
    made_state two_models wrong_own_counter
""".split()
# What must be checked in them, and what must not: to be silent would be no proof.
CHECKED = {
    # Its second backward pass shows that it trains on them.
    "batches_under_no_grad": ("same_samples unequal_steps equal_randomness", "wrong_evaluation"),
    "tensor_parallel_clipped": ("untrained", "clipped"),
    # Whatever its attributes hold, such as functions by their names.
    "dataset_readers": ("overlapping_samples unequal_targets", ""),
    "detection": ("overlapping_samples wrong_evaluation", ""),
    # Nobody can tell whether all of a fold was evaluated, and each sample once.
    "folds": ("", "wrong_evaluation"),
    # The model of each rank is given another part of the samples that all have.
    **dict.fromkeys(["rays", "parts_of_texts", "texts_cut_twice"], ("", "same_samples")),
    # It only makes a state: the first step of the script is another one.
    "made_state": ("equal_randomness", ""),
    # A rank's own part is put back: nobody can tell whether the rest of its gradient is missing.
    "own_part": ("", "lost_gradient"),
    # Its samples are made of the random numbers that come again.
    "generated_set": ("drifting_weights", "equal_randomness"),
    # Orders of epochs in one endless pass are compared; not shares, as samples come again.
    "infinite_loader": ("same_order", "overlapping_samples"),
    # The number of an optimizer that is gone is given to no other: its rate may be another one.
    "inner_loop": ("schedule", ""),
    # Its second step has learned from a batch that came before the first one.
    "prefetched_epoch": ("equal_randomness", ""),
    # No backward pass that comes before training trains on the validation set.
    "sanity_check": ("wrong_evaluation", ""),
    # Who has joined calls other collectives than the rest, or the same ones from elsewhere.
    "unequal_joined": ("lost_gradient", "collective_order"),
    # Each rank's optimizer has a share, and the whole model is looked at; of a gradient, another
    # rank may have the average alone.
    "zero_by_hand": ("drifting_weights", "no_averaging unequal_gradients"),
    # The scheduler holds the outer optimizer.
    "zero_of_torch": ("schedule", ""),
}

# Notes, as right and wrong programs look alike here: they say what was seen, and when it is right.
NOTES = {
    "equal_stages": "no_averaging",
    "experts_of_one_seed": "no_averaging",
    "resume_at_end": "empty_epoch",
    "gathered_and_cut": "wrong_evaluation",
    "own_batch_sampler": "unequal_counts",  # batches of as many tokens, and means over samples
    "grpo": "same_samples",
    "wrong_average": "drifting_weights",
    "wrong_beside": "drifting_weights",
    "wrong_contrast": "overlapping_samples",
    "wrong_statistics": "unequal_buffers",
    "wrong_vote": "wrong_evaluation",
}


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    with Crew(max(RANKS.values())) as members:
        yield members


def report_on(name: str, crew: Crew, folder: Path) -> Report:
    whole, *words = VARIANTS.get(name, (name,))
    text = faults.changed((FOLDER / f"{whole}.py").read_text(), words)
    report = examined_text(crew, text, folder, world_size=RANKS.get(whole, 2))["en"]
    if name not in IN_VAIN:
        assert_all_ran(folder, report)
    return report


def by_severity(report: Report) -> tuple[set[str], set[str]]:
    """The ids of findings: those that are worse than a note, and notes."""
    notes = {found.id for found in report.findings if found.severity == "note"}
    return {found.id for found in report.findings} - notes, notes


@pytest.mark.right
@pytest.mark.parametrize("name", table(RIGHT, {*CORE, *CHECKED} - WRONG.keys()))
def test_nothing_to_say(name: str, crew: Crew, tmp_path: Path) -> None:
    report = report_on(name, crew, tmp_path)
    worse, notes = by_severity(report)
    assert not worse and notes <= {NOTES.get(name)}, report.findings
    checked, not_checked = CHECKED.get(name, ("", ""))
    assert set(checked.split()) <= set(report.checked)
    assert set(not_checked.split()) <= report.not_checked.keys()


@pytest.mark.parametrize("name", table(WRONG, [name for name in CORE if name in WRONG]))
def test_is_named(name: str, crew: Crew, tmp_path: Path) -> None:
    """This finding, and no other."""
    report = report_on(name, crew, tmp_path)
    worse, notes = by_severity(report)
    assert (notes if name in NOTES else worse) == {WRONG[name]}, report.findings
    assert not (worse if name in NOTES else notes), report.findings


# What is true of right programs whose ranks all have one seed: nothing, where no name is given.
OF_ONE_SEED = {
    **dict.fromkeys(["accumulation", "momentum_queue", "normalizer"], "equal_randomness"),
    **dict.fromkeys(["gan", "simclr", "teacher_and_center", "two_loaders"], "equal_randomness"),
    "expert_parallel": "no_averaging",
    "grpo": "same_samples",
    "own_rollouts": "same_samples",
}
SEEDED = [path.stem for path in FOLDER.glob("*.py") if re.search(SEED, path.read_text())]


@pytest.mark.proof
@pytest.mark.right
@pytest.mark.parametrize("name", SEEDED)
def test_one_seed(name: str, crew: Crew, tmp_path: Path) -> None:
    """Parts of a model that begin alike on all ranks are still its parts."""
    text = re.sub(SEED, "manual_seed(0)", (FOLDER / f"{name}.py").read_text())
    report = examined_text(crew, text, tmp_path, world_size=RANKS.get(name, 2))["en"]
    assert {found.id for found in report.findings} <= {OF_ONE_SEED.get(name)}, report.findings


def test_programs() -> None:
    """Each is right or in the table of wrong ones, and the tables name none that is not there."""
    for path in FOLDER.glob("*.py"):
        assert (path.stem in WRONG) == path.read_text().startswith('"""Wrong: '), path
    assert {*WRONG, *RANKS, *NOTES} <= PROGRAMS
