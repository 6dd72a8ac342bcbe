"""What a launch costs, measured beside the least that could be done by hand: `make bench`.

Contenders run interleaved in one real kernel and one run; medians are compared, as ratios. On a
machine that does other work the numbers mean nothing.
"""
