"""All that --without changes, as recorder/probes.py lists what is only recorded."""

from ..recorder.hooks import Probe
from ..recorder.probes import ITERATOR
from . import draws, faint, growth, layers, order, rounding

STEP = "torch.optim.optimizer.register_optimizer_step"
CHANGES = (
    Probe("shuffling", f"{ITERATOR}._next_index", attach=order.replaying),
    Probe("batchnorm", "torch.nn", attach=layers.batchnorm),
    Probe("dropout", "torch.nn.functional", attach=layers.dropout),
    Probe("draws", "torch.utils.data.dataloader", attach=draws.watch),
    Probe("draws", "torch.autograd.backward", attach=draws.watch_backward),
    Probe("draws", "torch.autograd._engine_run_backward", attach=draws.watch_engine),
    Probe("draws", f"{STEP}_post_hook", attach=draws.after_every_step),
    Probe("draws", "torch.optim.optimizer.Optimizer.__init__", after=draws.new_optimizer),
    Probe("rounding", "torch", attach=rounding.rounding),
    # Behind the recorder's own hooks, which note gradients as they were.
    Probe("rounding", f"{STEP}_pre_hook", attach=faint.before_every_step),
    Probe("rounding", f"{STEP}_post_hook", attach=faint.after_every_step),
    Probe("growth", f"{STEP}_pre_hook", attach=growth.before_every_step),
    Probe("growth", f"{STEP}_post_hook", attach=growth.after_every_step),
)
OF_FSDP = (Probe("rounding", "torch.distributed.fsdp", attach=rounding.policies),)
