"""From profiles to a plan; pure."""
