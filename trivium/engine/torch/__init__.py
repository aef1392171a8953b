"""The torch engine; the only place that knows torch.

OpenMP reads its settings when torch is first imported. Its threads spin while they wait, which starves them on a busy
machine: two threads on two cores at a load of 7 gave 2 to 3 times the tokens a second without spinning.

torch's allocator reads its settings then too. Segments that grow leave few gaps where stages change the shapes of rows.
"""

import os
import sys

from trivium.cores import available_cores

if "torch" not in sys.modules:
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("OMP_NUM_THREADS", str(available_cores()))
    if sys.platform == "linux" and not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
