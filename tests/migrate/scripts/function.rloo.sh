train() {
    local seed=$1
    shift
    torchrun --nproc_per_node=8 -m verl.trainer.main_ppo +algo@_global_=rloo data.seed=$seed "$@"
}
train 1 data.train_batch_size=64
train 2
