"""Metrics, baselines, ablations and reports."""
