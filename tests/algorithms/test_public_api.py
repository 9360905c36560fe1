"""Test that ``import grpo_verl_ext`` gives the mathematics and imports nothing heavier than torch."""

import grpo_verl_ext


def test_everything_promised_is_there():
    assert all(hasattr(grpo_verl_ext, name) for name in grpo_verl_ext.__all__)
    assert grpo_verl_ext.__version__


def test_the_import_leaves_the_frameworks_alone(interpreter):
    result = interpreter(
        """
        import sys
        import grpo_verl_ext
        heavy = {"verl", "ray", "hydra", "omegaconf", "vllm", "tensordict", "transformers"}
        print(sorted(heavy & set(sys.modules)))
        """
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
