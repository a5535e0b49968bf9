"""Devices, clusters and models that need not be there: enough to plan and simulate without measuring anything."""
