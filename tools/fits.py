"""Will it fit? The bytes that a rank needs to train a model: without a GPU, and without the memory.

    python tools/fits.py 09_language_model/main.py --width 2048 --layers 22 --heads 16 \\
        --context 4096 --batch-size 16 --bf16 --vocabulary 50304 --memory 24 80
    python tools/fits.py my_code.py:example --memory 24

09's main.py takes its own flags, and so does what transformers.diff makes of it. A function (also
package.module:example) takes nothing and returns a model and the batch of one rank: (model, batch),
where model(batch), or model(**batch) of a dictionary, is a loss, has one as `.loss`, or may stand
for one; or (model, batch, loss), where loss(model, batch) is it. The model makes its step with fake
tensors: shapes, no numbers.

Counted is every storage that lives at some moment of forward and backward, with the kernels of a
CPU, and which of them autograd keeps. What DDP and FSDP2 divide, copy and gather is arithmetic, and
adds up the worst moments of each. Not seen is what a kernel takes inside itself; those of a GPU may
keep less (RMSNorm in one) or more. For CUDA's context, NCCL, workspaces and fragmentation 1 GB and
a tenth of the memory stay free. That is an assumption; so is an optimizer as torch has it on GPUs
(foreach): a step takes one more copy of the weights (docs.pytorch.org/docs/stable/optim.html).
"""

import argparse
import importlib
import importlib.util
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode  # documented; it has no public path
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

ROOT = Path(__file__).resolve().parents[1]
FEW, MANY = (1, 2, 4, 8), (16, 32, 64)  # ranks that are tried
KINDS = ("activations", "kept by the loss", "more in backward")  # of a Step
STATES = {"adamw": 2, "sgd": 1}  # numbers that are kept for each weight; SGD's are its momentum
Loss = Callable[[nn.Module], Tensor]


def fail(message: str) -> NoReturn:
    raise SystemExit(f"error: {message}")


class Step(NamedTuple):
    """Bytes: what autograd keeps when the model has returned, what the loss keeps beside it, and
    how much more there is at the worst moment."""

    activations: int
    loss: int
    more: int


# ---- what is trained ----
class Work:
    """A function of the user's: the same step on any number of ranks."""

    def __init__(self, function: Callable) -> None:
        self.function = function

    def share(self, ranks: int, divided: bool) -> tuple[int, tuple]:
        """Among how many ranks a weight is divided, and what a rank's step depends on."""
        return ranks if divided else 1, ()

    def build(self, key: tuple = ()) -> tuple[nn.Module, Loss]:
        found = self.function()
        whole = isinstance(found, tuple) and len(found) in (2, 3)
        if not whole or not isinstance(found[0], nn.Module):
            fail(f"returned {type(found).__name__}, not (model, batch) or (model, batch, loss)")
        loss = found[2] if len(found) == 3 else plain_loss
        return found[0], lambda model: loss(model, found[1])

    def steps(self, key: tuple, count: Callable) -> tuple[Step, Step]:
        """Without and with recomputation, as `count` does it."""
        return count(key)


def plain_loss(model: nn.Module, batch: Any) -> Tensor:
    found = model(**batch) if isinstance(batch, Mapping) else model(batch)
    found = getattr(found, "loss", found)
    if not isinstance(found, Tensor):
        fail(f"the model returned {type(found).__name__}: return (model, batch, loss)")
    return found.float().mean()


