"""Benchmarks: scripts that run their contestants in turn and print ratios; nothing imports them."""
