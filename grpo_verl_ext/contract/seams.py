"""What we rely on in verl and our own sources do not show; `derived` has the rest.

A piece of verl's source (`Has`), or an order of its calls (`InOrder`), is listed only where its change would
raise nothing; the comment above it says what would go wrong. Other lines are of objects whose class our
sources do not name, and of what verl does with ours.
"""

from grpo_verl_ext.contract.derived import CONFIGURATION, derived, merged
from grpo_verl_ext.contract.reliances import (
    ANY_MORE,
    Called,
    Derived,
    Hands,
    Has,
    InOrder,
    Keys,
    Members,
    Name,
    Overridden,
    Reliance,
    Replaced,
    Seam,
)
from grpo_verl_ext.contract.verl_sources import Sources

_VLLM_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server.vLLMHttpServer"
CORE = "verl.trainer.ppo.core_algos"
TRAINER = "verl.trainer.ppo.v1.trainer_base.PPOTrainer"
_TRAINING_WORKER = "verl.workers.engine_workers.TrainingWorker"
_ACTOR_WORKER = "verl.workers.engine_workers.ActorRolloutRefWorker"
ENGINE = "verl.workers.engine.fsdp.transformer_impl.FSDPEngine"
AGENT_LOOP = "verl.experimental.agent_loop"
_REWARD_LOOP = "verl.experimental.reward_loop"
LOSS = "verl.workers.utils.losses.ppo_loss"
_SEPARATE = "verl.trainer.ppo.v1.trainer_separate_async.PPOTrainerSeparateAsync"
_BALANCING = "verl.utils.seqlen_balancing"
_PADDING = "verl.workers.utils.padding"
ROWS = "verl.utils.tensordict_utils"
_PLATFORM = "verl.plugin.platform"
MAIN = "verl.trainer.main_ppo"
_AGENT_LOOP_WORKER = "verl.trainer.ppo.v1.agent_loop_tq.AgentLoopWorkerTQ"
_POSTPROCESS = f"{_AGENT_LOOP_WORKER}._agent_loop_postprocess"
_UPSAMPLE = "verl.trainer.ppo.padding_utils.upsample_batch_to_divisible_size"
_NAIVE = f"{_REWARD_LOOP}.reward_manager.naive.NaiveRewardManager"
MEGATRON = "verl.workers.engine.megatron.transformer_impl.MegatronEngine"
_VEOMNI = "verl.workers.engine.veomni.transformer_impl.VeOmniEngine"
_TORCHTITAN = "verl.workers.engine.torchtitan.transformer_impl.TorchTitanEngine"
_V0 = "verl.trainer.ppo.ray_trainer.RayPPOTrainer"
_EXPERIMENTAL = "verl.experimental"
_SEPARATION = f"{_EXPERIMENTAL}.separation.ray_trainer.SeparateRayPPOTrainer"
_OTHER_DRIVERS = ("one_step_off_policy.main_ppo", "fully_async_policy.fully_async_main")


def seam(where: str, relies: Reliance, *by: str) -> Seam:
    """As a line of the table; a name that begins with a dot is of ``verl_plugin``."""
    return Seam(where, relies, tuple(f"verl_plugin{n}".rstrip(".") if n.startswith(".") else n for n in by))


