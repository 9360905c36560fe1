"""Try what of this package works with each version of verl, and write docs/verl_versions.md.

``python tests/contract/versions.py CHECKOUT`` needs the network, and a clone of verl's main: each verl is
installed into a folder that goes away again, which is first on the path of a process that tries the cells.
``… versions.py 0.8.0`` prints the cells of one version, and ``… versions.py --here`` those of the verl that
is on the path.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "verl_versions.md"
VERSIONS = ("0.7.1", "0.8.0", "0.9.0", "0.9.1")
MODULES = {"VERL_USE_EXTERNAL_MODULES": "grpo_verl_ext.plugin"}
TRAINING = (
    *("actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=8", "data.train_batch_size=32"),
    *("actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_mini_batch_size=32"),
    *("actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=true", "trainer.logger=[console]"),
    *("actor_rollout_ref.ref.log_prob_use_dynamic_bsz=true", "trainer.n_gpus_per_node=1"),
    "critic.use_dynamic_bsz=true",
)
"""A training that nothing is wrong with but for its files, which are not looked for."""
FEATURES = {
    "GVPO": ("+algo=gvpo",),
    "process supervision": ("+algo=grpo_process",),
    "several rewards (GDPO)": ("+algo=gdpo", "++algorithm.gdpo_reward_keys=[a,b]"),
    "losses with a statistic of the mini-batch": ("+algo=kl_cov",),
    "dynamic sampling": ("+algo=dapo",),
    "stored responses": ("+algo=gvpo", "++algorithm.grpo_ext.stored_responses.files=[a.parquet]"),
    "refresh of the reference": ("+algo=grpo", "++algorithm.grpo_ext.ref_model_sync_steps=4"),
    "CPU platform": ("+algo=grpo", "+platform=cpu"),
}
"""What needs the upper tier → how a training asks for it."""


def tier() -> str:
    from grpo_verl_ext.utils.which_verl import which_verl

    return "presets, estimators, losses of tokens" if which_verl().has_losses_only else "all"


def loading() -> str:
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY

    loaded = "dr_grpo" in POLICY_LOSS_REGISTRY
    named = "VERL_USE_EXTERNAL_MODULES" in os.environ
    return ("`VERL_USE_EXTERNAL_MODULES`" if named else "by itself") if loaded else "no"


def contract() -> str:
    from grpo_verl_ext.doctor.known_verl import known_verl

    known = known_verl()
    return f"{known.seams - len({each.moved for each in known.broken})} of {known.seams}"


def estimators() -> str:
    """Of six responses through verl's own function: the group-relative one by hand, the others finite."""
    import numpy as np
    import torch
    from verl import DataProto
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn
    from verl.trainer.ppo.ray_trainer import compute_advantage

    from grpo_verl_ext.catalogue import ESTIMATORS
    from grpo_verl_ext.verl_plugin.algorithms import is_of

    rewards, prompts = (1.0, 0.0, 1.0, 0.0, 0.0, 3.0), [*"aaaabb"]
    by_hand = torch.tensor([0.5, -0.5, 0.5, -0.5, -1.5, 1.5])  # the reward minus its group's mean
    alone = [
        record
        for record in ESTIMATORS.values()
        if not (record.needs_steps or record.several_rewards or record.needs_teacher)
    ]
    for record in alone:
        data = DataProto.from_single_dict(
            {
                "token_level_rewards": torch.tensor(rewards).unsqueeze(-1),
                "response_mask": torch.ones(6, 1, dtype=torch.int64),
                "uid": np.array(prompts, dtype=object),
            }
        )
        assert is_of(get_adv_estimator_fn(record.name), record), record.name
        config = {"grpo_ext": {}}
        found = compute_advantage(data=data, adv_estimator=record.name, config=config).batch["advantages"]
        assert found.isfinite().all(), record.name
        if record.name == "dr_grpo":
            torch.testing.assert_close(found.squeeze(-1), by_hand)
    return str(len(alone))


def losses() -> str:
    from grpo_verl_ext.proof.invariance import OUR_CASES, PRESET_CASES, measure

    cases = (*OUR_CASES, *PRESET_CASES)
    worst = dict[str, float]()
    for each in measure(cases):
        assert each.passed, each
        if each.verdict == "invariant":
            worst[each.dtype] = max(worst.get(each.dtype, 0.0), each.error)
    return f"{len(cases)}: {worst['float64']:.1e}, {worst['float32']:.1e}"


