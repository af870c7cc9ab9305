"""Speed and memory beside the peers that are installed: `python -m benchmarks.run`, or `tilefold bench`."""
