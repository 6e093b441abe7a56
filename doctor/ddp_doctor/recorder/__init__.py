"""Notes what a process of the script does; probes.py lists what it attaches to."""
