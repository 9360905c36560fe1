"""Test that ``import grpo_verl_ext`` and a loss to call import nothing heavier than torch."""

import grpo_verl_ext


def test_everything_promised_is_there():
    assert all(hasattr(grpo_verl_ext, name) for name in grpo_verl_ext.__all__)
    assert grpo_verl_ext.__version__


def test_a_star_import_and_dir_give_the_same_names_and_no_other_exists():
    names = {}
    exec("from grpo_verl_ext import *", names)
    assert set(grpo_verl_ext.__all__) == names.keys() - {"__builtins__"}
    assert set(grpo_verl_ext.__all__) <= set(dir(grpo_verl_ext))
    assert not hasattr(grpo_verl_ext, "no_such_name")


def test_the_import_leaves_the_frameworks_alone(interpreter):
    result = interpreter(
        """
        import sys
        import grpo_verl_ext
        heavy = {"verl", "ray", "vllm", "tensordict", "transformers"}
        print(sorted({*heavy, "hydra", "omegaconf"} & set(sys.modules)))
        grpo_verl_ext.losses.gvpo
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "[]\n[]\n"
