"""Is this distributed script right? Put before its launch line, it says what is wrong.

    python doctor.py torchrun --nproc-per-node 2 train.py --epochs 2
    python doctor.py --steps 50 python train_with_spawn.py
    python doctor.py --seconds 60 horovodrun -np 2 python train.py

The command really runs, and writes its files. A recorder in each of its Python
processes notes samples, gradients, weights, collectives and files, and changes
nothing: no collective, no random number, no order. When the command has ended,
the notes of all ranks are compared. Two epochs with an evaluation show most.

One file; needs Python 3.10 and the torch of the script (2.6 or newer).
Exit status: 1 for a wrong result or a hang ahead, 2 if the command could not be
run to its end, else 0. docs/en/doctor.md explains every finding.
"""

import argparse
import ast
import faulthandler
import functools
import gc
import hashlib
import json
import locale
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "DOCTOR_FOLDER"  # environment variable: where recorders write
MOST_CONTENTS = 100  # batches of a pass whose items are looked at
ALL_UNTIL = 20  # steps that are compared, each;
EVERY = 10  # after them, each tenth
GROUPS = 16  # of parameters: figures for each of them
IDLE = 20  # seconds without an event: then the stack is written down
STILL = 60  # seconds without an event: then a rank counts as waiting for ever
TOLERANCE = 1e-6  # relative: smaller differences come from the order of additions

# What Python runs at its start, alone in a folder that comes first in PYTHONPATH. It
# imports nothing of ours until the script has imported the module that we record.
SITECUSTOMIZE = """
import sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in {modules}:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:
            execute = spec.loader.exec_module
            def exec_module(module):
                execute(module)
                try:
                    attach(name)
                except Exception as error:
                    print(f"doctor: cannot record this process: {{error!r}}", file=sys.stderr)
            spec.loader.exec_module = exec_module
        return spec

def attach(name):
    if "_doctor" not in sys.modules:
        import importlib.util
        spec = importlib.util.spec_from_file_location("_doctor", {doctor!r})
        sys.modules["_doctor"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["_doctor"])
    sys.modules["_doctor"].attach(name)

sys.meta_path.insert(0, Finder())
rest = [path for path in sys.path if path != {folder!r}]
spec = PathFinder.find_spec("sitecustomize", rest)  # the machine's own
if spec and spec.loader:
    spec.loader.exec_module(sys.modules[__name__])
"""
HOOKED = ("torch", "horovod.torch")


# ---- the recorder, in each process of the script ----
class Recorder:
    """Writes events to this process's own file, a JSON line each, at once.

    A process that is killed has then written all that happened to it.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pid = self.file = self.stacks = None
        self.first = os.getpid()  # forks lack faulthandler's thread: they set no timer
        self.armed = 0.0  # when the timer of the stacks was set
        self.loaders = 0
        self.steps = 0
        self.before = None  # figures of gradients, until the step is done
        self.done = True  # a step() inside a step(), as Horovod has them, counts once
        self.models = []  # those that are trained
        self.waiting = deque()  # figures on their way from a GPU
        self.passes = 0
        self.joined = False  # the process group: its rank is known
        self.status = None  # what sys.exit was called with
        self.drawn = {}  # process -> batches that it has made
        self.states = None  # of random numbers, before a batch was made
        self.quiet = False  # while the recorder itself opens files
        self.active = True

    def event(self, what: str, /, **fields: object) -> None:
        if not self.active:
            return
        line = json.dumps({"e": what, "t": round(time.time(), 3), **fields})
        try:
            if self.pid != os.getpid():  # the first event, also of a forked process
                self.open_files()
            os.write(self.file, line.encode() + b"\n")
        except OSError:  # a full disk, too many open files
            self.active = False
            return

        if self.pid == self.first and time.monotonic() > self.armed + 1:
            self.armed = time.monotonic()
            faulthandler.dump_traceback_later(IDLE, file=self.stacks)

    def open_files(self) -> None:
        self.pid = os.getpid()
        base = f"{self.folder}/{socket.gethostname()}-{self.pid}-{time.time_ns()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.quiet = True
        self.file = os.open(f"{base}.jsonl", flags, 0o644)
        self.stacks = os.open(f"{base}.stacks", flags, 0o644)
        self.quiet = False

        self.event(
            "process", pid=self.pid, parent=os.getppid(), host=socket.gethostname(), argv=sys.argv
        )

    def rank(self, rank: int, world: int, group: str) -> None:
        """group: the name of the group of all ranks."""
        self.joined = True
        self.event("rank", rank=rank, world=world, group=group)

    def rank_of_torch(self) -> None:
        import torch.distributed as dist

        self.rank(dist.get_rank(), dist.get_world_size(), str(dist.group.WORLD.group_name))

    # -- data --
    def new_loader(self, loader: object) -> None:
        import torch

        if getattr(loader, "_doctor", (0, 0))[0] == os.getpid():
            return  # one from before a fork or a pickle is new to this process

        self.loaders += 1
        loader._doctor = (os.getpid(), self.loaders)

        iterable = isinstance(loader.dataset, torch.utils.data.IterableDataset)
        root = loader.dataset
        while isinstance(root, torch.utils.data.Subset):
            root = root.dataset
        sampler = getattr(loader, "sampler", None)
        self.event(
            "loader",
            id=self.loaders,
            at=user_line(),
            iterable=iterable,
            length=None if iterable else length_of(loader.dataset),
            root=None if iterable else length_of(root),
            fingerprint=fingerprint(root),
            subset=fingerprint(loader.dataset) if root is not loader.dataset else "",
            sampler=type(sampler).__name__,
            replacement=bool(getattr(sampler, "replacement", False)),
            batch_size=loader.batch_size,
            workers=loader.num_workers,
            accelerate="accelerate" in sys.modules,
        )

    def new_pass(self, iterator: object, loader: object) -> None:
        if not hasattr(iterator, "_base_seed"):
            return  # a loader of somebody's own
        self.new_loader(loader)

        self.passes += 1
        iterator._doctor_pass = self.passes
        iterator._doctor_batches = 0
        number = loader._doctor[1]
        self.event("pass", n=self.passes, loader=number, total=length_of(iterator))

    def batch(self, iterator: object, batch: object, waited: float) -> None:
        import torch

        if not hasattr(iterator, "_doctor_pass"):
            return
        iterator._doctor_batches += 1

        count = iterator._doctor_batches
        drawn = iterator.__dict__.get("_doctor_drawn")
        indices = drawn.popleft() if drawn else None
        grad = torch.is_grad_enabled()
        fields = {"n": iterator._doctor_pass, "wait": round(waited, 4), "grad": grad}
        if indices is not None and indices[:1] != [None]:
            fields["indices"] = to_root(iterator._dataset, indices)

        if count <= MOST_CONTENTS:
            fields["targets"], fields["items"] = contents(batch)
        if count <= 2:
            fields["random"] = generators()

        self.event("batch", **fields)
        if count == 3:  # a forward pass, which may broadcast them, lies behind it
            self.evaluated(iterator)

    def end_of_pass(self, iterator: object) -> None:
        if not hasattr(iterator, "_doctor_pass"):
            return
        if iterator._doctor_batches == 2:
            self.evaluated(iterator)
        self.event("end", n=iterator._doctor_pass)

    def evaluated(self, iterator: object) -> None:
        """BatchNorm's statistics, if this pass evaluates with them."""
        models = [model() for model in self.models] or [find_models(set())]
        found = []

        known = [model for model in models if model is not None]  # some models have no bool()
        for module in [part for model in known for part in model.modules()]:
            if getattr(module, "running_mean", None) is not None and not module.training:
                found += [module.running_mean, module.running_var]
        if found:
            self.figures("buffers", iterator._doctor_pass, found)

    def before_fetch(self) -> None:
        """Does making an item draw random numbers? Asked of two batches in each process."""
        self.drawn[os.getpid()] = self.drawn.get(os.getpid(), 0) + 1
        self.states = generators() if self.drawn[os.getpid()] <= 2 else None

    def after_fetch(self) -> None:
        if self.states is not None:
            after = generators()
            changed = [name for name, state in self.states.items() if state != after[name]]
            self.event("drew", states={name: self.states[name] for name in changed})

    # -- training --
    def before_step(self, optimizer: object, *_: object) -> None:
        if self.steps == 0 and self.done:
            self.first_step(optimizer)
        self.done = False
        if self.due() and not capturing():
            parameters = parameters_of(optimizer)
            gradients = [p.grad for p in parameters if p.grad is not None]
            self.before = figures_of(gradients)

    def after_step(self, optimizer: object, *_: object) -> None:
        if self.done:
            return
        self.done = True

        rates = [group.get("lr") for group in optimizer.param_groups]
        parameters = parameters_of(optimizer)
        self.steps += 1
        self.event(
            "step",
            n=self.steps,
            at=user_line(),
            rates=[rate for rate in rates if isinstance(rate, int | float)],
            without=sum(p.grad is None for p in parameters),
            random=generators() if self.steps <= 2 else {},
        )

        if self.before is not None:
            self.later("gradients", self.steps, self.before)
            self.figures("weights", self.steps, parameters)
        self.before = None

        self.drain(wait=False)
        if self.steps in (2, EVERY):
            self.devices(parameters)

    def due(self) -> bool:
        return self.steps < ALL_UNTIL or (self.steps + 1) % EVERY == 0

    def first_step(self, optimizer: object) -> None:
        import weakref

        import torch.distributed as dist

        if not self.joined and dist.is_available() and dist.is_initialized():
            self.rank_of_torch()

        parameters = parameters_of(optimizer)
        self.figures("weights", 0, parameters)
        model = find_models(set(map(id, parameters)))
        if model is None:
            return

        self.models.append(weakref.ref(model))
        zero = type(optimizer).__name__ == "ZeroRedundancyOptimizer"
        parts = any(hasattr(p, "to_local") for p in parameters)  # DTensors
        found = {
            "wrappers": ["sharded"] * (zero or parts),
            "unused": False,
            "group": None,
            "at": user_line(),
        }

        for module in model.modules():
            name = type(module).__name__
            if "FSDP" in name or "FullySharded" in name:
                found["wrappers"].append("sharded")
            if name in ("DistributedDataParallel", "DataParallel"):
                found["wrappers"].append(name)
            if name == "DistributedDataParallel" and hasattr(module, "process_group"):
                found["unused"] = bool(getattr(module, "find_unused_parameters", False))
                found["group"] = dist.get_process_group_ranks(module.process_group)

        found["sizes"] = [p.numel() for p in parameters]
        self.event("model", **found)

    def devices(self, parameters: list) -> None:
        import torch

        device = parameters[0].device
        if device.type != "cuda":
            return

        uuids = {
            n: str(getattr(torch.cuda.get_device_properties(n), "uuid", n))
            for n in range(torch.cuda.device_count())
        }
        used = [uuids[n] for n in uuids if torch.cuda.memory_reserved(n) > 0]
        self.event("device", own=uuids[device.index], used=used)

    # -- figures: computed on the device, read when they have come to the CPU --
    def figures(self, what: str, n: int, tensors: list) -> None:
        self.later(what, n, figures_of(tensors))

    def later(self, what: str, n: int, values: object) -> None:
        import torch

        done = None
        if values.device.type == "cuda":
            host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
            stream = torch.cuda.current_stream(values.device)
            values = host.copy_(values, non_blocking=True)
            done = torch.cuda.Event()
            done.record(stream)
        self.waiting.append((what, n, values, done))
        self.drain(wait=False)

    def drain(self, wait: bool) -> None:
        while self.waiting:
            what, n, values, done = self.waiting[0]
            limit = time.monotonic() + 5 * wait
            while done is not None and not done.query():
                if time.monotonic() > limit:
                    return  # not yet; at the end: a GPU that stands still
                time.sleep(0.01)
            self.waiting.popleft()
            self.event("figures", what=what, n=n, values=values.tolist())


