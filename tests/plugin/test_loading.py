"""Test how verl loads the plugin; as it does so once per process, most tests start a fresh one."""

import pytest
from processes import Python


def test_importing_verls_trainers_registers_ours_and_registering_twice_is_harmless(python: Python) -> None:
    found = python(
        """
        import verl
        from omegaconf import OmegaConf
        from verl.trainer.ppo import core_algos
        from verl.trainer.ppo.v1 import get_trainer_cls
        from grpo_verl_ext.verl_plugin.registration import register
        for name in ("sync", "colocate_async", "separate_async"):
            ours, verls = get_trainer_cls(f"grpo_ext_{name}"), get_trainer_cls(name)
            print(issubclass(ours, verls), ours.__module__)
        before = dict(core_algos.POLICY_LOSS_REGISTRY)
        register.cache_clear()
        register()
        print(before == core_algos.POLICY_LOSS_REGISTRY)
        print(OmegaConf.create({"a_fifth": "${grpo_ext.share:512,4096,20480}"}).a_fifth)
        """
    )
    trainers = ["True", "grpo_verl_ext.verl_plugin.trainer_modes"] * 3
    assert found.stdout.split() == [*trainers, "True", "102"], found.stderr


@pytest.mark.ci
def test_loading_leaves_the_trainer_and_vllm_alone(interpreter: Python) -> None:
    found = interpreter(
        """
        import sys, verl
        heavy = ("verl.trainer", "verl.workers", "vllm", "peft", "pyarrow", "accelerate")
        print([m for m in sys.modules if m.startswith(heavy)])
        """
    )
    assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_a_failing_plugin_says_why_on_stderr_and_verl_imports_where_it_swallows(
    is_swallowed: bool, python: Python
) -> None:
    as_module = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": "grpo_verl_ext.plugin"}
    found = python(
        """
        import sys
        import packaging.version
        sys.modules["wrapt"] = None  # makes the plugin's own import fail
        import verl
        print("verl imported")
        """,
        **({} if is_swallowed else as_module),
    )
    assert (found.stdout.strip() == "verl imported") is (found.returncode == 0) is is_swallowed
    assert "grpo_verl_ext: the plugin did not load" in found.stderr
    assert "wrapt" in found.stderr


def test_an_unsupported_verl_is_named_on_stderr(python: Python) -> None:
    found = python(
        """
        from grpo_verl_ext.utils import which_verl
        which_verl._FROM, which_verl._BELOW = "0.11", "0.12"
        import verl
        print("verl imported")
        """
    )
    assert found.stdout.strip() == "verl imported"
    assert "is installed; grpo_verl_ext works with verl >= 0.11 and < 0.12. Type: pip" in found.stderr


OTHERS = ["usage", "cpu.platform", "registration", "own_loss", "wire", "cpu.engines", "registries"]
OTHERS = [f"verl_plugin.{each}" for each in (*OTHERS, "mini_batch.worker", "loss_config")]


@pytest.mark.parametrize(
    "module",
    [
        *("driver", "verl_plugin.trainer_modes", "verl_plugin.gvpo"),
        *(pytest.param(each, marks=pytest.mark.ci) for each in ("preflight", "proof.batch", *OTHERS)),
    ],
)
def test_every_module_can_be_the_first_one_imported(module: str, python: Python) -> None:
    found = python(
        f"""
        import grpo_verl_ext.{module}
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
        print(get_adv_estimator_fn("grpo_outcome").__module__, get_policy_loss_fn("grpo").__module__)
        """
    )
    modules = ["grpo_verl_ext.verl_plugin.estimators", "grpo_verl_ext.algorithms.surrogate"]
    assert found.stdout.split() == modules, found.stderr
    assert "did not load" not in found.stderr


def test_a_name_of_another_package_stays_its_own(python: Python) -> None:
    """One that it had before, and one that it takes later, of which verl refuses a second estimator.

    A training of that package does not notice this one; one of ours is refused by ``check_names``.
    """
    found = python(
        """
        import verl
        from grpo_verl_ext import catalogue
        from grpo_verl_ext.catalogue.clipped import clipped_loss
        from grpo_verl_ext.catalogue.averages import AVERAGES
        catalogue.LOSSES["vanilla"] = clipped_loss("vanilla", AVERAGES["token-mean"])  # verl has the name
        from omegaconf import OmegaConf
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn, register_adv_est
        from grpo_verl_ext.preflight.algorithm import _check_names

        def refusal(loss):
            section = {"actor": {"policy_loss": {"loss_mode": loss}}}
            config = {"actor_rollout_ref": section, "algorithm": {"adv_estimator": "dr_grpo"}}
            try:
                _check_names(OmegaConf.create(config))
            except ValueError as error:
                return error

        print(get_policy_loss_fn("vanilla").__module__, get_policy_loss_fn("grpo").__module__)
        print(refusal("vanilla"))
        print(refusal("grpo"))

        @register_adv_est("dr_grpo")
        def theirs(**_):
            return "theirs"

        print(get_adv_estimator_fn("dr_grpo")())
        try:
            register_adv_est("dr_grpo")(lambda: None)
        except ValueError as error:
            print(error)
        print(refusal("grpo"))
        """
    )
    assert found.returncode == 0, found.stderr
    losses, of_verl, none, estimator, verls, of_main = found.stdout.splitlines()
    assert losses.split() == ["verl.trainer.ppo.core_algos", "grpo_verl_ext.algorithms.surrogate"]
    assert "policy_loss.loss_mode is vanilla, but the policy loss of this name is that of verl." in of_verl
    assert (none, estimator) == ("None", "theirs")
    assert "has already been registered" in verls  # which is between the others alone
    assert "adv_estimator is dr_grpo, but the advantage estimator of this name is that of __main__" in of_main
