"""A small emulated cluster on one Linux machine: for tests and benchmarks that need slow links and unequal devices."""
