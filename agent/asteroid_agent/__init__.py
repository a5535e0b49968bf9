"""One device: a light supervisor and the worker that trains a stage."""
