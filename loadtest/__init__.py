"""Workloads and benchmarks."""