def presets() -> str:
    from grpo_verl_ext.catalogue import PRESETS

    passed, refused = list[str](), list[str]()
    for name in PRESETS:
        checks = _errors(f"+algo={name}") - {"teacher", "reported-steps", "reported-rewards"}  # a user's
        assert checks <= {"tier", "verls-aggregation"}, (name, checks)
        (refused if checks else passed).append(name)
    without = f"; refused: {', '.join(f'`{name}`' for name in refused)}" if refused else ""
    return f"{len(passed)} of {len(PRESETS)}{without}"


def _errors(*words: str) -> set[str]:
    """Names of the checks that refuse a training."""
    from grpo_verl_ext import preflight
    from grpo_verl_ext.utils.errors import Severity
    from grpo_verl_ext.verl_plugin.compose import composed

    found = preflight.findings(composed([*words, *TRAINING]))
    return {each.check for each in found if each.severity is Severity.ERROR}


def command_line(module: str) -> str:
    """Compose a preset by verl's own program; on the lower tier, see it refuse GVPO before Ray starts."""
    from grpo_verl_ext.utils.which_verl import which_verl

    def started(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", module, *words, *TRAINING]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    shown = started("--cfg", "job", "+algo=dr_grpo")
    if "No module named" in shown.stderr:
        return "–"
    assert "loss_mode: dr_grpo" in shown.stdout, shown.stderr
    if not which_verl().has_losses_only:
        return "`+algo=…`"
    refused = started("+algo=gvpo")
    assert refused.returncode == 1, refused.stderr
    assert "loss_mode is gvpo, but verl" in refused.stderr, refused.stderr
    assert "Started a local Ray" not in refused.stderr, refused.stderr
    return "`+algo=…`; `+algo=gvpo` refused before Ray starts"


def main_ppo() -> str:
    return command_line("verl.trainer.main_ppo")


def main_ppo_sync() -> str:
    return command_line("verl.trainer.main_ppo_sync")


def anatomy() -> str:
    """Weights from a dump that this verl's own trainer writes."""
    from pkgutil import resolve_name

    from grpo_verl_ext.anatomy.dump import read_steps
    from grpo_verl_ext.anatomy.weights import COMPARED_ALGORITHMS, StepResponses, token_weights
    from grpo_verl_ext.verl_plugin import tier as of_verl

    older = of_verl.has_losses_only()
    module = "verl.trainer.main_ppo_sync" if older else "verl.trainer.ppo.v1.trainer_base"
    trainer: Any = resolve_name(f"{module}:PPOTrainer")
    keys = [f"{prompt}_{session}_0" for prompt in "ab" for session in range(2)]
    texts, scores = ["p"] * 4, [1.0, 0.0, 0.0, 1.0]
    with TemporaryDirectory() as folder:
        trainer._write_generations(texts, texts, [None] * 4, scores, {"uid": keys}, folder, 1)
        (responses,) = read_steps(Path(folder))
    step = StepResponses.of(
        [each.score for each in responses], [2, 4, 3, 3], [each.prompt_id for each in responses]
    )
    assert all(token_weights(name, step, 4).isfinite().all() for name in COMPARED_ALGORITHMS)
    return str(len(COMPARED_ALGORITHMS))


def updates() -> str:
    """Two updates by verl's FSDP2 worker, one rank against two."""
    import two_updates

    with TemporaryDirectory() as folder:
        found = two_updates.differences(folder)
    assert max(found.values()) <= 1e-12, found
    return f"{len(found)}: {max(found.values()):.1e}"


def features() -> str:
    """Say what the checks do with all of `FEATURES`, one by one where they differ."""
    found = {
        name: "refused by name" if "tier" in _errors(*words) else "accepted"
        for name, words in FEATURES.items()
    }
    if len(set(found.values())) == 1:
        return found["GVPO"]
    return "; ".join(f"{name} {said}" for name, said in found.items())


CELLS: dict[str, Callable[[], str]] = {
    "What works": tier,
    "Loads the plugin": loading,
    "Seams of the [contract](../tests/contract/README.md) that hold": contract,
    "Presets on the command line of `main_ppo`": main_ppo,
    "The same, `main_ppo_sync`": main_ppo_sync,
    "Presets that the checks pass": presets,
    "Estimators through verl's `compute_advantage`": estimators,
    "Losses: largest error by `grpo-verl-ext invariance` in float64, float32": losses,
    "Losses: largest error after two updates by verl's FSDP2 worker, one CPU rank against two": updates,
    "Algorithms of `grpo-verl-ext anatomy`, from a dump by that verl": anatomy,
    ", ".join(FEATURES): features,
}


def tried() -> Iterator[tuple[str, str]]:
    """Try all cells with the verl that is on the path; "refused" where the whole package refuses it."""
    from grpo_verl_ext.utils.which_verl import UnsupportedVerlError, which_verl

    try:
        which_verl()
    except UnsupportedVerlError:
        yield from dict.fromkeys(CELLS, "refused").items()
        return
    for name, attempt in CELLS.items():
        found = attempt()
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        yield name, found


def cells(verl: str) -> dict[str, str]:
    """Install a version of verl, or a checkout, into a folder, and try all cells with it."""
    print(f"verl {verl}", file=sys.stderr, flush=True)
    requirement = str(Path(verl).resolve()) if is_checkout(verl) else f"verl=={verl}"
    has_no_loader = not is_checkout(verl) and verl < "0.9"
    with TemporaryDirectory() as folder:
        install = ["-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, requirement]
        subprocess.run([sys.executable, *install], check=True)
        old = {key: value for key, value in os.environ.items() if key not in MODULES}
        environment = {**old, "PYTHONPATH": f"{folder}:{ROOT}", **(MODULES if has_no_loader else {})}
        command = [sys.executable, __file__, "--here"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))  # ranks print, too


def is_checkout(verl: str) -> bool:
    return Path(verl).is_dir()


def title(verl: str) -> str:
    """Return the head of its column; a checkout's has commit and date."""
    if not is_checkout(verl):
        return f"verl {verl}"
    log = ["git", "-C", verl, "log", "-1", "--format=%h, %cs"]
    return f"main ({subprocess.check_output(log, text=True).strip()})"


def page(table: dict[str, dict[str, str]]) -> str:
    """Return the page; the table has a column's cells by its head."""
    head = f"| | {' | '.join(table)} |\n|{'---|' * (len(table) + 1)}\n"
    rows = "".join(f"| {name} | {' | '.join(found[name] for found in table.values())} |\n" for name in CELLS)
    return INTRODUCTION + head + rows + DETAILS


INTRODUCTION = """# Versions of verl

What works with which verl, for people who do not have the newest. Each cell was run by the script that
writes this page:

```
python tests/contract/versions.py verl    # needs the network; verl is a clone of verl's main
```

"""
DETAILS = """
0.7 is refused: unless `trainer.use_legacy_worker_impl=disable` is given, its trainer takes workers that
tell a loss no counts of the mini-batch, so that the loss would depend on micro-batches and ranks.

## With verl 0.8

verl 0.8 looks for no plugins. Name this one where the training starts; the driver passes it on to Ray's
workers:

```
VERL_USE_EXTERNAL_MODULES=grpo_verl_ext.plugin \\
    python3 -m verl.trainer.main_ppo +algo=dr_grpo data.train_files=… …    # needs GPUs
```

What is refused by name is refused before Ray starts, with the key, its value and the version to install. So
are `rule_and_model` rewards, this package's agent loops, `ablate`, `iterate` and
`actor_rollout_ref.rollout.seed`: with `+task=…` add `~actor_rollout_ref.rollout.seed`. `dapo` and `cispo`
train with `algorithm.filter_groups.enable=false`. The loss `gspo` of verl before 0.9.1 does not average as
`luspo` does. `grpo-verl-ext anatomy` reads the rollouts of `main_ppo_sync` alone.

No whole training was run with verl 0.8, which has no CPU platform, and needs vLLM 0.12 or older.
"""

if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        with redirect_stdout(sys.stderr):
            found_here = dict(tried())
        print(json.dumps(found_here))
    elif len(sys.argv) == 2 and not is_checkout(sys.argv[1]):
        print(json.dumps(cells(sys.argv[1]), indent=2))
    else:
        tried_with = {title(verl): cells(verl) for verl in (*VERSIONS, *sys.argv[1:])}
        PAGE.write_text(page(tried_with), encoding="utf-8")
