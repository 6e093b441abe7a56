"""The three stores as what they are, tables of keys and values: set, get, add, wait.

python docs/examples/handbook/group_stores.py
"""

import tempfile
from datetime import timedelta

import torch.distributed as dist


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores = [
            dist.HashStore(),  # in the memory of this process: for its threads and for tests
            dist.FileStore(f"{folder}/store", 1),  # a file that all processes can lock
            dist.TCPStore("127.0.0.1", 0, is_master=True),  # a server, here on a free port
        ]
        for store in stores:
            name = type(store).__name__
            store.set("address/0", "here")
            tickets = [store.add("tickets", 1) for _ in range(3)]  # atomic: nobody gets one twice
            old = store.compare_set("address/0", "here", "there")
            print(f"{name}: get gives {store.get('address/0')}, compare_set gave {old}, {tickets=}")
            print(f"{name}: check {store.check(['address/0'])} and {store.check(['address/1'])}")
            try:
                store.wait(["address/1"], timedelta(milliseconds=200))  # get() waits as well
            except RuntimeError as error:  # DistStoreError is one
                print(f"{name}: nobody writes address/1: {type(error).__name__}")
            inside = dist.PrefixStore("job 7", store)  # the same table, another corner of it
            inside.set("address/0", "elsewhere")
            print(
                f"{name}: with a prefix {inside.get('address/0')}, without {store.get('address/0')}"
            )


if __name__ == "__main__":
    main()
