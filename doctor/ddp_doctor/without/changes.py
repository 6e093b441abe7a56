"""All that --without changes, as recorder/probes.py lists what is only recorded."""

from ..recorder.hooks import Probe
from ..recorder.probes import ITERATOR
from . import draws, layers, order, rounding

CHANGES = (
    Probe("shuffling", f"{ITERATOR}._next_index", attach=order.replaying),
    Probe("batchnorm", "torch.nn", attach=layers.batchnorm),
    Probe("dropout", "torch.nn.functional", attach=layers.dropout),
    Probe("draws", "torch.utils.data.dataloader", attach=draws.watch),
    Probe("draws", "torch.autograd.backward", attach=draws.watch_backward),
    Probe("draws", "torch.autograd._engine_run_backward", attach=draws.watch_engine),
    Probe(
        "draws",
        "torch.optim.optimizer.register_optimizer_step_post_hook",
        attach=draws.after_every_step,
    ),
    Probe("draws", "torch.optim.optimizer.Optimizer.__init__", after=draws.new_optimizer),
    Probe("rounding", "torch", attach=rounding.rounding),
)
OF_FSDP = (Probe("rounding", "torch.distributed.fsdp", attach=rounding.policies),)
