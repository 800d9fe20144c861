"""Turns `InferenceBenchmark` resources into runner pods, and what the runners report into status and metrics."""
