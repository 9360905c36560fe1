"""Run rounds with a stand-in for verl's trainer, to be killed.

A training on verl takes minutes, and its sampling depends on the machine's load. The stand-in writes the same
rollouts slowly, from the seed alone.
"""

import json
import random
import time
from typing import Any

import torch
from omegaconf import OmegaConf

from grpo_verl_ext.iterate.rounds import PARTS, run_rounds
from grpo_verl_ext.iterate.settings import IterateSettings, PolicySettings, RewardModelSettings, Round
from grpo_verl_ext.utils.files import write_whole

RIGHT = "!+*&"
ENDS = {1: "!?", 2: RIGHT + "?.,;"}
"""How responses end, by round."""


def train_policy(this: Round, *_: object) -> dict[str, Any]:
    """A file of rollouts a step; steps that are there are not made again, as after a checkpoint.

    The policy of each round errs in a way of its own.
    """
    rollouts = this.run().rollouts
    rollouts.mkdir(parents=True, exist_ok=True)
    for step in range(1, this.settings.policy.steps + 1):
        file = rollouts / f"{step}.jsonl"
        if not file.exists():
            time.sleep(0.3)
            rng = random.Random(f"{this.seed}/{step}")
            rows = [
                {
                    "input": f"user\n{rng.randrange(20)}\n",
                    "output": word + rng.choice(ENDS[this.number]),
                    "gts": "0",
                    "score": 0.0,
                    "step": step,
                    "uid": "prompt_0_0",
                }
                for word in ("".join(rng.choices("abcdef", k=4)) for _ in range(64))
            ]
            write_whole(file, "".join(json.dumps(row) + "\n" for row in rows))
    return {"steps": step}


def main(folder: str, policy: str) -> None:
    """Run two of them in ``folder`` from this policy, and print each part that begins."""
    # The order of sums, and with it the reward model, shall not depend on the load.
    torch.set_num_threads(1)
    settings = IterateSettings(
        folder=folder,
        rounds=2,
        seed=1,
        policy=PolicySettings(overrides=[], steps=3),
        reward_model=RewardModelSettings(
            label="", held_out=0.2, trainer={"learning_rate": 3e-3, "max_steps": 60, "disable_tqdm": True}
        ),
    )
    config = OmegaConf.create({"actor_rollout_ref": {"model": {"path": policy}}})
    PARTS["policy"] = train_policy
    run_rounds(settings, config, lambda response, truth: response[-1] in RIGHT)
