"""Submit runs to a cluster, two at once, to be killed. Arguments: address, folder, runs as JSON."""

import json
import sys
from pathlib import Path

from kill_grid import Silent

from grpo_verl_ext.ablation.grid import GridRun
from grpo_verl_ext.ablation.ray_jobs import connected
from grpo_verl_ext.ablation.run import go
from grpo_verl_ext.runs.verl_run import VerlRun

address, folder, runs = sys.argv[1:]
go(
    Path(folder),
    [GridRun("x", 1, VerlRun(Path(at), overrides, 2)) for at, overrides in json.loads(runs)],
    Silent(),
    retry_failed=False,
    cluster=connected(address, 2, print),
)
