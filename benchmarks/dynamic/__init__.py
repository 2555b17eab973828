"""Programs whose sizes change from call to call: generation, padded batches, images, graphs, ragged rows.

`python -m benchmarks.dynamic [NAME ...]` measures them. Models of single sizes are measured by `benchmarks.cpu`.
"""
