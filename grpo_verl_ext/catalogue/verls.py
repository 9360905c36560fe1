"""Algorithms on losses of verl's own, what is known of these losses, and verl's reward manager ``dapo``."""

from omegaconf import DictConfig

from grpo_verl_ext.algorithms.advantages import leave_one_out
from grpo_verl_ext.catalogue import requires
from grpo_verl_ext.catalogue.clipped import check_clip_range
from grpo_verl_ext.catalogue.grpo import DR_GRPO, GRPO
from grpo_verl_ext.catalogue.record import Algorithm, Estimator, VerlsEstimator, VerlsLoss
from grpo_verl_ext.utils.errors import Line
from grpo_verl_ext.utils.keys import ACTOR, setting

_GAE = VerlsEstimator("gae")
VERLS_ESTIMATORS = (
    VerlsEstimator("grpo", kl_in_loss=True),
    VerlsEstimator("grpo_vectorized", kl_in_loss=True),
)

_VANILLA = VerlsLoss("vanilla")
_GPG = VerlsLoss("gpg")
_GEO_MEAN = VerlsLoss("geo_mean", exact_preset="+algo@_global_=gmpo")
_CLIP_COV = VerlsLoss("clip_cov", exact_preset="+algo@_global_=clip_cov")
_KL_COV = VerlsLoss("kl_cov", exact_preset="+algo@_global_=kl_cov")
_CLIPS = tuple(f"{ACTOR}.clip_ratio_{side}" for side in ("low", "high"))
_GSPO_LOSS = VerlsLoss(
    "gspo",
    one_output=requires.ONE_OUTPUT,
    settings=(check_clip_range,),
    requires=(
        requires.WHOLE_RESPONSES,
        *(
            requires.AtMost(
                key,
                0.05,
                "clips nothing: a whole response's ratio to the power 1/|y| is near 1",
                line=Line(without=(key,), more=f"the same command without {key}, or the paper's"),
            )
            for key in _CLIPS
        ),
    ),
)

_PPO = Algorithm(
    "ppo",
    "arXiv 1707.06347",
    _GAE,
    _VANILLA,
    "token-mean",
    title="Schulman et al., Proximal Policy Optimization",
    fixes="for comparison: a critic",
)

_PPO_KL = Algorithm(
    "ppo_kl",
    "arXiv 2402.03300, eq. 1",
    _GAE,
    GRPO.loss,
    title="Shao et al., DeepSeekMath",
    fixes="for comparison: PPO with a critic",
)
"""PPO with the mean over responses; the KL is in the reward, eq. 2."""

_RLOO = Algorithm(
    "rloo",
    "arXiv 2402.14740",
    Estimator("rloo_outcome", str(leave_one_out.__doc__), leave_one_out),
    _GPG,
    "seq-mean-token-sum",
    title="Ahmadian et al., Back to Basics",
    fixes="PPO's critic and clip: REINFORCE with the mean of the other responses",
)

_CISPO = Algorithm(
    "cispo",
    "arXiv 2506.13585",
    GRPO.estimator,
    VerlsLoss("cispo", settings=(check_clip_range,)),
    "token-mean",
    fixed=(f"{ACTOR}.clip_ratio_low",),  # its weights have no lower bound (§3.1)
    title="MiniMax, MiniMax-M1",
    fixes="a clip that takes the gradient from rare tokens: their weight is capped instead",
)

_SAPO = Algorithm(
    "sapo",
    "arXiv 2511.20347",
    GRPO.estimator,
    VerlsLoss("sapo"),
    "seq-mean-token-mean",
    title="Gao et al., Soft Adaptive Policy Optimization",
    fixes="a hard clip: a smooth gate takes its place",
)

_GSPO = Algorithm(
    "gspo",
    "arXiv 2507.18071",
    GRPO.estimator,
    _GSPO_LOSS,
    "seq-mean-token-mean",
    title="Zheng et al., Group Sequence Policy Optimization",
    fixes="ratios of tokens, whose noise adds up: one ratio for the whole response",
)

_LUSPO = Algorithm(
    "luspo",
    "arXiv 2602.05261",
    GRPO.estimator,
    _GSPO_LOSS,
    "seq-mean-token-sum",
    title="Liu et al., Length-Unbiased Sequence Policy Optimization",
    fixes="GSPO's division by length, by which long responses count less",
)

_DPPO, _DPPO_KL = (
    Algorithm(
        name,
        f"arXiv 2602.04879, {equation}",
        DR_GRPO.estimator,
        VerlsLoss(
            loss_mode,
            settings=(check_clip_range,),
            requires=tuple(
                requires.AtMost(
                    key,
                    0.19,
                    "is read as the largest divergence of a token, where verl's default 0.2 is a range of ρ",
                )
                for key in _CLIPS
            ),
        ),
        "seq-mean-token-sum-norm",
        fixed=(f"{ACTOR}.clip_ratio_c",),  # at which verl truncates ρ: small values bias the gradient (§5.4)
        title="Qi et al., Rethinking the Trust Region in LLM RL",
        fixes="a clip of ratios, too strict for rare tokens: the distance of two policies masks a token",
    )
    for name, equation, loss_mode in (("dppo", "eq. 13", "dppo_tv"), ("dppo_kl", "eq. 14", "dppo_kl"))
)
"""By total variation and by KL."""

OVERLONG_MANAGER = "dapo"
"""verl's reward manager with DAPO's punishment of long responses."""
KL_IN_REWARD = "algorithm.use_kl_in_reward"
PUNISHES = "reward.reward_kwargs.overlong_buffer_cfg.enable"


def asks_model_alone(config: DictConfig) -> bool:
    """Whether verl asks its reward model for the reward and never calls the reward manager."""
    function = setting(config, "reward.custom_reward_function.path")
    return function is None and bool(setting(config, "reward.reward_model.enable"))


def overlong_punishment(config: DictConfig) -> bool:
    """Whether verl's reward manager ``dapo`` punishes long responses."""
    is_chosen = setting(config, "reward.reward_manager.name") == OVERLONG_MANAGER
    return is_chosen and bool(setting(config, PUNISHES)) and not asks_model_alone(config)
