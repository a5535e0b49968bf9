"""The light process of a device: telemetry, last will, worker processes."""
