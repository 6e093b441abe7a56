"""Is it the same training on one process and on several? (doctor --against)

record.py runs in the processes of the script, and notes more there; runs.py reads that back, and
comparison.py says where two runs part.
"""