SEAMS: list[Seam] = [
    # --- How a training starts
    # Else a refused training would already run, or the CPU platform lose to the device that verl found.
    seam(f"{MAIN}.main", InOrder("auto_set_device", "validate_config", "run_ppo"), ".patches.driver"),
    seam(f"{MAIN}.main", Hands("validate_config", by_name=("config",)), ".patches.driver"),
    # Else the workers would start without their platform, watch and own queue, on any Ray that they find.
    seam(
        f"{MAIN}.run_ppo",
        Has(
            "config.ray_kwargs.get('ray_init', {})",
            "ray_init_kwargs.get('runtime_env', {})",
            "OmegaConf.merge(default_runtime_env, runtime_env_kwargs)",
        ),
        ".patches.driver",
        "config/platform/cpu.yaml",
        "utils.which_ray",
    ),
    seam("verl.utils.config.validate_config", Replaced("config", ANY_MORE), ".patches.driver"),
    seam(f"{MAIN}.run_ppo", Replaced("config", "task_runner_class"), ".patches.driver"),
    *(
        # Else our hook in run_ppo would never be called.
        seam(
            f"{_EXPERIMENTAL}.{driver}.main",
            Has("from verl.trainer.main_ppo import run_ppo"),
            ".patches.driver",
        )
        for driver in _OTHER_DRIVERS
    ),
    # Else the doctor would refuse what verl trains.
    seam(
        f"{_SEPARATE}.__init__",
        Has("assert train_batch_size == parameter_sync_step * ppo_mini_batch_size"),
        "preflight.with_verls",
    ),
    # Else two trainings on a cluster would share a queue.
    seam(
        "transfer_queue.interface",
        Has("ray.get_actor('TransferQueueController', "),
        ".patches.transfer_queue",
    ),
    seam(
        "transfer_queue.interface.init",
        Hands("TransferQueueController.options", by_name=("name", "namespace")),
        ".patches.transfer_queue",
    ),
    seam(f"{_VLLM_SERVER}.run_server", Replaced(ANY_MORE), ".patches.watchdog"),
    seam(f"{TRAINER}.fit", Replaced(ANY_MORE), ".patches.watchdog"),
    *(
        # Else the watch would overlook the death of this actor.
        seam(where, Has(piece), ".patches.watchdog")
        for where, piece in (
            (
                f"{AGENT_LOOP}.agent_loop.AgentLoopManager._init_agent_loop_workers",
                "name=f'agent_loop_worker_{i}'",
            ),
            (
                f"{_REWARD_LOOP}.reward_loop.RewardLoopManager._init_reward_loop_workers",
                "name=f'reward_loop_worker_{i}'",
            ),
            (f"{_VLLM_SERVER.rpartition('.')[0]}.vLLMReplica._get_server_name_prefix", "vllm_"),
            (
                "verl.single_controller.ray.base.RayWorkerGroup._create_worker",
                "f'{self.name_prefix}{cia_name}_{pg_idx}:{local_rank}'",
            ),
        )
    ),
    seam(f"{CORE}.ADV_ESTIMATOR_REGISTRY", Name(), ".registration"),
    seam(f"{CORE}.POLICY_LOSS_REGISTRY", Name(), ".registration"),
    # --- Estimators and losses
    # Else rejected responses would count in GVPO's groups.
    seam(
        "verl.trainer.ppo.rollout_corr_helper.compute_rollout_correction_and_add_to_batch",
        Has("batch.batch['response_mask'] = modified_response_mask"),
        ".estimators",
    ),
    seam(
        f"{TRAINER}._compute_advantage",
        Hands(
            "compute_advantage_for_multi_trajectories",
            by_place=1,
            by_name=("batch_keys", "adv_estimator", "config"),
        ),
        ".estimators",
    ),
    *(
        # Else the estimator would take defaults for our options.
        seam(where, Has("config=self.config.algorithm"), *by)
        for where, *by in (
            (f"{TRAINER}._compute_advantage", ".estimators", ".mini_batch.trainer"),
            (f"{_V0}.fit", ".preflight.support"),
            (f"{_SEPARATION}._fit_compute_advantage", ".preflight.support"),
        )
    ),
    # Else verl would choose among a session's outputs before our estimators do.
    seam(
        "verl.trainer.ppo.v1.utils.compute_advantage_for_multi_trajectories",
        Has("if adv_estimator != core_algos.AdvantageEstimator.GRPO:"),
        ".estimators",
        ".batch.sessions",
    ),
    # Else our options would be defaults, and the groups other rows.
    seam(
        "verl.trainer.ppo.ray_trainer.compute_advantage",
        Has("'config': config", "adv_kwargs['index'] = data.non_tensor_batch['uid']"),
        ".estimators",
    ),
    seam(
        LOSS,
        Hands(
            "policy_loss_fn",
            by_name=(
                "old_log_prob",
                "log_prob",
                "advantages",
                "response_mask",
                "loss_agg_mode",
                "config",
                "rollout_is_weights",
            ),
        ),
        ".losses.custom",
        ".gvpo.loss",
    ),
    # Else verl would train with its own loss, vanilla.
    seam(LOSS, Has("loss_mode = config.policy_loss.get('loss_mode', 'vanilla')"), "catalogue.averages"),
    # Else `+algo=gspo` would be averaged otherwise than its key says. verl 0.9.0 writes its value here.
    seam(
        f"{CORE}.compute_policy_loss_gspo",
        Has("agg_loss(loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode="),
        "catalogue.gspo",
    ),
    # Else `+algo=cispo` would have a gradient through its weights.
    seam(
        f"{CORE}.compute_policy_loss_cispo",
        Has("pg_losses = -clipped_ratio_sg * advantages * log_prob"),
        "catalogue.cispo",
    ),
    # Else `+algo=sapo` would be averaged otherwise than its paper says.
    seam(
        f"{CORE}.compute_policy_loss_sapo",
        Has("agg_loss(loss_mat=pg_losses, loss_mask=response_mask, loss_agg_mode='seq-mean-token-mean'"),
        "catalogue.sapo",
    ),
    # Else `+algo=dppo` and `+algo=dppo_kl` would mask other tokens, or average otherwise at another cut.
    *(
        seam(f"{CORE}.{function}", Has(piece), "catalogue.dppo")
        for function in ("compute_policy_loss_dppo_tv", "compute_policy_loss_dppo_kl")
        for piece in (
            "valid_mask = torch.where(advantages > 0, valid_positive_mask, valid_negative_mask)",
            "loss_agg_mode=loss_agg_mode, **config.global_batch_info",
        )
    ),
    # Else no response would have its teacher's log-prob, verl's loss would be added, or its manager be used.
    seam(
        _POSTPROCESS,
        Hands(
            "self._compute_teacher_logprobs",
            by_place=1,
            by_name=("prompt_ids", "response_ids", "validate", "sample_kwargs"),
        ),
        ".teacher.rollout",
    ),
    seam(f"{TRAINER}._setup", Has("distillation_config=self.config.get('distillation')"), ".teacher.worker"),
    seam(
        f"{MAIN}.TaskRunnerV1.init_agent_loop_manager",
        Has("load_class_from_fqn(manager_class_fqn, 'AgentLoopManager')"),
        ".teacher.trainer",
    ),
    # Else `+algo=rloo`, and a loss that verl registers as "gpg", would have a ratio.
    seam(
        f"{CORE}.compute_policy_loss_gpg",
        Has("pg_losses = -log_prob * advantages"),
        "catalogue.rloo",
        ".preflight.algorithm",
    ),
    seam("verl.workers.config.ActorConfig", Members("tau_pos", "tau_neg"), "catalogue.presets"),
    # Else the losses' metrics would be sums over micro-batches.
    seam(
        LOSS,
        Has("Metric.from_dict(pg_metrics, aggregation=AggregationType.MEAN)"),
        "catalogue.averages",
        ".mini_batch.worker",
    ),
    seam("verl.utils.metric.AggregationType", Members("MEAN", "SUM"), ".mini_batch.worker", ".gvpo.worker"),
    seam("verl.utils.metric.Metric", Members("aggregation"), ".gvpo.worker"),
    # Else the losses' metrics would be weighted wrongly over ranks.
    seam(
        "verl.utils.metric.Metric.aggregate_dp",
        Has("values=np.mean(value_arrays, axis=0)"),
        "catalogue.averages",
        ".mini_batch.worker",
    ),
    seam("verl.workers.config.PolicyLossConfig", Members("loss_mode", "get"), ".loss_config"),
    # The records of the catalogue know nothing of verl's types.
    seam(
        "verl.workers.config.ActorConfig",
        Members("global_batch_info", "rollout_n", "loss_scale_factor"),
        "catalogue.averages",
    ),
    seam(
        "verl.workers.config.ActorConfig",
        Members("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c"),
        "catalogue.clipped",
    ),
    seam(
        "verl.workers.config.ActorConfig",
        Members(
            *("strategy", "ppo_micro_batch_size_per_gpu", "use_kl_loss", "kl_loss_coef"),
            *("get", "__getitem__"),
        ),
        *("catalogue.averages", ".losses.custom"),
        *(".gvpo.loss", ".invariance.report", "anatomy.weights"),
    ),
    # --- Trainers
    # Else we would replace another worker class of verl.
    seam(
        f"{TRAINER}._init_resource_pool_mgr",
        Has("self.role_worker_mapping[role] = ray.remote(ActorRolloutRefWorker)"),
        ".trainer_modes",
    ),
    # Else we would replace another worker class of verl.
    seam(f"{_SEPARATE}._init_resource_pool_mgr", Has("ray.remote(DetachActorWorker)"), ".trainer_modes"),
    seam(f"{TRAINER}._validate", Hands("self._val_metrics_update", by_place=4), ".measure.training_rewards"),
    # Else a key's values would not be those of the responses in their order.
    seam(
        f"{TRAINER}._validate",
        Has("reward_extra_infos_dict[key] = [None] * n_prior", "reward_extra_infos_dict[key].append(None)"),
        ".measure.training_rewards",
    ),
    # Else GVPO would take the drift of a later update for zero.
    seam(f"{TRAINER}.step", Has("self.local_trigger_step = trigger_idx"), ".mini_batch.trainer"),
    # Else a checkpoint would have the old reference, or a run be complete before its last checkpoint.
    seam(
        f"{TRAINER}.fit",
        InOrder(
            "self.step", "self._save_checkpoint", "self._log_rollout_data", "self.logger.log(data=metrics"
        ),
        ".reference.trainer",
        "runs.verl_run",
    ),
    seam(
        f"{TRAINER}.fit",
        Hands("self.step", by_place=2),
        ".reference.trainer",
        ".measure.gold_responses",
        ".measure.rewarded_responses",
        ".measure.training_rewards",
    ),
    # Without it every run of a grid would count as one that ended before its last step.
    seam(f"{TRAINER}._compute_metrics", Has("'training/global_step': global_steps"), "runs.verl_run"),
    seam(f"{TRAINER}.fit", Hands("self._log_rollout_data", by_place=3), ".steps.trainer"),
    # Else a mini-batch would cut groups, or its rows lack what GVPO's targets are made of.
    seam(
        f"{TRAINER}._step_once",
        InOrder(
            "self._balance_batch",
            "self._compute_old_log_prob",
            "self._compute_ref_log_prob",
            "self._compute_advantage",
            "self._update_actor",
        ),
        ".mini_batch.trainer",
    ),
    seam(
        f"{TRAINER}._balance_batch",
        Overridden("batch", "metrics", "logging_prefix", "keep_minibatch"),
        ".mini_batch.trainer",
    ),
    # Else GVPO would take a drift for zero that is not.
    seam(
        f"{TRAINER}._compute_old_log_prob",
        Has("self.actor_rollout_wg.compute_log_prob(batch)"),
        ".mini_batch.trainer",
        ".reference.trainer",
    ),
    # Else GVPO would take a drift for zero that is not.
    seam(f"{_SEPARATE}._compute_old_log_prob", Has("self.local_trigger_step == 0"), ".mini_batch.trainer"),
    # Else a mini-batch would cut groups.
    seam(
        f"{TRAINER}._update_actor",
        Has(
            "'mini_batch_size': ppo_mini_batch_size",
            "'dataloader_kwargs': {'shuffle': self.config.actor_rollout_ref.actor.shuffle}",
        ),
        ".mini_batch.trainer",
        ".mini_batch.packing",
    ),
    # Else a killed run would resume from half a checkpoint.
    seam(
        f"{TRAINER}._save_checkpoint",
        InOrder("self.actor_rollout_wg.save_checkpoint", "f.write"),
        ".reference.trainer",
        ".stored.trainer",
    ),
    seam(
        f"{TRAINER}._dump_generations",
        Overridden("inputs", "outputs", "gts", "scores", "reward_extra_infos_dict", "dump_path"),
        ".steps.trainer",
    ),
    *(
        seam(
            f"{TRAINER}.{method}",
            Hands("self._dump_generations", by_name=("reward_extra_infos_dict", "dump_path")),
            ".steps.trainer",
        )
        for method in ("_log_rollout_data", "_validate")
    ),
    # --- Rows of a batch
    seam(
        "transfer_queue.KVBatchMeta",
        Members("keys", "partition_id", "tags", "extra_info", "reorder"),
        ".batch.fields",
        ".mini_batch.trainer",
        ".steps.trainer",
    ),
    seam("transfer_queue.KVBatchMeta.reorder", Called(("indexes",)), ".mini_batch.trainer"),
    seam("transfer_queue.KVBatchMeta.select_keys", Called(("keys_to_select",)), ".measure.fixed_responses"),
    seam("transfer_queue.get_client", Called(), ".batch.sessions"),
    seam("transfer_queue.kv_list", Called(("partition_id",)), ".batch.sessions"),
    # Else rows would be put into wrong groups.
    seam(_POSTPROCESS, Has("keys.append(f'{uid}_{session_id}_{i}')"), ".batch.fields", ".batch.sessions"),
    # Else several outputs of a session, a list, would not fail here and go unnoticed.
    seam(
        f"{AGENT_LOOP}.agent_loop.AgentLoopWorker._agent_loop_postprocess",
        Has("output.extra_fields['raw_prompt']"),
        ".batch.sessions",
    ),
    # Else padding would count as responses.
    seam(
        _UPSAMPLE, Has("pad_uid = f'pad{uuid.uuid4().hex}'"), ".batch.fields", ".batch.sessions", "runs.dumps"
    ),
    # Else the steps of padding would count.
    seam(
        "verl.trainer.ppo.padding_utils.construct_minimal_padding_template",
        Has("is_padding=True"),
        ".steps.trainer",
    ),
    seam("transfer_queue.KVBatchMeta.chunk", Called(("chunks",)), ".mini_batch.packing"),
    # Else a mini-batch would cut groups.
    seam(
        f"{ROWS}.make_iterator",
        Has("idx_lst = torch.arange(tensordict.shape[0])", "dataset=idx_lst, batch_size=mini_batch_size"),
        ".mini_batch.packing",
    ),
    # Else GVPO would stop at its second update, whose micro-batches hold parts of groups.
    seam(
        "verl.workers.engine.utils.prepare_micro_batches",
        Has(
            "key='force_group_size'",
            "force_group_size=force_group_size",
            "tu.chunk_tensordict(data, total_data_size // (micro_batch_size_per_gpu * force_group_size))",
        ),
        ".mini_batch.plan",
    ),
    seam(
        f"{ENGINE}.forward_backward_batch",
        Has("prepare_micro_batches(data=data, dp_group=self.get_data_parallel_group()"),
        ".mini_batch.plan",
    ),
    # --- Where the losses hold
    *(
        # Else the loss would be divided by the counts of one micro-batch or rank.
        seam(
            f"{engine}.forward_backward_batch",
            Has(
                "tu.assign_non_tensor(data, batch_num_tokens=batch_num_tokens.item())",
                "tu.assign_non_tensor(data, dp_size=self.get_data_parallel_size())",
            ),
            ".preflight.support",
        )
        for engine in (ENGINE, MEGATRON, _VEOMNI, _TORCHTITAN)
    ),
    *(
        seam(
            where,
            Hands("loss_function", by_name=("model_output", "data", "dp_group")),
            ".preflight.support",
            *by,
        )
        for where, *by in (
            (f"{ENGINE}WithLMHead.forward_step", ".mini_batch.worker"),
            (f"{MEGATRON}WithLMHead.postprocess_micro_batch_func",),
            (f"{_TORCHTITAN}WithLMHead.forward_step",),
        )
    ),
    # Else the gradient would have another scale.
    seam(
        f"{MEGATRON}WithLMHead.postprocess_micro_batch_func",
        Has("scaled_loss = loss * data['num_micro_batch']", "local_sum = loss * routed_num_tokens / dp_size"),
        ".preflight.support",
    ),
    # Else the gradient would have another scale.
    seam(
        f"{_TORCHTITAN}.__init__",
        Has("enable_fsdp_gradient_division(model_part, dp_size)"),
        ".preflight.support",
    ),
    seam("verl.workers.config.McoreActorConfig", Members("strategy", "megatron"), ".preflight.training"),
    seam("verl.workers.config.VeOmniActorConfig", Members("strategy"), ".preflight.support"),
    seam("verl.workers.config.TorchTitanActorConfig", Members("strategy"), ".preflight.support"),
    # Else ``actor.strategy`` would choose the other engines, too.
    seam(
        "verl.workers.config.FSDPActorConfig.__post_init__",
        Has("object.__setattr__(self.engine, 'strategy', self.strategy)"),
        ".preflight.support",
    ),
    seam(
        "verl.workers.config.engine.McoreEngineConfig",
        Members("strategy", "pipeline_model_parallel_size"),
        ".preflight.training",
    ),
    # Else the loss would be divided by a wrong number of responses.
    seam(
        f"{_V0}._update_actor",
        Has(
            "ppo_mini_batch_size = ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n",
            "global_batch_size=ppo_mini_batch_size",
        ),
        ".preflight.support",
    ),
    *(
        seam(where, Derived(base), ".preflight.support")
        for where, base in (
            (_VEOMNI, ENGINE),
            (f"{_VEOMNI}WithLMHead", f"{ENGINE}WithLMHead"),
            (_SEPARATION, _V0),
            (f"{_EXPERIMENTAL}.one_step_off_policy.ray_trainer.OneStepOffRayTrainer", _SEPARATION),
            (f"{_EXPERIMENTAL}.fully_async_policy.fully_async_trainer.FullyAsyncTrainer", _SEPARATION),
        )
    ),
    # Else no group would be filtered out.
    seam(
        f"{TRAINER}._build_replay_buffer",
        Has("filter_groups_metric=filter_groups_metric"),
        ".preflight.support",
    ),
    # Else rollout weights and rejection would be left out, or applied twice.
    seam(
        f"{TRAINER}._compute_advantage",
        Has(
            "not bypass_recomputing_logprobs",
            "compute_rollout_correction_and_add_to_batch(data, rollout_corr_config)",
        ),
        ".preflight.support",
    ),
    # Else a new rejection of tokens would pass our check of GVPO.
    seam(
        "verl.trainer.ppo.rollout_corr_helper",
        Has("TOKEN_LEVEL_ROLLOUT_RS_OPTIONS: set[str] = {'token_k1', 'token_k2', 'token_k3'}"),
        ".preflight.training",
    ),
    # Else distillation would go without our loss.
    seam(
        "verl.trainer.distillation.losses.distillation_ppo_loss",
        Has("ppo_loss(config, model_output, data, dp_group)"),
        ".preflight.support",
    ),
    # --- Workers and engines
    seam(f"{_TRAINING_WORKER}.train_mini_batch", Hands("self.train_batch", by_place=1), ".mini_batch.worker"),
    seam(
        "verl.workers.config.engine.EngineConfig",
        Members(
            "use_dynamic_bsz",
            "max_token_len_per_gpu",
            "micro_batch_size_per_gpu",
            "use_fused_kernels",
            "forward_only",
        ),
        ".mini_batch.worker",
        ".cpu.engines",
    ),
    seam(_ACTOR_WORKER, Members("actor_worker_cls", "actor", "ref"), ".gvpo.worker", ".reference.worker"),
    seam(
        "verl.experimental.separation.engine_workers.DetachActorWorker",
        Derived(_ACTOR_WORKER),
        ".gvpo.worker",
    ),
    seam("verl.single_controller.base.worker_group.WorkerGroup", Members("_dispatch_info"), ".batch.fields"),
    seam(
        "verl.single_controller.base.worker.Worker._query_dispatch_info",
        Called(("mesh_name",)),
        ".batch.fields",
    ),
    seam("verl.workers.engine.base.BaseEngine.infer_batch", Called(("data",)), ".mini_batch.worker"),
    seam(f"{ENGINE}.eval_mode", Called(by_name=("disable_auto_offload",)), ".mini_batch.worker"),
    seam(f"{ENGINE}.get_data_parallel_group", Called(), ".mini_batch.worker"),
    seam(ENGINE, Members("module"), ".reference.worker"),
    # Else a refresh would write to shards that no forward pass reads.
    seam(
        "verl.utils.fsdp_utils.offload_fsdp_model_to_cpu",
        Has("flat_param._local_shard = flat_param.data"),
        ".reference.worker",
    ),
    # --- Step rewards
    seam(f"{AGENT_LOOP}.agent_loop.AgentLoopBase", Members("server_manager"), ".rollout.agent_loops"),
    seam(f"{AGENT_LOOP}.agent_loop.AgentLoopOutput", Members("extra_fields"), ".rollout.agent_loops"),
    # --- Measurement
    *(
        seam(
            where,
            Hands("self.server_manager.generate", by_name=("prompt_ids", "sampling_params")),
            ".measure.request_seeds",
        )
        for where in (
            f"{AGENT_LOOP}.single_turn_agent_loop.SingleTurnAgentLoop.run",
            f"{AGENT_LOOP}.tool_agent_loop.ToolAgentLoop._handle_generating_state",
        )
    ),
    # Else the turns of one response would count on in the next.
    seam(
        f"{AGENT_LOOP}.agent_loop.AgentLoopWorker._run_agent_loop",
        InOrder("hydra.utils.instantiate", "agent_loop.run"),
        ".rollout.agent_loops",
    ),
    # Else all responses to a prompt would have one seed.
    seam(f"{_AGENT_LOOP_WORKER}._run_prompt", Has("session_id=i"), ".measure.request_seeds"),
    # Else vLLM would not be told the seed.
    seam(
        f"{_VLLM_SERVER}.generate",
        Has("SamplingParams(max_tokens=max_tokens, **sampling_params)"),
        ".measure.request_seeds",
    ),
    # Else prompts would have other tokens than in a rollout.
    seam(
        "verl.utils.tokenizer.continuous_token.ContinuousTokenBuilder._render_tokens",
        Has("apply_chat_template(self.tokenizer, messages", "return normalize_token_ids(tokenized)"),
        ".measure.fixed_responses",
    ),
    seam(
        "verl.utils.tokenizer.continuous_token.ContinuousTokenBuilder.build_initial_tokens",
        Has("self._render_tokens(messages, add_generation_prompt=True"),
        ".measure.fixed_responses",
    ),
    # Else rows would be left out, or others measured than the first.
    seam(
        "verl.utils.dataset.rl_dataset.RLHFDataset.__init__",
        Has("config.get('filter_overlong_prompts', True)", "config.get('shuffle', False)"),
        ".measure.fixed_responses",
    ),
    seam(
        "verl.workers.config.HFModelConfig",
        Members("tokenizer", "processor", "hf_config"),
        ".measure.fixed_responses",
    ),
    seam(
        f"{_ACTOR_WORKER}.compute_log_prob",
        Called(("data",)),
        ".measure.gold_responses",
        ".measure.rewarded_responses",
    ),
    seam(f"{_ACTOR_WORKER}.compute_ref_log_prob", Called(("data",)), ".measure.rewarded_responses"),
    # Else the log-probs would be of another temperature, or of other tokens.
    seam(
        f"{TRAINER}._compute_ref_log_prob",
        Has(
            "'calculate_entropy': False",
            "'compute_loss': False",
            "'temperature': self.config.actor_rollout_ref.rollout.temperature",
            "response_from_nested(data.pop('log_probs'), data['response_mask'])",
        ),
        ".measure.fixed_responses",
    ),
    # Else the reference would be another model: with LoRA the policy without its adapter.
    seam(
        f"{TRAINER}._compute_ref_log_prob",
        Has(
            "metadata['no_lora_adapter'] = True",
            "output = self.actor_rollout_wg.compute_log_prob(batch)",
            "output = self.ref_policy_wg.compute_ref_log_prob(batch)",
        ),
        ".measure.rewarded_responses",
    ),
    # Else no number of the reward function would be logged.
    seam(
        f"{AGENT_LOOP}.agent_loop.AgentLoopWorker._compute_score",
        Has("final_output.extra_fields['reward_extra_info'] = result['reward_extra_info']"),
        ".measure.training_rewards",
    ),
    # --- Stored responses
    seam(f"{TRAINER}._init_dataloader", Has("self.train_dataset = create_rl_dataset("), ".stored.trainer"),
    # Else a wrong response would be named after workers and servers were started.
    seam(
        f"{TRAINER}._setup",
        InOrder("self._init_tokenizer", "self._init_dataloader", "self.actor_rollout_wg.init_model"),
        ".stored.trainer",
    ),
    # Else prompts would get no stored responses.
    *(
        seam(f"{TRAINER}.{method}", Has("self._next_train_batch("), ".stored.trainer")
        for method in ("_add_prompts_to_generate", "_add_batch_to_generate")
    ),
    # Else a prompt would be unknown to the history.
    seam(
        "verl.utils.dataset.rl_dataset.RLHFDataset.__getitem__",
        Has("row_dict['raw_prompt'] = self._build_messages(row_dict, key=self.prompt_key)"),
        ".stored.trainer",
    ),
    # Else verl's default agent loop would run, and sample everything.
    seam(f"{_AGENT_LOOP_WORKER}.generate_sequences", Has("if 'agent_name' not in batch"), ".stored.trainer"),
    # Else sessions would not know which sample they are, or not see the column.
    seam(f"{_AGENT_LOOP_WORKER}._run_prompt", Has("session_id=i, **prompt"), ".stored.rollout"),
    # Else the server would be asked for what is stored, or the origin of a response be lost.
    seam(
        f"{AGENT_LOOP}.single_turn_agent_loop.SingleTurnAgentLoop.run",
        Has(
            "await self.server_manager.generate(",
            "sampling_params=sampling_params",
            "extra_fields=output.extra_fields",
        ),
        ".stored.rollout",
    ),
    seam(
        "verl.workers.rollout.replica.TokenOutput",
        Members("token_ids", "log_probs", "extra_fields"),
        ".stored.rollout",
    ),
    # Else verl's staleness of stored responses would be that of another step.
    seam(_POSTPROCESS, Has("field['extra_fields'].get('min_global_steps')"), ".stored.rollout"),
    # --- Rewards
    seam("verl.DataProto", Members("batch", "non_tensor_batch"), ".rewards.manager"),
    seam(f"{_NAIVE}.run_single", Overridden("data"), ".rewards.manager"),
    seam(
        f"{_NAIVE}.run_single",
        Hands("self.compute_score", by_name=("data_source", "solution_str", "ground_truth", "extra_info")),
        "rewards.weighted_sum",
        "rewards.reasoning_gym",
        "rewards.rules",
    ),
    seam(
        "verl.trainer.ppo.reward.load_reward_manager",
        Hands("reward_manager_cls", by_name=("config", "tokenizer", "compute_score")),
        ".rewards.manager",
    ),
    # Else the reward would be another function of the model's score than verl's.
    seam(
        f"{_REWARD_LOOP}.reward_loop.RewardLoopWorker.compute_score_disrm",
        Has("{'model': model_name, 'input': disrm_prompt, 'use_activation': False}"),
        ".rewards.response_scores",
    ),
    # Else a model that reads the chat in its own template would read another text than on verl's server.
    seam(
        f"{_REWARD_LOOP}.reward_loop.RewardLoopWorker._preprocess_reward_inputs",
        Has(
            "list(data_item.non_tensor_batch['raw_prompt'])",
            "chat.append({'role': 'assistant', 'content': rollout_response})",
            "rm_prompt[len(self.reward_model_tokenizer.bos_token):]",
        ),
        ".rewards.response_scores",
    ),
    # Else the reward model alone would pay, though our check has passed.
    seam(
        f"{_REWARD_LOOP}.reward_loop.RewardLoopWorker.compute_score",
        Has("self.config.reward.custom_reward_function.path is not None"),
        ".rewards.checks",
    ),
    seam("verl.utils.import_utils.PKG_PATH_PREFIX", Name(), ".rewards.checks"),
    seam("verl.utils.reward_score.default_compute_score", Name(), ".rewards.checks"),
    # --- The CPU platform
    seam(
        f"{_PLATFORM}.PlatformBase.is_platform_available", Called(by_name=("use_smi_check",)), ".cpu.platform"
    ),
    seam(
        "verl.utils.distributed.initialize_global_process_group_ray",
        Replaced("timeout_second", "backend"),
        ".cpu.patches",
    ),
    seam(
        f"{_TRAINING_WORKER}.__init__",
        Hands("initialize_global_process_group_ray", by_name=("timeout_second",)),
        ".cpu.patches",
    ),
    seam(
        "verl.utils.model.load_valuehead_model",
        Replaced("local_path", "torch_dtype", "model_config", "trust_remote_code"),
        ".cpu.patches",
    ),
    seam(f"{ENGINE}WithLMHead", Derived(ENGINE), ".cpu.engines"),
    seam(f"{ENGINE}WithValueHead", Derived(ENGINE), ".cpu.engines"),
    # --- Files and metrics
    # Else a run's last metrics would be skipped as a line that is not finished.
    seam("verl.utils.tracking.FileLogger.log", Has("+ b'\\n'"), "runs.metrics"),
    # Else steps and groups of a dump would be another row's.
    seam(
        f"{TRAINER}._log_rollout_data",
        Has("reward_extra_infos_dict = {'uid': [batch.keys[i] for i in sorted_indices]}"),
        "runs.dumps",
        ".steps.trainer",
    ),
    # --- Configuration
    seam("verl.trainer.config", Name(), ".compose"),
    # Else our checks would see another configuration than the training.
    seam(f"{MAIN}.main", Has("config_path='config', config_name='ppo_trainer'"), ".compose"),
    seam(
        CONFIGURATION,
        Keys(values={"trainer.use_v1": True, "actor_rollout_ref.hybrid_engine": True}),
        ".trainer_modes",
        ".preflight.training",
    ),
    seam(CONFIGURATION, Keys(values={"algorithm.norm_adv_by_std_in_grpo": True}), ".config", ".estimators"),
    seam(CONFIGURATION, Keys("actor_rollout_ref.actor.rollout_n"), ".loss_config", "catalogue.averages"),
    seam(CONFIGURATION, Keys("data.shuffle"), ".measure.fixed_responses"),
    seam(
        CONFIGURATION,
        Keys(
            *("custom_reward_function.path", "reward_model.reward_manager"),
            *("sandbox_fusion.url", "reward.sandbox_fusion.url"),
        ),
        ".rewards.checks",
    ),
    seam(
        CONFIGURATION,
        Keys(values={"actor_rollout_ref.actor.shuffle": False}),
        ".preflight.algorithm",
        ".mini_batch.trainer",
    ),
    seam(CONFIGURATION, Keys("trainer.resume_from_path"), ".batch.fields"),
    seam(
        CONFIGURATION,
        Keys(
            *(f"actor_rollout_ref.{role}.fsdp_config.fsdp_size" for role in ("actor", "ref")),
            *(f"actor_rollout_ref.{role}.fsdp_config.use_orig_params" for role in ("actor", "ref")),
            *(f"actor_rollout_ref.{role}.fsdp_config.wrap_policy" for role in ("actor", "ref")),
        ),
        ".reference.checks",
    ),
    seam(CONFIGURATION, Keys("ray_kwargs.ray_init.num_cpus"), "utils.which_ray", ".patches.driver"),
    seam(
        "verl.workers.config.RolloutConfig",
        Members("enable_sleep_mode", "free_cache_engine", "engine_kwargs"),
        "config/platform/cpu.yaml",
    ),
    # Else the rollout would go on with the first weights.
    seam(
        _VLLM_SERVER,
        Has("'worker_extension_cls': ", "**engine_kwargs"),
        "config/platform/cpu.yaml",
    ),
    seam(CONFIGURATION, Keys("actor_rollout_ref.rollout.engine_kwargs.vllm"), ".cpu.checks"),
    # Else a training on a CPU would compute in bf16.
    seam(
        f"{ENGINE}._build_fsdp_module",
        Has("mixed_precision_config.get('param_dtype', ", "mixed_precision_config.get('reduce_dtype', "),
        "config/platform/cpu.yaml",
    ),
    # Else the reward would take defaults for its arguments.
    seam(
        "verl.trainer.ppo.reward.get_custom_reward_fn",
        Has("reward_fn_config.get('reward_kwargs', {})"),
        "config/task/chain_sum.yaml",
        "config/task/gsm8k_tags.yaml",
        ".rewards.checks",
    ),
    # Else overlong responses would cost nothing.
    seam(
        f"{_REWARD_LOOP}.reward_manager.dapo.DAPORewardManager.__init__",
        Has("config.reward.get('reward_kwargs', {}).get('overlong_buffer_cfg', None)"),
        "config/algo/dapo.yaml",
        ".rewards.checks",
    ),
]


