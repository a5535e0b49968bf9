"""A whole cluster in one thread and in virtual time: workers, supervisors, coordinator, broker, and what goes wrong."""