def capturing() -> bool:
    """Whether a CUDA graph is being made, which must not contain what we would add."""
    import torch

    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def figures_of(tensors: list) -> object:
    """Sums of norms and of weighted samples, in groups: float64 (GROUPS, 2), on the device."""
    import torch

    device = tensors[0].device if tensors else "cpu"
    totals = torch.zeros(GROUPS, 2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for n, tensor in enumerate(tensors):
            values = tensor.detach()
            if hasattr(values, "to_local"):
                values = values.to_local()
            if values.is_sparse:
                values = values.coalesce().values()
            if not values.is_floating_point():
                values = values.float()

            norm = torch.linalg.vector_norm(values).double()
            sample = in_memory_order(values)
            sample = sample[:: max(1, sample.numel() // 64)].double()

            weights = torch.arange(1, len(sample) + 1, dtype=torch.float64, device=values.device)
            row = torch.stack([norm, (sample * weights).sum()])
            totals[n * GROUPS // len(tensors)] += row.to(device)
    return totals


def in_memory_order(values: object) -> object:
    """A dense tensor as one dimension without a copy, channels_last ones too."""
    dense = values.is_contiguous()
    if values.dim() == 4:
        import torch

        dense = dense or values.is_contiguous(memory_format=torch.channels_last)
    if not dense:
        return values.reshape(-1)
    return values.as_strided((values.numel(),), (1,))


def parameters_of(optimizer: object) -> list:
    return [p for group in optimizer.param_groups for p in group["params"]]


def find_models(parameters: set[int]) -> object:
    """The outermost module that holds one of these parameters (of any: the largest)."""
    import torch

    modules = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module._modules.values()}

    best = None
    most = 0
    for module in modules:
        if id(module) in inner:
            continue
        mine = list(module.parameters())
        if len(mine) > most and (not parameters or any(id(p) in parameters for p in mine)):
            best = module
            most = len(mine)
    return best


STANDARD = os.path.dirname(os.__file__)


def is_library(name: str) -> bool:
    """Whether a file of Python code is not the user's own."""
    if name.startswith(("<", STANDARD)) or name == __file__:
        return True
    return bool(re.search(r"/(site|dist)-packages/|/lib/python3\.\d+/", name))


def user_line() -> list | None:
    """File and line of the innermost call in the user's own code."""
    frame = sys._getframe(1)
    while frame and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return [frame.f_code.co_filename, frame.f_lineno] if frame else None


def length_of(dataset: object) -> int | None:
    with suppress(Exception):
        return len(dataset)
    return None


SEQUENCES = (list, tuple, range)


def fingerprint(dataset: object) -> str:
    """Of a dataset's own attributes: a hint whether indices mean the same on two ranks."""
    text = [type(dataset).__name__, str(length_of(dataset))]
    for name, value in sorted(getattr(dataset, "__dict__", {}).items()):
        if isinstance(value, str | int | float | bool):
            text.append(f"{name}={value!r}")
        elif isinstance(value, SEQUENCES) or type(value).__module__ in ("torch", "numpy"):
            with suppress(Exception):
                places = range(0, len(value), max(1, len(value) // 16))
                texts = [f"{value[place]!r:.200}" for place in places]
                text.append(f"{name}={len(value)} {texts}")
    plain = re.sub(r" at 0x[0-9a-f]+", "", "\n".join(text))
    return hashlib.md5(plain.encode()).hexdigest()


def to_root(dataset: object, indices: list) -> list:
    """Indices into the data set that Subsets (torch.utils.data) choose from."""
    import torch

    while isinstance(dataset, torch.utils.data.Subset):
        indices = [dataset.indices[index] for index in indices]
        dataset = dataset.dataset
    return [int(i) if hasattr(i, "__index__") else repr(i) for i in indices]


def contents(batch: object) -> tuple[list, list]:
    """A number for each item's target, and one for the rest of it; no copy of images."""
    import torch

    tensors = []
    left = [batch]
    while left:
        part = left.pop()
        if isinstance(part, torch.Tensor):
            tensors.append(part)
        elif isinstance(part, Mapping):
            left += list(part.values())
        elif isinstance(part, list | tuple):
            left += list(part)[:8]

    targets = []
    items = []
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.dim() == 0 or tensor.is_sparse:
            continue
        if tensor.dim() == 1 and not tensor.is_floating_point():
            targets = tensor.tolist()
        elif not items:
            steps = [max(1, size // 4) for size in tensor.shape[1:]]
            few = tensor[(slice(None), *(slice(None, None, step) for step in steps))]
            sums = few.double().reshape(len(few), -1).sum(1)
            items = [round(value, 6) for value in sums.tolist()]
    return targets, items


def generators() -> dict[str, str]:
    """The state of each library's random numbers, hashed."""
    import torch

    states = {"torch": torch.get_rng_state().tolist(), "random": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_initialized():
        own = torch.cuda.default_generators[torch.cuda.current_device()]
        states["cuda"] = own.initial_seed(), own.get_offset()
    return {name: hashlib.md5(repr(state).encode()).hexdigest() for name, state in states.items()}


# ---- where the recorder is called from ----
RECORDER: Recorder | None = None


def attach(name: str) -> None:
    """Called when a module of HOOKED has been imported."""
    global RECORDER
    if RECORDER is None:
        RECORDER = Recorder(os.environ[FOLDER])
    if name == "torch":
        RECORDER.event("begin")
        parts = (attach_to_data, attach_to_training, attach_to_collectives, attach_to_files)
        for attach_to in (*parts, attach_to_the_end):
            noted(attach_to)
    if name == "horovod.torch":
        noted(attach_to_horovod)


def start(folder: str) -> None:
    """Record from now on in this process, which has imported torch already."""
    global RECORDER
    known = RECORDER
    RECORDER = Recorder(folder)
    if known is None:
        attach("torch")


def stop(error: object = None) -> None:
    RECORDER.drain(wait=True)
    RECORDER.event("exit", error=repr(error))
    RECORDER.active = False


def noted(function: Callable | None, *args: object, **kwargs: object) -> None:
    """Call a part of the recorder. A mistake in it is noted, and never ends the script."""
    if function is None or not RECORDER.active:
        return
    try:
        function(*args, **kwargs)
    except Exception:
        RECORDER.event("trouble", text=traceback.format_exc()[-800:])


def hook(owner: object, name: str, before: Callable = None, after: Callable = None) -> None:
    """owner.name also calls before(*arguments) and after(result, *arguments)."""
    own = getattr(owner, name)

    @functools.wraps(own)
    def wrapper(*args: object, **kwargs: object) -> object:
        noted(before, *args, **kwargs)
        result = own(*args, **kwargs)
        noted(after, result, *args, **kwargs)
        return result

    setattr(owner, name, wrapper)


def attach_to_data() -> None:
    from torch.utils.data import DataLoader
    from torch.utils.data._utils import fetch
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    def forget(loader: object) -> None:  # what persistent workers had drawn ahead
        if getattr(loader, "_iterator", None) is not None:
            loader._iterator.__dict__.pop("_doctor_drawn", None)

    def drawn(indices: object, iterator: object) -> None:
        queue = iterator.__dict__.setdefault("_doctor_drawn", deque())
        queue.append(list(indices) if isinstance(indices, list | tuple) else [indices])

    own_next = _BaseDataLoaderIter.__next__

    @functools.wraps(own_next)
    def following(iterator: object) -> object:
        start = time.perf_counter()
        try:
            batch = own_next(iterator)
        except StopIteration:
            noted(RECORDER.end_of_pass, iterator)
            raise
        noted(RECORDER.batch, iterator, batch, time.perf_counter() - start)
        return batch

    _BaseDataLoaderIter.__next__ = following
    hook(DataLoader, "__init__", after=lambda _, loader, *a, **k: RECORDER.new_loader(loader))
    hook(DataLoader, "__iter__", forget, lambda *made: RECORDER.new_pass(*made))
    hook(_BaseDataLoaderIter, "_next_index", after=drawn)
    draws = (lambda *_: RECORDER.before_fetch(), lambda *_: RECORDER.after_fetch())
    hook(fetch._MapDatasetFetcher, "fetch", *draws)


def attach_to_training() -> None:
    from torch.optim import optimizer

    def before(trained: object, *_: object) -> None:
        noted(RECORDER.before_step, trained)

    def after(trained: object, *_: object) -> None:
        noted(RECORDER.after_step, trained)

    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


COLLECTIVES = """
    allreduce allreduce_coalesced broadcast reduce allgather _allgather_base all_gather_single
    allgather_coalesced gather gather_single scatter reduce_scatter _reduce_scatter_base
    reduce_scatter_single alltoall alltoall_base all_to_all_single barrier monitored_barrier
""".split()


def attach_to_collectives() -> None:
    """Below torch.distributed's functions: those, torch.compile may trace."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    from torch.distributed import distributed_c10d
    from torch.distributed.algorithms.join import Join

    for name in COLLECTIVES:
        if hasattr(dist.ProcessGroup, name):
            called = functools.partial(collective, name.strip("_"))
            hook(dist.ProcessGroup, name, before=called)
    hook(distributed_c10d, "init_process_group", after=lambda *_, **__: RECORDER.rank_of_torch())
    dist.init_process_group = distributed_c10d.init_process_group
    hook(Join, "__enter__", before=lambda _: RECORDER.event("join"))


def collective(kind: str, group: object, *args: object, **_: object) -> None:
    name = getattr(group, "group_name", "horovod")
    size = size_of(args[:1])
    RECORDER.event("collective", group=str(name), kind=kind, size=size, at=user_line())


def size_of(parts: object) -> int:
    if hasattr(parts, "numel"):
        return parts.numel()
    return sum(map(size_of, parts)) if isinstance(parts, list | tuple) else 0


def attach_to_horovod() -> None:
    hvd = sys.modules["horovod.torch"]

    def averaged(tensor: object, *_: object, **__: object) -> None:
        names = {entry.name for entry in traceback.extract_stack(limit=30)}
        if not names & {"backward", "step", "synchronize"}:  # its own, of gradients
            collective("allreduce", None, tensor)

    hook(hvd, "init", after=lambda *a, **k: RECORDER.rank(hvd.rank(), hvd.size(), "horovod"))
    for name in ("_allreduce_async", "_allgather_async"):
        hook(hvd.mpi_ops, name, before=averaged)


def attach_to_files() -> None:
    import torch

    def save(obj: object, f: object, *_: object, **__: object) -> None:
        if isinstance(f, str | os.PathLike):
            wrote(os.fspath(f))
        if prefix := prefix_of(obj):
            RECORDER.event("saved", prefix=prefix, at=user_line())

    def loaded(_: object, module: object, state_dict: dict, *__: object, **___: object) -> None:
        mine = {name for name, _ in module.named_parameters()}
        plain = {plain_key(key) for key in mine}
        if not mine & set(state_dict) and plain & set(map(plain_key, state_dict)):
            RECORDER.event("loaded", at=user_line())  # strict=False: and no error

    def audit(name: str, args: tuple) -> None:
        if RECORDER.quiet:
            return
        if name == "open" and isinstance(args[0], str | bytes) and isinstance(args[2], int):
            if args[2] & (os.O_WRONLY | os.O_RDWR) and not args[2] & os.O_APPEND:
                noted(wrote, os.fsdecode(args[0]))
        elif name == "os.rename" and isinstance(args[1], str | bytes | os.PathLike):
            noted(wrote, os.fsdecode(args[1]))

    hook(torch.serialization, "save", save)
    torch.save = torch.serialization.save
    hook(torch.nn.Module, "load_state_dict", after=loaded)
    sys.addaudithook(audit)


WRITERS = ("numpy", "torch", "pandas", "PIL")  # they write files for whoever calls them


def wrote(path: str) -> None:
    """Note a file that the user's code opens to write, itself or through a WRITER."""
    frame = sys._getframe(1)
    while frame and is_library(name := frame.f_code.co_filename):
        if "importlib" in name or "/torch/_" in name:
            return  # the cache of a module, or of torch.compile
        if "-packages/" in name and not any(f"/{writer}/" in name for writer in WRITERS):
            return
        frame = frame.f_back
    if not frame or path.startswith(("/dev/", "/proc/")):
        return

    RECORDER.quiet = True
    full = os.path.realpath(path)
    special = os.path.exists(full) and not os.path.isfile(full)
    RECORDER.quiet = False
    if not special and not full.startswith(RECORDER.folder):
        RECORDER.event("wrote", path=full, at=[frame.f_code.co_filename, frame.f_lineno])


def plain_key(key: object) -> str:
    return re.sub(r"^(module\.|_orig_mod\.)+", "", str(key))


def prefix_of(obj: object) -> str | None:
    """module. or _orig_mod., if the keys of a state dict in it begin so."""
    parts = [obj, *obj.values()] if isinstance(obj, dict) else []
    for part in parts:
        keys = [str(key) for key in part] if isinstance(part, dict) else []
        for prefix in ("module.", "_orig_mod."):
            if keys and all(key.startswith(prefix) for key in keys):
                return prefix
    return None


def attach_to_the_end() -> None:
    """Of a process, and of those of multiprocessing, which do not run what atexit has."""
    import atexit
    from multiprocessing import util

    def leaving(status: object = None) -> None:
        RECORDER.status = status

    hook(sys, "exit", leaving)  # multiprocessing ends a process that failed by it
    atexit.register(at_exit)
    util.register_after_fork(RECORDER, lambda _: util.Finalize(None, at_exit, exitpriority=0))


def at_exit() -> None:
    if RECORDER.pid != os.getpid():
        return
    noted(RECORDER.drain, True)
    error = getattr(sys, "last_value", None) or RECORDER.status or None
    RECORDER.event("exit", error=repr(error))
    if RECORDER.pid == RECORDER.first:
        faulthandler.cancel_dump_traceback_later()


# ---- what the processes wrote ----
@dataclass(eq=False)
class Pass:
    """One iteration over a loader."""

    loader: dict
    place: int  # steps before it
    batches: list[dict] = field(default_factory=list)
    ended: bool = False
    total: int | None = None  # batches that it should have
    steps: int = 0
    last: int = 0  # the last of them, of all steps
    reduced: set = field(default_factory=set)  # collectives between its batches and a step

    def trains(self) -> bool:
        """Steps follow its batches: not one now and then, as in an evaluation piece by piece."""
        return self.steps > 0 and 10 * self.steps >= self.last - self.place

    def size(self) -> int:
        """Items in a batch; batch samplers of one's own do not say it."""
        sizes = [len(batch.get("indices", [])) for batch in self.batches]
        return self.loader["batch_size"] or max(sizes, default=1)

    def whole(self) -> bool:
        """All batches came; not all programs ask for one more to see that there is none."""
        return self.ended or len(self.batches) == self.total

    def keys(self) -> list:
        """What tells samples apart: indices, or what an IterableDataset has made."""
        if not self.loader["iterable"]:
            return [index for batch in self.batches for index in batch.get("indices", [])]
        items = self.column("items")
        targets = self.column("targets") or [None] * len(items)
        return list(zip(targets, items, strict=False))

    def column(self, name: str) -> list:
        return [value for batch in self.batches for value in batch.get(name) or []]

    def joins(self, other: "Pass") -> bool:
        """Whether both may be parts of one evaluation: of one set, and no sample is in both."""
        same_set = self.loader["fingerprint"] == other.loader["fingerprint"]
        return same_set and not set(self.keys()) & set(other.keys())


@dataclass
class Rank:
    """What one process did."""

    rank: int = -1
    world: int = 1
    process: dict = field(default_factory=dict)
    model: dict = field(default_factory=dict)
    device: dict = field(default_factory=dict)
    group: str = ""  # the name of the group of all ranks
    joins: bool = False
    trouble: str = ""  # of the recorder
    passes: dict[int, Pass] = field(default_factory=dict)
    steps: list[dict] = field(default_factory=list)
    figures: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))
    collectives: dict[str, list] = field(default_factory=lambda: defaultdict(list))
    wrote: list[dict] = field(default_factory=list)
    saved: list[dict] = field(default_factory=list)
    loaded: list[dict] = field(default_factory=list)
    # Streams of random numbers that making an item drew from -> their states before it.
    drew: dict[str, set] = field(default_factory=lambda: defaultdict(set))
    ended: dict = field(default_factory=dict)
    last: float = 0.0  # when its last event was
    stack: list | None = None  # the user's line where it stood still
    still: float = 0.0  # seconds from its last event until the doctor ended the job

    def left(self) -> bool:
        """It came to its end, or waits for ever: it will call nothing more."""
        return self.ended.get("error") == "None" or bool(self.stack and self.still >= STILL)

    def training(self) -> dict[str, list[Pass]]:
        """Passes with steps, by the line of their loader; the last may have none yet."""
        passes = list(self.passes.values())
        most = Counter()
        for one in passes:
            steps = one.steps if one.trains() else 0
            most[one.loader["id"]] = max(most[one.loader["id"]], steps)
        # A single step after an evaluation that was cut short makes no training of it.
        least = 1 if max(most.values(), default=0) == 1 else 2

        found = defaultdict(list)
        for one in passes:
            begun = one is passes[-1] and one.batches and not one.ended
            if most[one.loader["id"]] >= least and (one.steps or begun):
                found[str(one.loader["at"])].append(one)
        return found

    def evaluations(self) -> dict[tuple, list[Pass]]:
        """Passes that show a set once: by the steps before them, and their number there."""
        training = [one for passes in self.training().values() for one in passes]
        trained = {one.loader["id"] for one in training}
        found = defaultdict(list)
        for one in self.passes.values():
            early = self.steps and not one.place  # one that only looks at the data
            if one.loader["id"] in trained or early or not one.whole():
                continue

            number = 0
            while not all(other.joins(one) for other in found[one.place, number]):
                number += 1
            found[one.place, number].append(one)
        return found


def read_process(path: Path) -> Rank:
    """A process from its trace; world 0: it is none of the job's ranks."""
    rank = Rank()
    loaders = {}
    recent: list[Pass] = []  # those with a batch since the last step
    for line in path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off by a kill

        kind = event["e"]
        rank.last = event["t"]
        one = rank.passes.get(event.get("n"))
        if one is None and kind in ("batch", "end"):
            continue  # of a pass that began before a fork

        if kind in ("process", "model", "device"):
            setattr(rank, kind, event)
        elif kind in ("wrote", "saved", "loaded"):
            getattr(rank, kind).append(event)
        elif kind == "rank":
            rank.rank = event["rank"]
            rank.world = event["world"]
            rank.group = event["group"]
        elif kind == "loader":
            loaders[event["id"]] = event
        elif kind == "pass":
            loader = loaders[event["loader"]]
            unfinished = [one for one in recent if one.loader is loader and not one.whole()]
            recent = [one for one in recent if one not in unfinished]
            rank.passes[event["n"]] = Pass(loader, len(rank.steps), total=event["total"])
        elif kind == "batch":
            one.batches.append(event)
            recent = [other for other in recent if other is not one] + [one]
        elif kind == "end":
            one.ended = True
        elif kind == "step":
            rank.steps.append(event)
            learning = [one for one in recent if one.batches[-1]["grad"]]
            for trained in learning or recent:
                evaluation = trained.whole() and trained is not recent[-1]
                if not trained.ended and not evaluation:
                    trained.steps += 1
                    trained.last = len(rank.steps)
            recent = []
        elif kind == "collective":
            rank.collectives[event["group"]].append(event)
            for evaluated in recent:
                evaluated.reduced.update({event["kind"]} - {"barrier", "broadcast"})
        elif kind == "figures":
            rank.figures[event["what"]][event["n"]] = event["values"]
        elif kind == "drew":
            for name, state in event["states"].items():
                rank.drew[name].add(state)
        elif kind == "trouble":
            rank.trouble = event["text"].splitlines()[-1]
        elif kind == "join":
            rank.joins = True
        elif kind == "exit":
            rank.ended = event

    rank.stack = read_stack(path.with_suffix(".stacks"), rank.last)
    if rank.rank < 0 and not rank.passes and not rank.steps:
        rank.world = 0
    return rank


def read_stack(path: Path, last: float) -> list | None:
    """The user's line in the last stack, unless the process went on after it."""
    if not path.is_file() or path.stat().st_mtime < last:
        return None
    threads = path.read_text(errors="replace").split("Thread 0x")
    for name, line in re.findall(r'File "([^"]+)", line (\d+)', threads[-1]):
        if not is_library(name):
            return [name, int(line)]
    return None


def read_ranks(folder: Path, stopped: float = float("inf")) -> list[Rank]:
    """All ranks of the job, in order; a process alone is rank 0 of 1.

    stopped: when the doctor ended the job, in seconds since 1970.
    """
    processes = [read_process(path) for path in folder.glob("*.jsonl")]
    processes.sort(key=lambda one: one.process.get("t", 0))
    for one in processes:
        if one.ended.get("t", 0) > stopped:
            one.ended = {}  # by our signal
        one.still = stopped - one.last if stopped < float("inf") else 0.0

    # The largest job, and of restarts the last: no program of one rank that a rank starts.
    world = max((one.world for one in processes), default=0)
    ranks = {one.rank: one for one in processes if one.rank >= 0 and one.world == world}
    if not ranks:
        alone = [one for one in processes if one.world]
        ranks = {0: max(alone, key=lambda one: len(one.steps))} if alone else {}
    for one in processes:  # a loader's workers speak for their parents
        for rank in ranks.values():
            if one.process.get("parent") == rank.process.get("pid"):
                for name, states in one.drew.items():
                    rank.drew[name].update(states)

    for number, one in ranks.items():
        one.rank = number
    return [ranks[number] for number in sorted(ranks)]


# ---- what is wrong ----
LANGUAGES = ("en", "zh")
SEVERITIES = ("wrong result", "hang ahead", "wasted", "slow", "note")


@dataclass
class Finding:
    id: str
    severity: str
    at: list | None
    seen: str
    advice: str
    page: str


class Report:
    """Collects findings and what could not be checked, in one language."""

    def __init__(self, language: str) -> None:
        self.language = LANGUAGES.index(language)
        self.findings: list[Finding] = []
        self.not_checked: dict[str, str] = {}
        self.checked: list[str] = []
        self.all_ranks = True  # or only those of one machine of several

    def find(self, name: str, at: list | None, /, mild: bool = False, **values: object) -> None:
        """name: one of TEXTS; mild: only a note, whatever is said there."""
        severity, page, *texts = WORDS[name]
        seen, advice = texts[self.language :: 2]
        which = name.split(":")[0]
        if not self.has(which):
            severity = "note" if mild else severity
            page = f"docs/{LANGUAGES[self.language]}/{page}"
            finding = Finding(which, severity, at, seen.format(**values), advice, page)
            self.findings.append(finding)

    def choose(self, *texts: str) -> str:
        return texts[self.language]

    def skip(self, which: str, why: str) -> None:
        self.not_checked[which] = REASONS[why][self.language]

    def has(self, *names: str) -> bool:
        return any(finding.id in names for finding in self.findings)


def listed(ranks: list[Rank] | list[int]) -> str:
    numbers = [str(getattr(rank, "rank", rank)) for rank in ranks]
    return ", ".join(numbers[:8]) + (" …" if len(numbers) > 8 else "")


def short(at: list | None) -> str:
    """file:line, from the current folder if it lies there."""
    if not at:
        return "?"
    return f"{at[0].removeprefix(os.getcwd() + os.sep)}:{at[1]}"


def comparable(one: Pass, other: Pass) -> bool:
    """Whether equal indices mean equal samples: the data sets, or what they gave, agree."""
    mine, theirs = (dict(zip(p.keys(), p.column("targets"), strict=False)) for p in (one, other))
    targets = mine.keys() & theirs.keys()
    if any(mine[key] != theirs[key] for key in targets):
        return False

    mine, theirs = (dict(zip(p.keys(), p.column("items"), strict=False)) for p in (one, other))
    items = mine.keys() & theirs.keys()
    same = [mine[key] == theirs[key] for key in items]
    if one.loader["fingerprint"] == other.loader["fingerprint"]:
        return bool(targets) or not same or any(same)  # augmented images differ, targets do not
    return bool(same) and all(same)


DRAWN = "Weighted|RASampler|Repeat"  # samplers that may draw a sample twice, or never
CHOSEN = f"Subset|Random|{DRAWN}"


def check_samples(ranks: list[Rank], report: Report) -> None:
    """Do ranks share training samples? Is an epoch's order that of the one before?"""
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        for name in ("same_samples", "overlapping_samples", "same_order"):
            report.skip(name, "loader")
        return

    for line in trained[0]:
        for epoch, passes in enumerate(zip(*(by.get(line, []) for by in trained), strict=False)):
            check_shares(ranks, passes, epoch + 1, report)
    for by in trained:
        for passes in by.values():
            for before, now in zip(passes, passes[1:], strict=False):
                check_order(before, now, report)

    if not any(len(passes) > 1 for by in trained for passes in by.values()):
        report.skip("same_order", "epoch")


def check_shares(ranks: list[Rank], passes: tuple[Pass, ...], epoch: int, report: Report) -> None:
    loader = passes[0].loader
    keys = [one.keys() for one in passes]
    for n, one in enumerate(passes):
        for m in range(n):
            count = min(len(keys[n]), len(keys[m]))
            same = count > 1 and keys[n][:count] == keys[m][:count]
            if same and len(set(keys[n][:count])) > 1:
                if loader["iterable"] or comparable(one, passes[m]):
                    return report.find(
                        "same_samples",
                        loader["at"],
                        ranks=listed([ranks[m], ranks[n]]),
                        epoch=epoch,
                        count=count,
                    )
                return report.skip("same_samples", "files")
    if loader["iterable"]:
        report.skip("overlapping_samples", "iterable")
        return None

    own = sum(len(part) - len(set(part)) for part in keys)
    drawn = loader["replacement"] or re.search(DRAWN, loader["sampler"])
    if own > 1 or drawn or len(passes) < 2:
        return None  # samples may come twice
    if not all(comparable(passes[0], other) for other in passes[1:]):
        return report.skip("overlapping_samples", "files")

    count = sum(map(len, keys))
    union = set().union(*keys)
    twice = count - len(union)
    size = max(one.size() for one in passes)
    own_batches = loader["accelerate"] or not loader["batch_size"]
    padding = len(passes) * size if own_batches else len(passes) - 1
    if twice > padding:
        at = loader["at"]
        return report.find("overlapping_samples", at, epoch=epoch, twice=twice, count=count)

    unseen = (loader["length"] or 0) - len(union)
    dropped = len(passes) * (size + 1)  # by drop_last, of batches and of the share
    whole = report.all_ranks and all(one.whole() for one in passes)
    if whole and unseen > dropped and not re.search(CHOSEN, loader["sampler"]):
        report.find(
            "overlapping_samples:skipped",
            loader["at"],
            epoch=epoch,
            unseen=unseen,
            count=loader["length"],
        )
    return None


def check_order(before: Pass, now: Pass, report: Report) -> None:
    if now.loader["iterable"] or before.place == now.place:
        return
    if before.loader["fingerprint"] != now.loader["fingerprint"]:
        return

    count = min(len(before.keys()), len(now.keys()))
    order = now.keys()[:count]
    if count > 5 and order != sorted(order) and order == before.keys()[:count]:
        report.find("same_order", now.loader["at"], count=count)


def check_steps(ranks: list[Rank], report: Report) -> None:
    """Do all ranks make as many steps in an epoch, and as many epochs?"""
    if any(rank.joins for rank in ranks):
        return report.skip("unequal_steps", "join")
    trained = [rank.training() for rank in ranks]
    if not all(trained):
        return report.skip("unequal_steps", "loader")
    for line in trained[0]:
        lists = [by.get(line, []) for by in trained]
        for epoch, passes in enumerate(zip(*lists, strict=False), 1):
            steps = [made(ranks[n], lists[n], epoch) for n in range(len(ranks))]
            few, many, values = extremes(ranks, [len(one.batches) for one in passes])
            over = passes[few].ended or len(lists[few]) > epoch
            went_on = len(lists[many]) > epoch or ranks[many].ended.get("error") == "None"
            if over and few != many and not (went_on and len(set(steps)) == 1):
                at = passes[few].loader["at"]
                return report.find("unequal_steps", at, epoch=epoch, **values)

            few, many, values = extremes(ranks, steps)
            if few != many and all(one.ended for one in passes):
                at = ranks[few].steps[-1]["at"] if ranks[few].steps else None
                return report.find("unequal_steps:skipped", at, epoch=epoch, **values)

        few, many, values = extremes(ranks, list(map(len, lists)))
        if few != many and ranks[few].left() and lists[few] and lists[few][-1].ended:
            return report.find("unequal_steps:epochs", lists[few][-1].loader["at"], **values)
    return None


def made(rank: Rank, passes: list[Pass], epoch: int) -> int:
    """Steps from the beginning of a pass to that of the next one."""
    after = passes[epoch].place if epoch < len(passes) else len(rank.steps)
    return after - passes[epoch - 1].place


def extremes(ranks: list[Rank], counts: list[int]) -> tuple[int, int, dict]:
    """Places of the smallest and of the largest count, equal if all are; and words for them."""
    few = counts.index(min(counts))
    many = counts.index(max(counts))
    values = {"one": ranks[few].rank, "few": counts[few]}
    return few, many, values | {"other": ranks[many].rank, "many": counts[many]}


def differ(one: list, other: list) -> bool:
    """Whether figures of two ranks are unequal, by more than sums taken otherwise are."""
    for (norm, sample), (norm2, sample2) in zip(one, other, strict=True):
        if repr([norm, sample]) == repr([norm2, sample2]):
            continue  # NaN and infinity are equal to themselves here

        scale = max(norm, norm2) + 1e-30
        near = abs(norm - norm2) <= TOLERANCE * scale
        if not near or not abs(sample - sample2) <= 64 * TOLERANCE * scale:
            return True
    return False


def first_difference(ranks: list[Rank], what: str) -> dict | None:
    """The first step where a rank's figures differ from those of the first, and both ranks."""
    for n in sorted(ranks[0].figures[what]):
        for other in ranks[1:]:
            theirs = other.figures[what].get(n)
            if theirs and differ(ranks[0].figures[what][n], theirs):
                return {"step": n, "one": ranks[0].rank, "other": other.rank}
    return None


def check_weights(ranks: list[Rank], report: Report) -> None:
    """Gradients at the step, weights before the first and after each."""
    wrappers = {name for rank in ranks for name in rank.model.get("wrappers", [])}
    sizes = [rank.model.get("sizes") for rank in ranks]
    why = ""
    if not all(rank.figures["gradients"] for rank in ranks):
        why = "optimizer"
    elif "sharded" in wrappers or not sizes[0] or any(size != sizes[0] for size in sizes):
        why = "sharded"
    elif report.has("unequal_steps"):
        why = "steps"
    if why:
        for name in ("no_averaging", "unequal_gradients", "drifting_weights"):
            report.skip(name, why)
        return

    first = ranks[0]
    at = first.steps[-1]["at"] if first.steps else None
    sums = sum(e["size"] for events in first.collectives.values() for e in events)
    whole = sum(sizes[0]) * len(first.steps)
    by_hand = sums >= whole / 2  # as many numbers as gradients, or nearly, were summed
    averaged = bool(wrappers) or first.group == "horovod" or by_hand

    gradients = first_difference(ranks, "gradients")
    weights = first_difference(ranks, "weights")
    if gradients and not averaged:
        report.find("no_averaging", at, **gradients)
    elif weights and weights["step"] == 0:
        report.find("no_averaging:start", at, **weights)
    elif gradients:
        report.find("unequal_gradients", at, **gradients)
    elif rates := unequal_rates(ranks):
        report.find("drifting_weights:rates", at, **rates)
    elif weights:
        report.find("drifting_weights", at, **weights)


def unequal_rates(ranks: list[Rank]) -> dict | None:
    for steps in zip(*(rank.steps for rank in ranks), strict=False):
        for n, step in enumerate(steps):
            for mine, theirs in zip(steps[0]["rates"], step["rates"], strict=False):
                if mine != theirs:
                    values = {"step": step["n"], "one": ranks[0].rank, "other": ranks[n].rank}
                    return {**values, "mine": mine, "theirs": theirs}
    return None


def check_randomness(ranks: list[Rank], report: Report) -> None:
    """Do ranks draw the same random numbers, and does anything draw?"""
    firsts = []
    trained = [rank.training() for rank in ranks]
    for by in trained:
        passes = [one for passes in by.values() for one in passes]
        firsts += [one for one in passes[:1] if len(one.batches) > 1]
    if not any(trained) and all(len(rank.steps) > 1 for rank in ranks):
        if stream := equal_stream([rank.steps for rank in ranks]):
            report.find("equal_randomness:drawn", ranks[0].steps[0]["at"], name=stream)
        return None
    if len(firsts) < len(ranks):
        return report.skip("equal_randomness", "batches")
    if stream := equal_stream([one.batches for one in firsts]):
        return report.find("equal_randomness", firsts[0].loader["at"], name=stream)

    for rank in ranks[1:] if firsts[0].loader["workers"] else []:
        drew = [name for name, states in rank.drew.items() if states & ranks[0].drew[name]]
        if drew:
            name = ", ".join(sorted(drew))
            return report.find("equal_randomness:workers", firsts[0].loader["at"], name=name)
    return None


def equal_stream(events: list[list[dict]]) -> str:
    """The random numbers that two ranks have alike at the first event, and draw before the next."""
    for name in ("torch", "numpy", "random", "cuda"):
        states = [[event["random"].get(name) for event in two[:2]] for two in events]
        ranks = Counter(first for first, _ in states)
        if any(ranks[first] > 1 and first != second for first, second in states):
            return name
    return ""


def check_devices(ranks: list[Rank], report: Report) -> None:
    """Are there two ranks on a GPU, or memory of a rank on another's?"""
    mine = [(rank.process.get("host"), rank.device.get("own")) for rank in ranks]
    if not any(own for _, own in mine):
        return report.skip("shared_gpu", "cpu")
    at = ranks[0].model.get("at")
    for n, place in enumerate(mine):
        if place[1] and place in mine[:n]:
            both = listed([ranks[mine.index(place)], ranks[n]])
            return report.find("shared_gpu", at, ranks=both)
        others = {own for host, own in mine if host == place[0]} - {place[1]}
        if others & set(ranks[n].device.get("used", [])):
            return report.find("shared_gpu:memory", at, other=ranks[n].rank)
    return None


def check_files(ranks: list[Rank], report: Report) -> None:
    """Is a file written by several ranks?"""
    writers = defaultdict(dict)
    for rank in ranks:
        for event in rank.wrote:
            writers[rank.process.get("host"), event["path"]].setdefault(rank.rank, event)
    for (_, path), events in writers.items():
        if len(events) > 1:
            at = next(iter(events.values()))["at"]
            values = {"ranks": listed(list(events)), "path": path}
            return report.find("shared_file", at, **values)
    for rank in ranks:
        for event in rank.loaded[:1]:
            return report.find("wrapped_keys:loaded", event["at"])
        for event in rank.saved[:1]:
            report.find("wrapped_keys", event["at"], prefix=event["prefix"])
    return None


def check_evaluation(ranks: list[Rank], report: Report) -> None:
    """Is each sample evaluated once, and is the sum of all ranks reported?"""
    if not report.all_ranks:
        return report.skip("wrong_evaluation", "machines")
    phases = [rank.evaluations() for rank in ranks]
    by_ranks = Counter(key for phase in phases for key in phase)
    if not by_ranks:
        return report.skip("wrong_evaluation", "evaluation")
    [(first, _)] = by_ranks.most_common(1)  # of several, the one that came first
    check_coverage([phase[first] for phase in phases if first in phase], report)
    return None


def check_coverage(phase: list[list[Pass]], report: Report) -> None:
    """phase: for each rank that evaluates, its passes over the set."""
    loaders = [one.loader for passes in phase for one in passes]
    if any(loader["iterable"] or loader["root"] is None for loader in loaders):
        return report.skip("wrong_evaluation", "iterable")
    if not all(comparable(passes[0], phase[0][0]) for passes in phase):
        return report.skip("wrong_evaluation", "files")

    counts = Counter()
    everyone = True
    for passes in zip(*phase, strict=False):
        keys = [one.keys() for one in passes]
        same = all(part == keys[0] for part in keys)
        everyone = everyone and same
        for part in keys[:1] if same else keys:
            counts.update(part)
    size = 0
    for passes in zip(*phase, strict=False):
        parts = {one.loader["subset"]: one.loader for one in passes}
        size += sum(loader["length"] for loader in parts.values())
        whole = parts.get("")  # no Subset: any other is a part of it
        if whole:
            size = whole["root"]
            break

    twice = sum(counts.values()) - len(counts)
    missing = size - len(counts)
    at = loaders[0]["at"]
    kinds = set().union(*(one.reduced for passes in phase for one in passes))
    # What was gathered may have been cut: accelerate's gather_for_metrics does so.
    accelerate = loaders[0]["accelerate"]
    cut = accelerate or any("gather" in kind for kind in kinds)

    chosen = any(re.search(CHOSEN, loader["sampler"]) for loader in loaders)
    if missing > 0 and not chosen:
        return report.find("wrong_evaluation:part", at, accelerate, missing=missing, count=size)
    if twice > 0 and not chosen:
        return report.find("wrong_evaluation", at, cut, twice=twice, count=size)
    if everyone and len(phase) > 1:
        return report.find("wrong_evaluation:everyone", at, count=size)
    if len(phase) > 1 and not kinds:
        share = len(phase[0][0].keys())
        return report.find("wrong_evaluation:share", at, accelerate, share=share, count=size)
    return None


def check_buffers(ranks: list[Rank], report: Report) -> None:
    """Are BatchNorm's statistics equal where ranks evaluate?"""
    if report.has("unequal_steps"):
        return report.skip("unequal_buffers", "steps")
    found = [rank for rank in ranks if rank.figures["buffers"]]
    if len(found) < 2:
        return report.skip("unequal_buffers", "buffers")
    for rank in found[1:]:
        for number, values in rank.figures["buffers"].items():
            one = rank.passes[number]
            for other, theirs in found[0].figures["buffers"].items():
                if found[0].passes[other].place == one.place and differ(values, theirs):
                    who = listed([found[0], rank])
                    return report.find("unequal_buffers", one.loader["at"], ranks=who)
    return None


def check_collectives(ranks: list[Rank], report: Report) -> None:
    """Do ranks call the same collectives in the same order, and do all arrive?"""
    if report.has("unequal_steps"):
        return
    groups = dict.fromkeys(name for rank in ranks for name in rank.collectives)
    for group in [name for name in groups if name != "horovod"]:
        members = [rank for rank in ranks if rank.collectives[group] or rank.group == group]
        for other in members[1:]:
            check_pair(members[0], other, group, report)

    waits = [rank for rank in ranks if rank.stack]
    places = {short(rank.stack) for rank in waits}
    if len(waits) < 2 or report.has("collective_order"):
        return
    for_ever = all(rank.still >= STILL for rank in waits)
    if len(places) > 1:
        found = "; ".join(f"rank {rank.rank}: {short(rank.stack)}" for rank in waits)
        report.find("collective_order:waits", waits[0].stack, not for_ever, places=found)
    elif for_ever and len(waits) == len(ranks):
        report.find("collective_order:still", waits[0].stack)


def check_pair(one: Rank, other: Rank, group: str, report: Report) -> None:
    mine = one.collectives[group]
    theirs = other.collectives[group]
    for n, (a, b) in enumerate(zip(mine, theirs, strict=False)):
        sized = a["kind"] in ("allreduce", "broadcast", "reduce")
        if a["kind"] != b["kind"] or (sized and a["size"] != b["size"]):
            report.find(
                "collective_order",
                a["at"],
                n=n + 1,
                one=one.rank,
                other=other.rank,
                mine=f"{a['kind']} ({a['size']}) {short(a['at'])}",
                theirs=f"{b['kind']} ({b['size']}) {short(b['at'])}",
            )
            return

    more, fewer = (one, other) if len(mine) > len(theirs) else (other, one)
    waits = more.stack or more.ended.get("error") != "None"
    if len(mine) != len(theirs) and fewer.left() and waits:
        event = more.collectives[group][len(fewer.collectives[group])]
        place = short(event["at"])
        report.find(
            "collective_order:missing",
            event["at"],
            one=more.rank,
            kind=event["kind"],
            place=place,
            other=fewer.rank,
        )


def check_speed(ranks: list[Rank], report: Report) -> None:
    """Is time lost that the script could have?"""
    for rank in ranks:
        model = rank.model
        if model.get("unused") and rank.steps and not any(s["without"] for s in rank.steps):
            report.find("slow_step:unused", model["at"])
        for one in [one for passes in rank.training().values() for one in passes]:
            batches = one.batches[2:]
            if len(batches) < 10:
                continue
            waited = sum(batch["wait"] for batch in batches[1:])
            share = waited / max(1e-9, batches[-1]["t"] - batches[0]["t"])
            if share > 0.3 and waited > 1:
                share = round(100 * share)
                report.find("slow_step", one.loader["at"], share=share, rank=rank.rank)


def check_rate(ranks: list[Rank], report: Report) -> None:
    """Are both batch size and learning rate what somebody typed for one GPU?"""
    rank = ranks[0]
    passes = [one for passes in rank.training().values() for one in passes]
    if not passes or not rank.steps or not rank.steps[0]["rates"] or not rank.steps[0]["at"]:
        return
    typed = {word.split("=")[-1] for word in rank.process.get("argv", [])}
    with suppress(OSError, SyntaxError):
        for node in ast.walk(ast.parse(Path(rank.steps[0]["at"][0]).read_text())):
            if isinstance(node, ast.Constant):
                typed.add(str(node.value))
            divided = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv)
            if divided and re.search(r"batch_?size", ast.unparse(node.left)):
                return  # by the number of ranks, most likely

    size = passes[0].loader["batch_size"]
    rate = max(rank.steps[0]["rates"])
    values = set()
    for text in typed:
        with suppress(ValueError):
            values.add(float(text))

    if rate > 0 and {size, rate} <= values and len(ranks) > 1:
        total = size * len(ranks)
        report.find("learning_rate", passes[0].loader["at"], size=size, total=total, rate=rate)


CHECKS = (  # those between ranks of a data-parallel group
    (check_samples, "same_samples", "overlapping_samples", "same_order"),
    (check_steps, "unequal_steps"),
    (check_weights, "no_averaging", "unequal_gradients", "drifting_weights"),
    (check_randomness, "equal_randomness"),
    (check_evaluation, "wrong_evaluation"),
    (check_buffers, "unequal_buffers"),
)
CHECKS_OF_ALL = (
    (check_devices, "shared_gpu"),
    (check_files, "shared_file", "wrapped_keys"),
    (check_collectives, "collective_order"),
    (check_speed, "slow_step"),
    (check_rate, "learning_rate"),
)
ALONE = ("same_order", "shared_gpu", "shared_file", "wrapped_keys", "wrong_evaluation", "slow_step")


def judge(ranks: list[Rank], report: Report) -> None:
    """All checks; a mistake in one of them is told, and does not stop the others."""
    by_group = defaultdict(list)
    for rank in ranks:
        by_group[tuple(rank.model.get("group") or ())].append(rank)
    groups = list(by_group.values())
    if any(len(group) == 1 for group in groups):
        groups = [ranks]  # one that crashed before it had a model, or no DDP
    report.all_ranks = len(ranks) == ranks[0].world

    for rank in ranks:
        if rank.trouble:
            problem = report.choose("the recorder had a problem", "记录器出错")
            report.not_checked["all"] = f"{problem}: {rank.trouble}"

    for check, *names in (*CHECKS, *CHECKS_OF_ALL):
        for group in groups if (check, *names) in CHECKS else [ranks]:
            try:
                check(group, report)
            except Exception as error:
                problem = report.choose("the doctor had a problem", "doctor 出错")
                report.not_checked.update(dict.fromkeys(names, f"{problem}: {error!r}"))
        for name in names:
            if len(ranks) == 1 and name not in ALONE:
                report.skip(name, "alone" if ranks[0].world == 1 else "machines")
        report.checked += [name for name in names if name not in report.not_checked]
    report.findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))


# ---- words ----
# For each finding: name | severity | page, then what was seen and what to do, each in
# English and in Chinese. What follows a colon in a name tells kinds of a finding apart.
TEXTS = """
same_samples | wrong result | convert.md#step-3
Ranks {ranks} train on the same samples: in epoch {epoch} all {count} are the same, in the same order.
rank {ranks} 训练用的是同样的样本：第 {epoch} 个 epoch 的 {count} 个样本完全相同，顺序也一样。
Give the DataLoader sampler=DistributedSampler(dataset), and no shuffle=True.
给 DataLoader 传入 sampler=DistributedSampler(dataset)，去掉 shuffle=True。

overlapping_samples | wrong result | convert.md#step-3
Shares overlap: in epoch {epoch}, {twice} of {count} samples came to more than one rank.
各 rank 的样本有重叠：第 {epoch} 个 epoch 的 {count} 个样本里，有 {twice} 个重复出现在不同 rank 上。
All ranks must split (random_split) and shuffle with the same seed; then each takes every world_size-th sample.
所有 rank 用同一个种子划分（random_split）和打乱，再各自从自己的 rank 号开始，每 world_size 个取一个。

overlapping_samples:skipped | wrong result | convert.md#step-3
Samples are skipped: in epoch {epoch} no rank has seen {unseen} of {count}.
有样本被漏掉：第 {epoch} 个 epoch 里，{count} 个样本中有 {unseen} 个没有任何 rank 用到。
Check how a rank takes its share: samples[rank::world_size], of the whole data set.
检查每个 rank 怎样取自己的一份：应当从整个数据集取 samples[rank::world_size]。

same_order | wrong result | convert.md#step-5
Every epoch has the same order: the first {count} samples are those of the epoch before.
每个 epoch 的顺序都一样：前 {count} 个样本与上一个 epoch 完全相同。
Call sampler.set_epoch(epoch) at the beginning of every epoch.
在每个 epoch 开头调用 sampler.set_epoch(epoch)。

unequal_steps | hang ahead | troubleshooting.md#hang-causes
Ranks have different numbers of batches: in epoch {epoch}, rank {one} has {few}, rank {other} at least {many}.
各 rank 的 batch 数不同：第 {epoch} 个 epoch 里，rank {one} 有 {few} 个，rank {other} 至少有 {many} 个。
Give all ranks equal shares: DistributedSampler pads them; or drop_last=True, or Join.
让每个 rank 的样本一样多：DistributedSampler 会补齐；也可以用 drop_last=True 或 Join。

unequal_steps:skipped | wrong result | troubleshooting.md#hang-causes
Rank {one} made {few} steps in epoch {epoch}, rank {other} made {many}: some were skipped on one rank.
第 {epoch} 个 epoch 里，rank {one} 跑了 {few} 步，rank {other} 跑了 {many} 步：有的 rank 跳过了一些步。
Decide together: all-reduce the condition, so that all ranks skip the same steps.
由所有 rank 统一决定：先对“是否跳过”做 all-reduce，让所有 rank 跳过同样的步。

unequal_steps:epochs | hang ahead | troubleshooting.md#hang-causes
Rank {one} left the training after {few} epochs, rank {other} began epoch {many}.
rank {one} 训练 {few} 个 epoch 后退出，rank {other} 却开始了第 {many} 个。
Decide together: let rank 0 broadcast whether to stop, or compare a reduced number.
由所有 rank 统一决定：由 rank 0 广播是否停止，或者用 all-reduce 之后的指标来判断。

no_averaging | wrong result | convert.md#step-4
Gradients are never averaged: at step {step}, those of ranks {one} and {other} differ, and nothing adds them up.
梯度没有取平均：第 {step} 步 rank {one} 和 rank {other} 的梯度不同，也没有任何操作把它们加起来。
Wrap the model in DistributedDataParallel and train the wrapper.
用 DistributedDataParallel 包装模型，并用包装后的模型训练。

no_averaging:start | wrong result | convert.md#step-4
Ranks {one} and {other} begin with different weights, so that equal gradients do not keep them together.
rank {one} 和 rank {other} 的初始权重不同：之后即使梯度一样，权重也不会变得一致。
Broadcast all parameters and buffers from rank 0 before the first step; DDP does it by itself.
第一步之前，把所有参数和 buffer 从 rank 0 广播出去；DDP 会自动做这件事。

unequal_gradients | wrong result | convert.md#step-4
Gradients differ between ranks {one} and {other} at step {step}, although the script averages.
脚本做了梯度平均，但第 {step} 步 rank {one} 和 rank {other} 的梯度仍然不同。
Call the DDP wrapper, not model.module; leave no_sync before the last micro-batch; change gradients on all ranks alike.
前向用包装后的模型，不要用 model.module；最后一个 micro-batch 不要放在 no_sync 里；修改梯度时，各 rank 的改法要一致。

drifting_weights | wrong result | convert.md#plateau
Weights drift: gradients are equal, and after step {step} the weights of ranks {one} and {other} are not.
权重逐渐不一致：梯度相同，但第 {step} 步之后 rank {one} 和 rank {other} 的权重不同。
Use the same optimizer with the same settings on all ranks, and change weights nowhere else.
所有 rank 用同样的优化器和同样的设置，也不要在别处改动权重。

drifting_weights:rates | wrong result | convert.md#plateau
Learning rates differ at step {step}: {mine:g} on rank {one}, {theirs:g} on rank {other}.
第 {step} 步各 rank 的学习率不同：rank {one} 是 {mine:g}，rank {other} 是 {theirs:g}。
Feed the scheduler with a number that is the same on all ranks: all-reduce it first.
传给 scheduler 的指标在所有 rank 上要相同：先做 all-reduce。

shared_gpu | wasted | convert.md#step-1
Ranks {ranks} use the same GPU.
rank {ranks} 在用同一块显卡。
Call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything uses a GPU.
在使用显卡之前调用 torch.cuda.set_device(int(os.environ['LOCAL_RANK']))。

shared_gpu:memory | wasted | convert.md#step-1
Rank {other} has memory on another rank's GPU.
rank {other} 在别的 rank 的显卡上占了显存。
Call torch.cuda.set_device first; load checkpoints with map_location='cpu'.
先调用 torch.cuda.set_device；加载 checkpoint 时用 map_location='cpu'。

equal_randomness | wasted | convert.md#random
Ranks draw the same random numbers ({name}) where dropout or augmentation use them.
各 rank 的随机数（{name}）完全相同，而 dropout 或数据增强正要用到它们。
Seed each rank differently after the model is built: torch.manual_seed(seed + rank).
建好模型之后，让每个 rank 的种子不同：torch.manual_seed(seed + rank)。

equal_randomness:drawn | note | convert.md#random
Ranks draw the same random numbers ({name}) between steps: batches that are drawn by them are the same.
不同 rank 在两步之间取的随机数（{name}）完全相同：如果 batch 是用它们抽取的，各 rank 的 batch 就是一样的。
Seed each rank differently after the model is built: torch.manual_seed(seed + rank).
建好模型之后，让每个 rank 的种子不同：torch.manual_seed(seed + rank)。

equal_randomness:workers | wasted | convert.md#random
Loader workers of all ranks draw the same random numbers ({name}) for augmentation.
各 rank 的 DataLoader worker 在数据增强里用的随机数（{name}）完全相同。
Seed each rank differently before the loader is iterated: torch.manual_seed(seed + rank).
迭代 DataLoader 之前让每个 rank 的种子不同：torch.manual_seed(seed + rank)。

shared_file | wrong result | convert.md#step-7
Ranks {ranks} all write {path}.
rank {ranks} 都在写同一个文件 {path}。
Write it on rank 0 only: if rank == 0: …
只在 rank 0 上写：if rank == 0: …

wrapped_keys | note | convert.md#resume
A checkpoint has keys that begin with {prefix}: the model without its wrapper cannot load it.
checkpoint 的键带有 {prefix} 前缀，没有包装的模型加载不了。
Save model.module.state_dict() (for torch.compile: model._orig_mod.state_dict()).
保存 model.module.state_dict()；用了 torch.compile 就保存 model._orig_mod.state_dict()。

wrapped_keys:loaded | wrong result | convert.md#resume
A checkpoint was loaded into a model whose names differ from it by module. or _orig_mod.: nothing of it fits.
加载的 checkpoint 与模型的参数名差一个 module. 或 _orig_mod. 前缀：一个都对不上。
Save and load the inner model: model.module.state_dict(), model.module.load_state_dict().
保存和加载都用内层模型：model.module.state_dict()、model.module.load_state_dict()。

wrong_evaluation | wrong result | convert.md#step-6
Evaluation counts {twice} of {count} samples twice.
评估时 {count} 个样本中有 {twice} 个算了两次。
DistributedSampler pads. Evaluate range(rank, len(dataset), world_size) instead, and add up sums and counts.
DistributedSampler 会重复一些样本来补齐。改为每个 rank 评估 range(rank, len(dataset), world_size)，再把各 rank 的累加值和样本数分别相加。

wrong_evaluation:part | wrong result | convert.md#step-6
Evaluation leaves out {missing} of {count} samples.
评估漏掉了 {count} 个样本中的 {missing} 个。
Evaluate without drop_last, and let the shares of all ranks together be the whole set.
评估时不要用 drop_last，并且各 rank 的部分合起来要覆盖整个数据集。

wrong_evaluation:share | wrong result | convert.md#step-6
Each rank evaluates its own share ({share} of {count} on rank 0), and no collective adds them up.
每个 rank 只评估自己的一份（rank 0 是 {count} 个中的 {share} 个），之后没有任何集合通信把结果加起来。
all_reduce the sums and the counts, then divide.
对累加值和样本数做 all_reduce，再相除。

wrong_evaluation:everyone | wasted | convert.md#step-6
Every rank evaluates all {count} samples.
每个 rank 都评估了全部 {count} 个样本。
Let each rank evaluate its share and add up; or evaluate on rank 0 alone.
让每个 rank 评估自己的一份再相加，或者只在 rank 0 上评估。

unequal_buffers | wrong result | convert.md#batchnorm
BatchNorm's statistics differ between ranks {ranks} when they evaluate.
评估时，rank {ranks} 的 BatchNorm 统计量不同。
Broadcast the buffers from rank 0 before the evaluation, or use SyncBatchNorm.
评估之前把 buffer 从 rank 0 广播出去，或者用 SyncBatchNorm。

collective_order | hang ahead | concepts.md#collective-rule
Collective {n} is {mine} on rank {one}, but {theirs} on rank {other}.
第 {n} 次集合通信，rank {one} 是 {mine}，rank {other} 却是 {theirs}。
All ranks must call the same collectives in the same order: move them out of if rank == …
所有 rank 要以同样的顺序调用同样的集合通信：不要放在 if rank == … 里。

collective_order:missing | hang ahead | concepts.md#collective-rule
Rank {one} called {kind} ({place}), which rank {other} never reached.
rank {one} 调用了 {kind}（{place}），rank {other} 一直没有执行到这里。
All ranks must call it: move it out of if rank == …, and let all ranks leave loops together.
所有 rank 都要调用它：不要放在 if rank == … 里，各 rank 要一起退出循环。

collective_order:waits | hang ahead | concepts.md#collective-rule
Ranks stand still in different places: {places}.
各 rank 停在不同的地方：{places}。
Find the collective that one of them has not reached; all ranks must call it.
找出是哪个集合通信有 rank 没有执行到；所有 rank 都要调用它。

collective_order:still | hang ahead | troubleshooting.md#hang-causes
All ranks stand still in this line.
所有 rank 都停在这一行。
If it waits for other ranks, not all have called the same: compare sizes and counts. If not, it waits for disk or network.
如果它在等其他 rank，说明各 rank 的调用不一致，请比较张量大小和调用次数；否则就是在等磁盘或网络。

slow_step | slow | troubleshooting.md#slow-input
Rank {rank} waits {share} % of the time for its DataLoader.
rank {rank} 有 {share} % 的时间在等 DataLoader。
More num_workers, persistent_workers=True; or smaller images on disk.
增加 num_workers，设置 persistent_workers=True；或者预先把图片缩小再存盘。

slow_step:unused | slow | troubleshooting.md#slow-input
find_unused_parameters=True, and every parameter had a gradient in every step.
设置了 find_unused_parameters=True，但每一步所有参数都有梯度。
Leave it out: DDP then does not search the graph in every step.
去掉它，DDP 就不用每一步都遍历计算图。

learning_rate | note | concepts.md#learning-rate
Batch size {size} and learning rate {rate} are both as typed: all ranks together train with {total} a step.
batch size {size} 和学习率 {rate} 都直接用了原值：所有 rank 合起来，每步训练 {total} 个样本。
If they were chosen for one GPU: divide the batch by world_size, or raise the rate with it.
如果它们是为单卡选的：把 batch 除以 world_size，或者按比例提高学习率。
"""  # noqa: E501
WORDS = {}
for _text in TEXTS.strip().split("\n\n"):
    _head, *_lines = _text.splitlines()
    _name, _severity, _page = _head.split(" | ")
    WORDS[_name] = (_severity, _page, *_lines)
REASONS = {
    "alone": ("there is one rank", "只有一个 rank"),
    "epoch": ("needs a second epoch", "需要第二个 epoch"),
    "loader": ("no training from a torch DataLoader was seen", "没有看到用 DataLoader 训练"),
    "optimizer": ("no optimizer step was seen on all ranks", "有的 rank 没有看到优化器更新"),
    "iterable": ("an IterableDataset has no indices", "IterableDataset 没有下标"),
    "files": (
        "equal indices are different samples: files sharded by rank?",
        "同样的下标对应不同的样本，可能是文件按 rank 分片了",
    ),
    "join": ("Join allows unequal steps", "Join 允许步数不同"),
    "machines": ("other ranks are on other machines", "其他 rank 在别的机器上"),
    "steps": ("ranks made different steps", "各 rank 做的优化器步不同"),
    "sharded": ("ranks hold different parts of the model", "各 rank 持有模型的不同部分"),
    "batches": ("needs two batches on each rank", "每个 rank 至少要有两个 batch"),
    "cpu": ("no rank uses a GPU", "没有 rank 用显卡"),
    "evaluation": ("no evaluation came to its end", "没有一次评估完整跑完"),
    "buffers": ("no two ranks evaluated BatchNorm", "评估时用到 BatchNorm 的 rank 不足两个"),
}


# ---- the command ----
class Job:
    """The user's command, with a recorder in each of its Python processes."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.traces = folder / "traces"
        self.traces.mkdir()
        first = folder / "first"
        first.mkdir()

        text = SITECUSTOMIZE.format(
            modules=HOOKED, doctor=os.path.abspath(__file__), folder=str(first)
        )
        (first / "sitecustomize.py").write_text(text)
        paths = [str(first), os.environ.get("PYTHONPATH", "")]
        own = {FOLDER: str(self.traces), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self.process = subprocess.Popen(command, env=os.environ | own, start_new_session=True)
        self.ended = ""  # by what, if not by itself
        self.read = Counter()  # bytes of a trace that were counted
        self.steps = Counter()

    def wait(self, steps: int, seconds: float) -> None:
        start = told = time.monotonic()
        while self.process.poll() is None:
            time.sleep(0.2)
            now = time.monotonic()
            if seconds and now > start + seconds:
                self.ended = "seconds"
                return
            if steps and self.made(steps):
                self.ended = "steps"
                return
            if now > told + 60 and self.idle() > 60:
                told = now
                print("doctor: no step for a minute; Ctrl-C ends it with a verdict", flush=True)

    def made(self, steps: int) -> bool:
        """Whether every process that makes steps has made so many."""
        for path in self.traces.glob("*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self.read[path])
                new = file.read()
            self.read[path] += len(new)
            self.steps[path] += new.count(b'{"e": "step"')
        trained = [count for count in self.steps.values() if count]
        return bool(trained) and min(trained) >= steps

    def idle(self) -> float:
        """Seconds since any process wrote."""
        times = [path.stat().st_mtime for path in self.traces.glob("*.jsonl")]
        return time.time() - max(times, default=time.time())

    def end(self) -> None:
        """Ask, wait, then kill what is left of it, in other sessions too."""
        for number, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
            for pid in self.left():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            limit = time.monotonic() + patience
            while self.left() and time.monotonic() < limit:
                self.process.poll()
                time.sleep(0.1)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(5)

    def left(self) -> list[int]:
        mark = f"{FOLDER}={self.traces}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


PAINT = {"wrong result": 31, "hang ahead": 31, "wasted": 33, "slow": 33, "note": 36}


def shown(finding: Finding, color: bool = False) -> list[str]:
    """A finding as lines of text."""
    title = f"{finding.severity.upper()}  {finding.id}"
    if color:
        title = f"\033[{PAINT[finding.severity]};1m{title}\033[0m"
    at = f"  {short(finding.at)}" if finding.at else ""
    return [title + at, f"  {finding.seen}", f"  -> {finding.advice}", f"     {finding.page}"]


def verdict(report: Report) -> str:
    lines = []
    for finding in report.findings:
        lines += shown(finding, sys.stdout.isatty()) + [""]
    if not report.findings:
        lines += [report.choose("Nothing found.", "没有发现问题。"), ""]
    lines.append(report.choose("Checked: ", "已检查：") + ", ".join(report.checked))
    reasons = defaultdict(list)
    for name, why in report.not_checked.items():
        reasons[why].append(name)
    for why, names in reasons.items():
        lines.append(report.choose("Not checked: ", "未检查：") + f"{', '.join(names)} ({why})")
    return "\n".join(lines)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        usage="doctor.py [options] command ...",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=0, help="end the job when all ranks made them")
    parser.add_argument("--seconds", type=float, default=0, help="end the job after them")
    parser.add_argument("--json", metavar="FILE", help="write the verdict there too")
    parser.add_argument("--lang", choices=["en", "zh"], help="of the verdict; else your locale's")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the usual launch line")
    args = parser.parse_args()
    if not args.command:
        parser.error("no command: type your launch line after it, such as torchrun … train.py")
    if args.steps < 0 or args.seconds < 0:
        parser.error("--steps and --seconds are numbers above 0")
    if args.json and not Path(args.json).absolute().parent.is_dir():
        parser.error(f"--json {args.json}: there is no such folder")
    if not args.lang:
        args.lang = "zh" if str(locale.getlocale()[0]).startswith(("zh", "Chinese")) else "en"
    return args


def fail(line: str) -> None:
    print(f"doctor: error: {line}", file=sys.stderr)
    sys.exit(2)


def main() -> None:
    args = parse_args()
    # These end the job as Ctrl-C does; what nohup or a shell ignores stays ignored.
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ends = [number for number in ends if signal.getsignal(number) != signal.SIG_IGN]
    for number in ends:
        signal.signal(number, signal.default_int_handler)
    print(
        f"doctor: running {' '.join(args.command)}: it really trains, and writes its files",
        flush=True,
    )
    # What the command leaves running may still write there.
    with tempfile.TemporaryDirectory(prefix="doctor-", ignore_cleanup_errors=True) as name:
        try:
            job = Job(args.command, Path(name))
        except OSError as error:
            fail(f"the command cannot be started: {args.command[0]}: {error.strerror}")
        try:
            job.wait(args.steps, args.seconds)
        except KeyboardInterrupt:
            job.ended = "ctrl-c"
        finally:
            for number in ends:
                signal.signal(number, signal.SIG_IGN)  # nothing is to be left behind
            stopped = time.time() if job.ended else float("inf")
            if job.ended or job.process.poll() is None:
                job.end()
        ranks = read_ranks(job.traces, stopped)
        any_trace = any(job.traces.glob("*.jsonl"))
    status = job.process.returncode
    if not any_trace:
        fail(
            f"it ended with status {status}, and no Python process of it has used torch: "
            "PYTHONPATH must reach them, and does not into containers or python -I"
        )
    if not any(rank.passes or rank.steps for rank in ranks):
        fail(f"it ended with status {status} before a loader or an optimizer was used")

    report = Report(args.lang)
    judge(ranks, report)
    by = job.ended or f"status {status}"
    steps = listed([len(rank.steps) for rank in ranks])
    print(f"\ndoctor: ranks {listed(ranks)}; steps {steps}; ended: {by}")
    for rank in ranks:
        error = rank.ended.get("error", "None")
        if error != "None":
            print(f"rank {rank.rank} ended by {error:.200}")
        if rank.stack:
            print(f"rank {rank.rank} stood still at {short(rank.stack)}")
    print("\n" + verdict(report))
    if args.json:
        result = {
            "findings": [describe(finding) for finding in report.findings],
            "checked": report.checked,
            "not_checked": [{"id": name, "why": why} for name, why in report.not_checked.items()],
        }
        Path(args.json).write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    if any(f.severity in SEVERITIES[:2] for f in report.findings):
        sys.exit(1)
    sys.exit(2 if status and not job.ended else 0)


def describe(finding: Finding) -> dict:
    file, line = finding.at or [None, None]
    names = ("id", "severity", "seen", "advice", "page")
    return {name: getattr(finding, name) for name in names} | {"file": file, "line": line}


if __name__ == "__main__":
    main()
