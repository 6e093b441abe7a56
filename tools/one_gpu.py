"""Two or more ranks on one GPU, over nccl: to try a distributed script where there is only one.

    NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=1 \
        torchrun --standalone --nproc-per-node 2 tools/one_gpu.py SCRIPT ...

Needs nccl 2.30, which PyTorch 2.15 brings. The ranks take turns on the GPU, so a run shows what is
computed, and not how fast. It helps a script that takes its GPU from LOCAL_RANK only.
"""

import os
import runpy
import sys
from pathlib import Path

if len(sys.argv) < 2:
    sys.exit("error: which script? torchrun --nproc-per-node 2 tools/one_gpu.py train.py ...")
if not Path(sys.argv[1]).is_file():
    sys.exit(f"error: there is no script {sys.argv[1]}")
os.environ["LOCAL_RANK"] = "0"
del sys.argv[0]
sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
runpy.run_path(sys.argv[0], run_name="__main__")
