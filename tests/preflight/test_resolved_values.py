"""Test that values are looked at as verl gets them, and that right ones are left alone."""

import pytest
from omegaconf import OmegaConf
from processes import Python

from grpo_verl_ext import preflight, proof
from grpo_verl_ext.doctor.configuration import correct
from grpo_verl_ext.preflight import values
from grpo_verl_ext.utils.errors import Finding, Severity
from grpo_verl_ext.verl_plugin.compose import composed

ACTOR = "actor_rollout_ref.actor"
ENABLE, BATCH, EPOCHS = "algorithm.filter_groups.enable", "data.train_batch_size", "trainer.total_epochs"
BOUNDS = "algorithm.rollout_correction.rollout_is_threshold"
WHOLE = [
    *("+algo=dapo", "+platform=cpu", "actor_rollout_ref.rollout.n=4", f"{BATCH}=64"),
    *(f"{ACTOR}.ppo_mini_batch_size=32", f"{ACTOR}.use_dynamic_bsz=true", "data.max_prompt_length=512"),
    *("data.max_response_length=512", "actor_rollout_ref.model.path=hdfs://m"),
    *("data.train_files=hdfs://d", "data.val_files=hdfs://d"),
]


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EIGHT", "8")
    monkeypatch.setenv("OFF", "False")


def with_word(word: str) -> list[str]:
    """The command with one more word, in the place of another for its key."""
    key = word.partition("=")[0]
    return [*(each for each in WHOLE if each.partition("=")[0] != key), word]


def found(word: str) -> list[Finding]:
    """What the driver says of the values."""
    words = with_word(word)
    return [each for each in preflight.findings(composed(words), words) if each.check == values.NAME]


ERRORS = {
    # the word, what is said, the line to type
    **{
        f"{key}=${{oc.env:{name}}}": (f"text '{text}'", f"'{key}=\"${{oc.decode:${{oc.env:{name}}}}}\"'")
        for key, name, text in (
            *((ENABLE, "NO_F,false", "False"), (ENABLE, "OFF", "False"), (BATCH, "EIGHT", "8")),
            (f"{ACTOR}.loss_scale_factor", "EIGHT", "8"),  # verl's default is null, and all else a number
            # The CPU preset calculates with it, and fails; the one cause is named.
            ("trainer.n_gpus_per_node", "EIGHT", "8"),
        )
    },
    f"{EPOCHS}=${{oc.env:NO_SUCH}}": ("variable 'NO_SUCH' not found", "export NO_SUCH=<value>"),
    "trainer.logger=[${oc.env:NO_SUCH}]": ("variable 'NO_SUCH' not found", "export NO_SUCH=<value>"),
    f"{EPOCHS}=${{no.such.key}}": ("key 'no.such.key' not found", f"{EPOCHS}=<value>"),
    "~trainer.project_name": ("key 'trainer.project_name' not found", "trainer.default_local_dir=<value>"),
    f"{EPOCHS}=${{nobodys:1}}": ("type nobodys", f"{EPOCHS}=<value>"),
    f"{EPOCHS}=${{{EPOCHS}}}": ("Recursive interpolation", f"{EPOCHS}=<value>"),
    # What is decoded may still be a text.
    f"{ENABLE}='${{oc.decode:${{oc.env:NO_F,flase}}}}'": ("text 'flase'", f"{ENABLE}=<value>"),
    f"{EPOCHS}=foo": ("valid is a number", f"{EPOCHS}=30"),
    "trainer.val_before_train=flase": ("valid is true or false", "trainer.val_before_train=true"),
    **{
        f"{section}=null": ("valid is a section", f"the same command without {section}=null")
        for section in ("trainer", "trainer.v1", "ray_kwargs", "actor_rollout_ref", f"{ACTOR}.policy_loss")
    },
}


@pytest.mark.parametrize("word", ERRORS)
def test_a_value_that_verl_cannot_use_is_one_error(word: str) -> None:
    said, line = ERRORS[word]
    (finding,) = found(word)
    assert (finding.severity, finding.problem.fix) == (Severity.ERROR, line)
    assert said in str(finding.problem)


