"""From a module to stage programs."""
