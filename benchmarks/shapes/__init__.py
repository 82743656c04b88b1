"""What new shapes cost in time, and many shapes in memory. `python -m benchmarks.shapes --help`"""
