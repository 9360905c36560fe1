OVERLONG=$((256 / 4))
ALGORITHM=(
    algorithm.use_kl_in_reward=False  # none in the reward
)
ACTOR=(
    # the optimizer
    actor_rollout_ref.actor.optim.lr=1e-6
    # the loss
)
REWARD=(
    reward.reward_manager.name=dapo
    ++reward.reward_kwargs.overlong_buffer_cfg.len=${OVERLONG}
)
if [ "${BIG:-0}" = 1 ]; then
    ACTOR+=()
fi
CONFIG=(--config-path=config --config-name='ppo_megatron_trainer.yaml')
LAUNCH=(uv run python3)
UNUSED=(algorithm.adv_estimator=gae)
"${LAUNCH[@]}" -m verl.trainer.main_ppo "${CONFIG[@]}" +algo@_global_=dapo "${ALGORITHM[@]}" "${ACTOR[@]}" \
    "${REWARD[@]}" "${@:2}"
