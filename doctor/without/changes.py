"""All that --without changes, as recorder/probes.py lists what is only recorded."""

from ..recorder.hooks import Probe
from . import layers, order, rounding

CHANGES = (
    Probe("shuffling", "torch.utils.data.DistributedSampler.__iter__", attach=order.shuffling),
    Probe("batchnorm", "torch.nn", attach=layers.batchnorm),
    Probe("dropout", "torch.nn.functional", attach=layers.dropout),
    Probe("rounding", "torch", attach=rounding.rounding),
)
