"""Published planners, to compare with: each knows what its authors gave it, and the one simulator judges the result."""
