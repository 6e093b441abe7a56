"""What the worker processes of tools do beside their work."""

import os
import threading
import time


def end_with_parent() -> None:
    """In a worker process: end it soon after its parent, also one that was killed. On its own it
    would wait for work for ever, as all workers hold both ends of the queue."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
