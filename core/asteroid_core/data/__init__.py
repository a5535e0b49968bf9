"""Data sets, and which samples each micro-batch has; here in core because they may lie on a device."""

from asteroid_core.data.feeder import FeedPlan, MicroBatch, Normaliser, Split
from asteroid_core.data.opening import open_source
from asteroid_core.data.source import Field, Source

__all__ = ["FeedPlan", "Field", "MicroBatch", "Normaliser", "Source", "Split", "open_source"]
