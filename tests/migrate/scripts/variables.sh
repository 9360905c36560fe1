SIZES="data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16"
LOSS="algorithm.adv_estimator=grpo \
    actor_rollout_ref.actor.kl_loss_coef=$KL \
    actor_rollout_ref.actor.use_kl_loss=False"
CMD="python3 -m verl.trainer.main_ppo trainer.v1.trainer_mode=sync"
if [ -n "$TWICE" ]; then
    $CMD $SIZES $LOSS $EXTRA trainer.nnodes=2
fi
$CMD $SIZES $LOSS ~actor_rollout_ref.actor.entropy_coeff
