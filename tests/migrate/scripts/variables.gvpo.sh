SIZES="data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=16"
LOSS=""
CMD="python3 -m verl.trainer.main_ppo +algo@_global_=gvpo"
if [ -n "$TWICE" ]; then
    $CMD $SIZES $LOSS $EXTRA trainer.nnodes=2
fi
$CMD $SIZES $LOSS
