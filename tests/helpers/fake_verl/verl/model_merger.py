"""Stand-in for verl's merger: an empty file in the target; with FAKE_WAIT=merge it waits before it."""

import os
import sys
import time
from pathlib import Path

if os.environ.get("FAKE_WAIT") == "merge":
    Path(os.environ["FAKE_WAITS"]).touch()
    time.sleep(300)
target = Path(sys.argv[sys.argv.index("--target_dir") + 1])
target.mkdir(exist_ok=True)
(target / "model.safetensors").touch()
