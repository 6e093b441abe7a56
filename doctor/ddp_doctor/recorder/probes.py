"""All that the recorder attaches to: what a line names is changed, and tells what happens.

Each is attached by itself. If one is missing in some torch, or fails, only those checks stay undone
that name it among their needs.
"""

from functools import partial

from . import (
    collectives,
    divisors,
    ending,
    loaders,
    results,
    seeds,
    training,
    unset,
    window,
    written,
)
from .hooks import Probe

DDP = "torch.nn.parallel.DistributedDataParallel"
LOADER = "torch.utils.data.DataLoader"
ITERATOR = "torch.utils.data.dataloader._BaseDataLoaderIter"
OPTIMIZER = "torch.optim.optimizer"

PROBES = (
    Probe("rank", "torch.distributed.distributed_c10d.init_process_group",
          after=collectives.note_rank, also="torch.distributed.init_process_group"),
    Probe("collectives", "torch.distributed.ProcessGroup", attach=collectives.attach),
    Probe("collectives", "torch.distributed._functional_collectives",
          attach=collectives.attach_functional),
    Probe("join", "torch.distributed.algorithms.join.Join.__enter__", collectives.note_join),
    Probe("lost", "torch.overrides._get_current_function_mode_stack",
          attach=collectives.follow_losses),
    Probe("loader_made", f"{LOADER}.__init__", after=loaders.data.made),
    Probe("pass", f"{LOADER}.__iter__", loaders.data.before_pass, loaders.data.new_pass),
    Probe("batch", f"{ITERATOR}.__next__", attach=loaders.follow),
    Probe("indices", f"{ITERATOR}._next_index", after=loaders.data.drew),
    Probe("worker", "multiprocessing.process.BaseProcess.__init__", after=loaders.data.new_process),
    Probe("items", "torch.utils.data._utils.fetch._MapDatasetFetcher.fetch",
          loaders.data.before_fetch, loaders.data.after_fetch),
    Probe("stream", "torch.utils.data._utils.fetch._IterableDatasetFetcher.fetch",
          loaders.data.before_fetch, loaders.data.after_fetch),
    Probe("backward", "torch.autograd.backward", window.backward),
    Probe("emptied", "torch.autograd.backward",
          training.training.before_backward, training.training.after_backward),
    Probe("divisors", "torch.autograd.backward", divisors.before_backward),
    Probe("gradients", f"{OPTIMIZER}.register_optimizer_step_pre_hook",
          attach=training.before_every_step),
    Probe("step", f"{OPTIMIZER}.register_optimizer_step_post_hook",
          attach=training.after_every_step),
    Probe("optimizer_made", f"{OPTIMIZER}.Optimizer.__init__",
          after=training.training.new_optimizer),
    Probe("restore", f"{OPTIMIZER}.Optimizer.load_state_dict", after=training.training.restored),
    Probe("scheduler", "torch.optim.lr_scheduler.LRScheduler.__init__",
          after=training.training.new_scheduler),
    Probe("scheduler", "torch.optim.lr_scheduler.ReduceLROnPlateau.__init__",  # it calls no other
          after=training.training.new_scheduler),
    Probe("scale", "torch.amp.GradScaler.scale", training.training.scale),
    Probe("unscale", "torch.amp.GradScaler.unscale_", training.training.unscale,
          training.training.after_change),
    Probe("clip", "torch.nn.utils", attach=training.watch_clips),
    Probe("wrap", f"{DDP}.__init__", after=training.training.wrap),
    Probe("forward", f"{DDP}.forward", attach=training.watch_forward),
    Probe("no_sync", f"{DDP}.no_sync", attach=training.watch_no_sync),
    Probe("to_empty", "torch.nn.Module.to_empty", unset.unset.before, unset.unset.after),
    Probe("seed", "torch.random.manual_seed", partial(seeds.seeds.seeded, "torch"),
          also="torch.manual_seed"),
    Probe("seed", "random.seed", partial(seeds.seeds.seeded, "random")),
    Probe("save", "torch.serialization.save", written.saved, also="torch.save"),
    Probe("load", "torch.nn.Module.load_state_dict", after=written.loaded),
    Probe("files", "sys.addaudithook", attach=written.watch),
    Probe("printed", "sys.stdout", attach=results.watch_output),
    Probe("exit", "atexit.register", attach=ending.watch),
)  # fmt: skip
OF_NUMPY = (Probe("seed", "numpy.random.seed", partial(seeds.seeds.seeded, "numpy")),)
OF_SAFETENSORS = (Probe("safetensors", "safetensors", attach=written.watch_safetensors),)
# Modules that may be imported before torch, or after it.
BESIDE = {"numpy.random": OF_NUMPY, "safetensors": OF_SAFETENSORS}
OF_HOROVOD = (Probe("horovod", "horovod.torch", attach=collectives.attach_to_horovod),)
OF_FSDP = (
    Probe("to_empty", "torch.distributed.fsdp.fully_shard", unset.unset.before_sharding),
    Probe("held", "torch.distributed.fsdp.FSDPModule.set_requires_gradient_sync",
          after=window.window.switched),
)  # fmt: skip
# Where two runs are compared.
OF_TWO = (
    Probe("checkpoint", "torch.serialization.save", results.saved, also="torch.save"),
    Probe("autocast", "torch.amp.autocast_mode.autocast.__enter__", after=results.note_autocast),
)