def test_no_other_check_speaks_of_what_such_a_value_ends() -> None:
    words = with_word("trainer=null")
    assert [each.check for each in preflight.findings(composed(words), words)] == [values.NAME]


@pytest.mark.parametrize(
    ("word", "line"),
    [
        (f"{BOUNDS}=0.5_2", f"'{BOUNDS}=\"0.5_2\"'"),  # Hydra reads 0.52
        ("+algorithm.gvpo_beta=3", f"++{ACTOR}.policy_loss.gvpo_beta=3"),
    ],
)
def test_a_value_that_nothing_reads_as_it_is_typed_is_a_warning(word: str, line: str) -> None:
    (finding,) = found(word)
    assert (finding.severity, finding.problem.fix) == (Severity.WARNING, line)


@pytest.mark.parametrize(
    "word",
    [
        *(f"{BOUNDS}=0.5_5.0", f'{BOUNDS}="0.5_2"', f"{BOUNDS}=2", f"{EPOCHS}=1_0", f"{EPOCHS}=???"),
        *(f"{ENABLE}='${{oc.decode:${{oc.env:OFF,false}}}}'", f"{BATCH}='${{oc.decode:${{oc.env:EIGHT}}}}'"),
        *(f"{ACTOR}.kl_loss_coef=0", f"{ACTOR}.optim.lr=1e-6", f"{ACTOR}.loss_scale_factor=1.5"),
        *("+mine.seed=${oc.env:EIGHT}", "+mine.gvpo_beta=1"),  # no keys of verl's
        *(f"{ACTOR}.clip_ratio_c=null", "actor_rollout_ref.rollout.top_k=-1", "data.seed=1"),
        *("algorithm.filter_groups=null", "algorithm.rollout_correction=null", "data.custom_cls.path=null"),
        *("trainer.experiment_name=${oc.env:EIGHT}", "reward.reward_manager.module=null"),
        f"{EPOCHS}=${{hydra:job.num}}",  # Hydra's own, which only a training knows
        "transfer_queue.backend.MooncakeStore.global_segment_size=4gb",
    ],
)
def test_a_right_value_is_left_alone(word: str) -> None:
    assert found(word) == []


@pytest.mark.parametrize("word", [f"{ENABLE}=${{oc.env:NO_F,true}}", f"{BOUNDS}=0.5_2", "trainer=null"])
def test_the_line_to_type_makes_it_right(word: str) -> None:
    _, _, left = correct([*WHOLE, word])
    assert [each for each in left if each.check == values.NAME] == []


@pytest.mark.parametrize("word", ["trainer=null", "trainer.v1=${oc.env:NO}"])
def test_the_driver_refuses_it_before_ray(python: Python, word: str) -> None:
    """In a process of its own, which gets the CPU platform."""
    refused = python(
        f"""
        from grpo_verl_ext import driver
        from grpo_verl_ext.verl_plugin.compose import composed
        driver._prepare_training(composed({with_word(word)}))
        """
    )
    assert refused.returncode == 1
    assert f"grpo_verl_ext: {word.partition('=')[0]} is " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_verl_without_the_file_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "folder_of", lambda _: "/nowhere")
    proof.verls_defaults.cache_clear()
    (finding,) = found(f"{EPOCHS}=foo")
    assert finding.severity is Severity.WARNING
    assert "the check 'types' of grpo_verl_ext failed itself (FileNotFoundError" in str(finding.problem)


def test_it_can_be_silenced() -> None:
    words = [*with_word(f"{EPOCHS}=foo"), "+algorithm.grpo_ext.silence=[types]"]
    assert [each for each in preflight.findings(composed(words)) if each.check == values.NAME] == []


def test_verl_keeps_all_that_it_composes_in_the_file_that_is_read() -> None:
    default = OmegaConf.to_container(composed([]), resolve=False)
    assert isinstance(default, dict)
    assert default.pop("model_engine")
    assert default == OmegaConf.to_container(proof.verls_defaults(), resolve=False)
