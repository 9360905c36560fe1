"""The record of the feature ``ref_model_sync_steps``: what it was tested with."""

from grpo_verl_ext.catalogue import ON_FSDP2, STATISTIC_ENGINES
from grpo_verl_ext.catalogue.requires import OUR_MODES, AtLeast, If, In, Same, Trainer, refused
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, MODE, SECTION
from grpo_verl_ext.verl_plugin.features import Feature, has_option

_KEY = f"{SECTION}.ref_model_sync_steps"
_REF = "actor_rollout_ref.ref"
_ADAPTER = "makes the reference the policy without its adapter, which nothing refreshes"
_SHARDED = "shards the reference unlike the policy, so that no shard can follow it"


_REFERENCE_REFRESH = Feature(
    name="reference",
    used=has_option("ref_model_sync_steps", "ref_model_mixup_alpha"),
    requires=(
        *refused(
            AtLeast(_KEY, 1, "mixes nothing into the reference", line=f"++{_KEY}=<training steps>"),
            Trainer(OUR_MODES, "never refreshes the reference"),
            In(
                f"{ACTOR}.strategy",
                STATISTIC_ENGINES,
                "has a reference that cannot follow the policy",
                line=Line(*ON_FSDP2, more=f", or ~{_KEY}"),
            ),
            In(
                f"{ACTOR}.use_kl_loss",
                (True,),
                "leaves no reference to refresh",
                when=If("algorithm.use_kl_in_reward", (False, None)),
            ),
            *(
                In(f"actor_rollout_ref.model.{key}", (*off, None), _ADAPTER, line=Line(f"~{_KEY}"))
                for key, off in (("lora_rank", (0,)), ("lora.rank", (0,)), ("lora_adapter_path", ()))
            ),
            In(
                "actor_rollout_ref.hybrid_engine",
                (True, None),
                "has the reference in other processes than the policy",
                when=If(MODE, ("grpo_ext_separate_async",)),
            ),
            Same(f"{_REF}.strategy", f"{ACTOR}.strategy", _SHARDED),
        ),
        Same(f"{_REF}.fsdp_config.fsdp_size", f"{ACTOR}.fsdp_config.fsdp_size", _SHARDED),
        *(
            Same(f"{_REF}.{key}", f"{ACTOR}.{key}", _SHARDED, when=If(f"{ACTOR}.strategy", ("fsdp",)))
            for key in ("fsdp_config.use_orig_params", "fsdp_config.wrap_policy")
        ),
    ),
    trainer=f"{__package__}.parts:ReferenceSyncTrainerMixin",
    worker=f"{__package__}.parts:ReferenceSyncWorkerMixin",
)
