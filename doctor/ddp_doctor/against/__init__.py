"""Is it the same training on one process and on several? (doctor --against)

runs.py reads back what recorder/ has noted in the processes of both, and comparison.py says where
they part.
"""
