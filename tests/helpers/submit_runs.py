"""Submit runs to a cluster, two at once, to be killed. Arguments: address, folder, runs as JSON."""

import json
import sys
from pathlib import Path
from unittest.mock import Mock

from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.ablation.grid import GridRun
from grpo_verl_ext.ablation.ray_jobs import connected
from grpo_verl_ext.ablation.run import go
from grpo_verl_ext.runs.verl_run import VerlRun

address, folder, runs = sys.argv[1:]
usual = {"base": [], "axes": {"x": {"x": []}}, "seeds": [1], "baseline": ["x"], "metrics": ["score"]}
go(
    GridSettings(folder=folder, steps=2, **usual),
    [GridRun("x", 1, "x/seed-1", VerlRun(Path(at), overrides, 2)) for at, overrides in json.loads(runs)],
    Mock(),
    cluster=connected(address, 2, print),
)
