OVERLONG=$((256 / 4))
ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.use_kl_in_reward=False  # none in the reward
)
ACTOR=(
    # the optimizer
    actor_rollout_ref.actor.optim.lr=1e-6
    # the loss
    actor_rollout_ref.actor.loss_agg_mode="seq-mean-token-mean"
    "actor_rollout_ref.actor.entropy_coeff=0.001"
)
REWARD=(
    reward.reward_manager.name=dapo
    +reward.reward_kwargs.overlong_buffer_cfg.len=${OVERLONG}
    +reward.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5
)
if [ "${BIG:-0}" = 1 ]; then
    ACTOR+=(actor_rollout_ref.actor.clip_ratio_high=0.3)
fi
CONFIG=(--config-path=config --config-name='ppo_megatron_trainer.yaml')
LAUNCH=(uv run python3)
UNUSED=(algorithm.adv_estimator=gae)
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${CONFIG[@]}" "${ALGORITHM[@]}" "${ACTOR[@]}" \
    "${REWARD[@]}" "${@:2}"
