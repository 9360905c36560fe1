"""Commands, keys and names that left the package, and what to use; the key's last part where it is ours."""

LEFT = {
    "migrate": "GRPO_VERL_EXT_CHECK=1 bash run.sh +algo@_global_=NAME, and docs/migration.md",
    "anatomy": "python examples/anatomy.py",
    "completion": "grpo-verl-ext show NAME",
    "gvpo_distill": "pip install -e FOLDER, its folder in examples of a checkout",
    **dict.fromkeys(("reproduce", "right_above"), "the metrics.parquet of a report of ablate"),
    **dict.fromkeys(("smollm2", "smollm2_max", "reasoning_gym", "gsm8k_tags"), "examples/tasks"),
    **dict.fromkeys(("reward_models", "step_reward_model"), "algorithm.grpo_ext.reward_model"),
    **dict.fromkeys(
        ("url", "token_env", "timeout", "retries", "reward_model.served"), "reward.reward_model.enable=true"
    ),
    "old_log_probs": "algorithm.rollout_correction.bypass_mode=true, with log_probs in the data",
    "rewarded_responses": "commit bdd44b57",
}
