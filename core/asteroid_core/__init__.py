"""What agents and coordinator agree on: plan, schedule, messages, topics and the tensor link."""

__version__ = "0.1.0"
PROTOCOL = 1
"""Wire protocol version of this release; an agent of another one is refused with a sentence."""