PLACES: dict[str, tuple[str, ...]] = {
    f"{AGENT_LOOP}.agent_loop.register": ("agent_name",),
    f"{_REWARD_LOOP}.reward_manager.register": ("name",),
    f"{_PLATFORM}.PlatformRegistry.get": ("name",),
    _UPSAMPLE: ("batch", "batch_multiple", "eos_token_id"),
    "verl.trainer.ppo.utils.create_rl_dataset": ("data_paths", "data_config", "tokenizer", "processor"),
    "verl.trainer.ppo.utils.need_critic": ("config",),
    "verl.trainer.ppo.utils.need_reference_policy": ("config",),
    f"{TRAINER}._get_required_batch_multiple": ("dp_size",),
    "verl.trainer.ppo.v1.trainer_base.register_trainer": ("name",),
    "verl.utils.config.omega_conf_to_dataclass": ("config",),
    "verl.utils.debug.marked_timer": ("name", "timing_raw"),
    "verl.utils.metric.Metric.aggregate_dp": ("metric_lists",),
    f"{_BALANCING}.calculate_workload": ("seqlen_list",),
    f"{_BALANCING}.get_seqlen_balanced_partitions": ("seqlen_list",),
    f"{_BALANCING}.log_seqlen_unbalance": ("seqlen_list", "partitions", "prefix"),
    f"{ROWS}.assign_non_tensor": ("tensor_dict",),
    f"{ROWS}.assign_non_tensor_stack": ("tensor_dict", "key", "val"),
    f"{ROWS}.get": ("tensordict", "key"),
    f"{ROWS}.list_of_dict_to_tensordict": ("list_of_dicts",),
    f"{ROWS}.pop": ("tensordict",),
    "verl.utils.tokenizer.chat_template.apply_chat_template": ("processor", "messages"),
    "verl.utils.tokenizer.normalize_token_ids": ("tokenized_output",),
    LOSS: ("config", "model_output", "data"),
    f"{_PADDING}.response_from_nested": ("tensor", "response_mask"),
}
"""Parameters of functions that we call by place, in the order in which we mean them."""


def contract(sources: Sources) -> list[Seam]:
    """All seams: those above and those that our sources show."""
    return merged([*SEAMS, *derived(sources, PLACES)])
