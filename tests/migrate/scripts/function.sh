train() {
    local seed=$1
    shift
    torchrun --nproc_per_node=8 -m verl.trainer.main_ppo +algo=grpo data.seed=$seed "$@"
}
train 1 actor_rollout_ref.actor.ppo_epochs=2 data.train_batch_size=64
train 2 algorithm.adv_estimator=rloo