class Chapter(Work):
    """09: its own parser, checks, model and loss."""

    def __init__(self, path: str, argv: list[str], vocabulary: int | None) -> None:
        self.module = load(path)
        if not hasattr(self.module, "losses"):
            fail(f"{path} is not 09_language_model/main.py: name a function, {path}:FUNCTION")
        given = any(word.split("=")[0] in ("--data", "--synthetic") for word in argv)
        self.args = self.module.build_parser().parse_args([*argv, *["--synthetic"] * (not given)])
        if self.args.tensor > 1:
            fail("--tensor is not counted here: leave it out, and see what --shard needs")
        self.layers = getattr(self.args, "layers", 0)  # 0: a folder of transformers says it
        if self.args.sequence > 1 and not self.layers:
            fail("--sequence is counted for 09's own model alone: leave it out")
        self.vocabulary = vocabulary or 1
        if self.layers and not vocabulary:
            self.vocabulary = self.module.build_coder(self.args).padded

    def share(self, ranks: int, divided: bool) -> tuple[int, tuple]:
        args = argparse.Namespace(**vars(self.args))
        if not divided:  # a whole model each
            args.replicas, args.shard, args.sequence = ranks, 1, 1
        sides = self.module.check_flags(args, ranks)
        micro = args.batch_size // (sides.replicas * sides.shard) // args.accumulate
        # In attention a rank of --sequence has all places, and as many fewer heads.
        return sides.shard * sides.sequence, (micro, args.context // sides.sequence)

    def build(self, key: tuple = (1, 1), layers: int = 0) -> tuple[nn.Module, Loss]:
        micro, places = key
        args = argparse.Namespace(**vars(self.args) | {"layers": layers or self.layers})
        windows = torch.zeros(micro, places + 1, dtype=torch.long)
        losses = partial(self.module.losses, windows=windows, places=torch.arange(places))
        return self.module.build_model(args, self.vocabulary), lambda model: losses(model).mean()

    def steps(self, key: tuple, count: Callable) -> tuple[Step, Step]:
        """Blocks are all alike: of two and of three the others follow."""
        if self.layers <= 3:
            return count(key)
        pairs, left = zip(count(key, 2), count(key, 3), strict=True), self.layers - 3
        return tuple(
            Step(*(b + (b - a) * left for a, b in zip(*pair, strict=True))) for pair in pairs
        )


def load(name: str) -> ModuleType:
    """A module, by its name or by the path of its file."""
    try:
        sys.path.insert(0, str(Path(name).resolve().parent) if name.endswith(".py") else "")
        if not name.endswith(".py"):
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(f"_fits_{Path(name).parent.name}", name)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except Exception as error:  # whatever the code raises
        fail(f"cannot import {name}: {error!r:.200}")


# ---- one step, counted ----
class Live(TorchDispatchMode):
    """Storages that live, but for those of `known` tensors, and which of them autograd keeps."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known = {address(tensor) for tensor in known}
        self.sizes: dict[int, tuple[int, weakref.ref]] = {}
        self.saved: set[int] = set()
        self.now = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.see(leaf)
        return out

    def see(self, tensor: Tensor) -> None:
        number, storage = address(tensor), tensor.untyped_storage()
        if number not in self.known and number not in self.sizes:
            gone = weakref.ref(storage, lambda _: self.forget(number))
            self.sizes[number] = storage.nbytes(), gone
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)

    def forget(self, number: int) -> None:
        self.now -= self.sizes.pop(number)[0]
        self.saved.discard(number)

    def keep(self, tensor: Tensor) -> Tensor:
        if address(tensor) not in self.known:
            self.see(tensor)
            self.saved.add(address(tensor))
        return tensor

    def kept(self) -> int:
        return sum(self.sizes[number][0] for number in self.saved)


def address(tensor: Tensor) -> int:
    """The same for all views of a storage."""
    return tensor.untyped_storage()._cdata


def count_step(model: nn.Module, loss: Loss, autocast: bool) -> Step:
    """A weight's gradient counts while it is made, no longer: where it stays, DDP or FSDP2 say."""
    live = Live([*model.parameters(), *model.buffers()])
    returned = [0]
    model.register_forward_hook(lambda *_: returned.append(live.kept()))
    for weight in model.parameters():
        if weight.requires_grad:
            weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    with live:
        with (
            saved_tensors_hooks(live.keep, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        ):
            found = loss(model)
        kept = live.kept()
        found.backward()
    return Step(returned[-1], kept - returned[-1], live.peak - kept)


def as_policy(model: nn.Module, units: list[nn.Module]) -> None:
    """Compute as under MixedPrecisionPolicy(bfloat16, float32, float32): weights are gathered in
    bfloat16, in which units get what they are given; the model returns float32."""

    def cast(dtype: torch.dtype, values: Any) -> Any:
        return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values)

    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple:
        return cast(torch.bfloat16, (args, kwargs))

    for weight in model.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    for unit in [*units, model]:
        unit.register_forward_pre_hook(before, with_kwargs=True)
    model.register_forward_hook(lambda _, args, output: cast(torch.float32, output))


# ---- by the rules of DDP and FSDP2 ----
class Counter:
    """What ranks of some work need."""

    def __init__(self, work: Work, optimizer: str = "adamw", bf16: bool = False) -> None:
        self.work, self.numbers, self.bf16 = work, STATES[optimizer], bf16
        self.blocks = load(str(ROOT / "08_fsdp2/main.py")).blocks  # its units; 09's are the same
        self.steps = cache(lambda key, policy: work.steps(key, partial(self.count, policy)))
        with FakeTensorMode(allow_non_fake_inputs=True):
            self.model = work.build()[0]
        self.units = self.blocks(self.model)

    def count(self, policy: bool, key: tuple, *more: Any) -> tuple[Step, Step]:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, loss = self.work.build(key, *more)
            units = self.blocks(model.train())
            if policy:
                as_policy(model, units)
            call = partial(count_step, model, loss, self.bf16 and not policy)
            plain = call()
            for unit in units:
                unit.forward = partial(checkpoint, unit.forward, use_reentrant=False)
            return plain, call()

    def rank(self, ranks: int, divided: bool) -> dict[str, int]:
        """Bytes of the first of so many, by kind, under FSDP2 if divided, else under DDP."""
        parts, key = self.work.share(ranks, divided)
        weights = list(self.model.parameters())
        trained = part(parts, *(weight for weight in weights if weight.requires_grad))
        gathered = gradients = 0
        if divided:
            units = [self.gathered(unit) for unit in self.units]
            rest, largest = self.gathered(self.model) - sum(units), max([*units, 0])
            # The root has what is in no unit, and is whole from forward to backward. Beside it one
            # unit computes while the next one comes. Gradients are copied, to float32, to be sent.
            gathered = rest + 2 * largest
            gradients = rest + largest + max(rest, largest) * (2 if self.bf16 else 1)
        found = {
            "weights": part(parts, *weights),
            "gradients": trained,
            "state of the optimizer": self.numbers * trained,
            "buffers": part(1, *self.model.buffers()),
        }
        still = sum(found.values())
        found |= {"gathered weights": gathered, "their gradients": gradients}
        steps = self.steps(key, divided and self.bf16)
        for how, step in zip(("", "recomputed: "), steps, strict=True):
            found |= {how + name: size for name, size in zip(KINDS, step, strict=True)}
            # When the optimizer steps, and copies the weights, nothing is left of backward.
            moving = max(gathered + gradients + sum(step), found["weights"])
            found[f"{how}TOGETHER"] = still + moving
        return found

    def gathered(self, module: nn.Module) -> int:
        """Bytes of all its weights, as they are gathered."""
        return sum(w.numel() * (2 if self.bf16 else w.element_size()) for w in module.parameters())


def part(parts: int, *tensors: Tensor) -> int:
    """Bytes of the first of so many parts along the first side: no other part is larger."""
    rows = [(tensor.shape[0] if tensor.dim() else 1, tensor.nbytes) for tensor in tensors]
    return sum(math.ceil(count / parts) * size // max(1, count) for count, size in rows)


def room(memory: float) -> float:
    """Bytes that tensors may take of a GPU of so many GB."""
    return memory * 0.9e9 - 1e9


# ---- what is said ----
def allowed(work: Work, counts: Iterable[int], divided: bool) -> tuple[list[int], list[str]]:
    """The numbers of ranks that go with a chapter's flags, and what is said of the others."""
    found, refused = [], []
    for count in counts:
        try:
            work.share(count, divided)
        except SystemExit as error:
            way = "FSDP2" if divided else "DDP"
            refused.append(f"{way} on {count}: {str(error).removeprefix('error: ')}")
        else:
            found.append(count)
    return found, refused


def what_fits(table: dict[int, dict], way: str, memory: float) -> list[str]:
    found = []
    for how in ("", "recomputed: "):
        fit = [str(n) for n, rank in table.items() if rank[f"{how}TOGETHER"] <= room(memory)]
        found += [f"{how}{way} on {', '.join(fit)}"] if fit else []
    return found


def tell(counter: Counter, counts: list[int] | None, memories: list[float]) -> list[str]:
    size, units = sum(w.numel() for w in counter.model.parameters()), len(counter.units)
    lines = [f"{size / 1e6:,.1f} million parameters, {units} units; GB a rank:"]
    fitting: dict[float, list[str]] = {memory: [] for memory in memories}
    for way in ("DDP", "FSDP2"):
        divided = way == "FSDP2"
        ranks, refused = allowed(counter.work, counts or FEW, divided)
        table = {count: counter.rank(count, divided) for count in ranks}
        if not counts:
            # More, if FSDP2, which divides all, needs them; and nothing of what nobody asked for.
            few = divided and not all(what_fits(table, way, memory) for memory in memories)
            more, others = allowed(counter.work, MANY if few or not ranks else (), divided)
            table |= {count: counter.rank(count, divided) for count in more}
            refused = [] if table else others
        if not table:
            fail(refused[-1])
        lines += ["", f"{f'{way}, ranks':<30}" + "".join(f"{count:>10}" for count in table)]
        for name in table[max(table)]:
            if any(rank[name] for rank in table.values()):
                cells = [f"{rank[name] / 1e9:>10.3f}" for rank in table.values()]
                lines.append(f"{name:<30}{''.join(cells)}")
        lines += refused
        for memory in memories:
            fitting[memory] += what_fits(table, way, memory)
    lines += ["", "DDP without gradient_as_bucket_view=True has its gradients twice."]
    for memory, found in fitting.items():
        free = f"of which {memory - room(memory) / 1e9:.1f} stay free (see --help)"
        lines.append(f"Into {memory:g} GB, {free}, fit: {'; '.join(found) or 'none of these'}.")
    return lines


def parse(argv: list[str] | None) -> tuple[argparse.Namespace, Work]:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form, allow_abbrev=False)
    add = parser.add_argument
    add("target", help="09_language_model/main.py, with its flags, or my_code.py:function")
    add("--memory", type=float, nargs="+", default=[], metavar="GB", help="of a GPU: what fits")
    tried = "else 1, 2, 4 and 8, where the flags divide; and to 64, if none of these fits"
    add("--ranks", type=int, nargs="+", metavar="N", help=tried)
    add("--bf16", action="store_true", help="FSDP2: a policy, as 09 has it; DDP: autocast")
    add("--optimizer", choices=STATES, default="adamw", help="sgd: with momentum")
    add("--vocabulary", type=int, metavar="N", help="of 09, in place of its --tokenizer")
    args, rest = parser.parse_known_args(argv)
    rows = {"--memory": args.memory, "--ranks": args.ranks or []}
    rows["--vocabulary"] = [args.vocabulary] if args.vocabulary is not None else []
    for flag, values in rows.items():
        if not all(0 < value < math.inf for value in values):
            fail(f"{flag} {' '.join(map(str, values))} is out of range: use numbers above 0")
    path, _, name = args.target.rpartition(":")
    if path and rest:
        fail(f"{rest[0]} is no flag here: those of a chapter go with its main.py alone")
    if not path:
        return args, Chapter(args.target, rest, args.vocabulary)
    function = getattr(load(path), name, None)
    if not callable(function):
        fail(f"{path} has no function {name}")
    return args, Work(function)


def main(argv: list[str] | None = None) -> None:
    args, work = parse(argv)
    try:
        lines = tell(Counter(work, args.optimizer, args.bf16), args.ranks, args.memory)
    except Exception as error:  # whatever the model raises
        told = f"{args.target} does not train on fake tensors, which have no numbers"
        fail(f"{told}: {error!r:.200}")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
