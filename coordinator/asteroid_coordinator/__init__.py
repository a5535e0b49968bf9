"""Model import, planning, job control and the command line."""
