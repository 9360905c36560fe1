"""Test `grpo-verl-ext migrate` on small scripts with the result by hand, and on those that it cannot read."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_verl_ext.cli import app
from grpo_verl_ext.migrate.rewrite import migrate
from grpo_verl_ext.migrate.script import read_script
from grpo_verl_ext.migrate.shell import UnreadableScriptError

SCRIPTS = Path(__file__).parent / "scripts"
MIGRATED = sorted(SCRIPTS.glob("*.*.sh"))
"""NAME.PRESET.sh is what NAME.sh must become, written by hand."""
START = "python3 -m verl.trainer.main_ppo"


def migrated(text: str, preset: str = "grpo") -> str:
    return migrate(read_script(text.encode()), preset).source.decode()


@pytest.mark.parametrize("file", MIGRATED, ids=lambda file: file.name)
def test_a_script_becomes_what_was_written_by_hand(file: Path) -> None:
    name, preset, _ = file.name.split(".")
    assert migrated((SCRIPTS / f"{name}.sh").read_text(), preset) == file.read_text()


@pytest.mark.parametrize("file", MIGRATED, ids=lambda file: file.name)
def test_a_migrated_script_is_migrated_again_to_itself(file: Path) -> None:
    """All that contradicts the preset is out, and the preset is there once."""
    again = migrated(file.read_text(), file.name.split(".")[1])
    assert again == file.read_text()


@pytest.mark.parametrize("file", MIGRATED, ids=lambda file: file.name)
def test_bash_parses_the_result(file: Path) -> None:
    assert subprocess.run(["bash", "-n", file], check=False).returncode == 0


def test_the_lines_are_named_with_their_values_and_the_presets() -> None:
    result = CliRunner().invoke(app, ["migrate", str(SCRIPTS / "continuations.sh"), "--algo", "grpo"])
    assert result.exit_code == 0
    assert result.stdout == (SCRIPTS / "continuations.grpo.sh").read_text()
    said = result.stderr.splitlines()
    assert [each.partition(":")[0] for each in said] == ["line 8", "line 12", "line 14", "line 16"]
    assert said[1] == (
        "line 12: actor_rollout_ref.actor.kl_loss_coef=$kl (0.001) is out; the preset has 0.04: §4.2: KL "
        "coefficient 0.04"
    )
    assert "(only the running script knows the value)" in said[3]


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        # equal to the preset's, in whatever spelling
        ("actor_rollout_ref.actor.use_kl_loss=true", True),
        ("actor_rollout_ref.actor.kl_loss_coef=4e-2", True),
        ("actor_rollout_ref.actor.clip_ratio_c=null", True),
        ("actor_rollout_ref.actor.kl_loss_coef=0.0400001", False),
        ("actor_rollout_ref.actor.clip_ratio_c=3.0", False),
        ("'actor_rollout_ref.actor.use_kl_loss=False'", False),
        ("++actor_rollout_ref.actor.kl_loss_type=k2", False),
        ("~actor_rollout_ref.actor.kl_loss_coef", False),
        ("+algo=gvpo", False),
        # none of the preset's keys
        ("actor_rollout_ref.actor.kl_loss_coefficient=1", True),
        ("actor_rollout_ref.ref.use_kl_loss=False", True),
        ("critic.clip_ratio=0.3", True),
    ],
)
def test_only_other_values_of_the_presets_keys_are_out(typed: str, kept: bool) -> None:
    words = [START, "+algo@_global_=grpo", *([typed] if kept else []), "data.seed=1"]
    assert migrated(f"{START} {typed} data.seed=1\n") == " ".join(words) + "\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("(\n  # why\n  {} data.seed=1\n)", "(\n  # why\n  data.seed=1\n)"),
        ("(data.seed=1 {}\n  # why\n)", "(data.seed=1\n  # why\n)"),
        ("({})", "()"),
        ("({} # why\n)", "(# why\n)"),
    ],
)
def test_what_stands_beside_a_word_stays(before: str, after: str) -> None:
    """A word behind a comment would be lost."""
    rest = f'\n{START} "${{A[@]}}"'
    expected = f'A={after}\n{START} +algo@_global_=grpo "${{A[@]}}"'
    assert migrated(f"A={before.format('algorithm.adv_estimator=grpo')}{rest}") == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("{} data.seed=1 {}", "data.seed=1"),
        ("data.seed=1 {} {}", "data.seed=1 "),
        ("data.seed=1 {} trainer.nnodes=2", "data.seed=1 trainer.nnodes=2"),
        ("\n  data.seed=1\n  {}\n", "\n  data.seed=1\n"),
    ],
)
@pytest.mark.parametrize("use", ["$A", "${A}"])
def test_a_variable_without_quotes_has_several_words(before: str, after: str, use: str) -> None:
    """Taken for one, all but the first would stay as they are, or all would go with it."""
    text = f'A="{before.format(*["algorithm.adv_estimator=rloo"] * 2)}"\n{START} {use} trainer.x=1'
    assert migrated(text) == f'A="{after}"\n{START} +algo@_global_=grpo {use} trainer.x=1'


def test_a_variable_in_quotes_is_one_word() -> None:
    text = f"A='data.train_files=[a, b]'\n{START} \"$A\""
    assert migrated(text) == text.replace(START, f"{START} +algo@_global_=grpo")


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("custom_reward_function.path=$PWD/r.py", "reward.custom_reward_function.path=$PWD/r.py"),
        ("'+custom_reward_function.reward_kwargs.x=1'", "'+reward.custom_reward_function.reward_kwargs.x=1'"),
        ("reward_model.reward_manager=batch", "reward.reward_manager.name=batch"),
        ("reward_model.model.path=m", "reward.reward_model.model_path=m"),
        ("reward_model.enable=True", "reward.reward_model.enable=True"),
    ],
)
def test_a_key_of_older_verl_is_written_where_verl_reads_it(typed: str, kept: str) -> None:
    """verl 0.9 accepts the old keys and trains with another reward."""
    assert migrated(f"{START} {typed} a=1") == f"{START} +algo@_global_=grpo {kept} a=1"


@pytest.mark.parametrize(
    ("algo", "typed", "kept"),
    [
        ("gvpo", "trainer.v1.trainer_mode=grpo_ext_separate_async", True),
        ("gvpo", "trainer.v1.trainer_mode=sync", False),
        (
            "grpo_process",
            "actor_rollout_ref.rollout.agent.default_agent_loop=grpo_ext_tool_agent",
            True,
        ),
        ("ppo", "critic.model.path=my/critic", True),
    ],
)
def test_what_the_algorithm_leaves_open_stays(algo: str, typed: str, kept: bool) -> None:
    written = migrate(read_script(f"{START} {typed}\n".encode()), algo).source.decode()
    assert written == f"{START} +algo@_global_={algo}{f' {typed}' if kept else ''}\n"


def test_one_that_contradicts_the_preset_by_its_new_name_is_out() -> None:
    assert migrated(f"{START} reward_model.reward_manager=naive a=1", "dapo") == (
        f"{START} +algo@_global_=dapo a=1"
    )


def test_options_of_the_loss_stay() -> None:
    assert "gvpo_beta=0.5" in migrated(f"{START} actor_rollout_ref.actor.policy_loss.gvpo_beta=0.5", "gvpo")


@pytest.mark.parametrize(
    "before", ["--config-name=ppo_megatron_trainer", "--config-path config -cn other", "--multirun"]
)
def test_the_preset_stands_after_hydras_options(before: str) -> None:
    assert migrated(f"{START} {before} a.b=1") == f"{START} {before} +algo@_global_=grpo a.b=1"


UNREADABLE = {
    "an if without its end": (f"if true; then\n{START} a=1\n", 3, "not read as bash"),
    "words of a command's output": (f"{START} \\\n    $(cat words.txt)\n", 2, "$(cat words.txt)"),
    "the same by a variable": (f"X=1\nWORDS=$(cat words.txt)\n{START} $WORDS\n", 2, "$(cat words.txt)"),
    "an array from elsewhere": (f'\n{START} "${{WORDS[@]}}"', 2, "does not set the array WORDS"),
    "a variable of another file": (f"source words.sh\n{START} $WORDS", 1, "another file may set $WORDS"),
    "no trainer": ("echo 1\npython3 -m verl.trainer.main_generation\n", 2, "the script ends"),
    "nothing": ("", 1, "the script ends"),
    "a text for another bash": (f"\nbash -c '{START} a=1'", 2, "a text for another program"),
    "a script in a script": (f"cat > job.sh <<EOF\n{START} a=1\nEOF\n", 2, "a text for another program"),
    "a key of the running script": (f"{START} $(which_key).x=1", 1, "$(which_key).x=1"),
    "a moved key in two pieces": (
        f"K=reward_manager\n{START} reward_model.$K=batch",
        2,
        "write reward_model.reward_manager as one word",
    ),
    "a variable that is read": (f"read -r WORDS < words.txt\n{START} $WORDS", 1, "what read gives $WORDS"),
    "a variable that is printed": (f"\nprintf -v WORDS a=%s 1\n{START} $WORDS", 2, "printf gives $WORDS"),
    "other arguments": (f'set -- a=1\n{START} "$@"', 1, "set gives the script other arguments"),
    "words of a loop": (f'for X in "a=1 b=2" c=3; do\n{START} $X\ndone', 1, "which $X a turn"),
    "words that a test may set": (f': "${{X:=a=1}}"\n{START} $X', 1, "whether ${X:=a=1} sets $X"),
    "words that depend on a variable": (f"{START} ${{X:+a=1}}", 1, "knows ${X:+a=1}; write"),
    "words that depend on a variable of the script": (
        f"KL=${{KL:-0}}\n{START} ${{KL:+a=1}}",
        2,
        "knows ${KL:+a=1}; write",
    ),
    "the same in quotes": (f'USE=1\n{START} "${{USE:+a=1}}"', 2, "knows ${USE:+a=1}; write"),
    "words in the place of no others": (f'X=""\n{START} ${{X:-a=1}}', 2, "knows ${X:-a=1}; write"),
    "words of an array without any": (
        f'X=("${{X[@]:-a=1}}")\n{START} "${{X[@]}}"',
        1,
        "knows ${X[@]:-a=1}; write",
    ),
    "words that the environment may replace": (
        f"X=${{X:-a.b=True}}\n{START} $X",
        1,
        "knows ${X:-a.b=True}; write",
    ),
    "an argument of a function": (f'run() {{\n  {START} "$1"\n}}\nrun a=1', 2, "knows $1; write"),
    "the same by a variable of it": (
        f'run() {{\n  local x="$1"\n  {START} $x\n}}\nrun a=1',
        2,
        "knows $1; write",
    ),
    "a variable that another one names": (f"A=a=1\nN=A\n{START} ${{!N}}", 3, "knows ${!N}; write"),
    "a variable with another name": (
        f"A=a=1\ndeclare -n N=A\n{START} $N",
        2,
        "knows declare -n N=A; write",
    ),
    "keys in braces": (f"{START} a.{{b=1,c=2}}", 1, "several words of a.{b=1,c=2}; write each"),
    "an element that is replaced": (
        f'X=(a=1 b=2)\nX[1]=c=3\n{START} "${{X[@]}}"',
        2,
        "what X[1]=c=3 replaces",
    ),
    "keys of an array": (
        f'for K in "${{!A[@]}}"; do\n  WORDS+=" $K=1"\ndone\n{START} $WORDS',
        2,
        "which key",
    ),
    "a whole section": (
        f"{START} \\\n data.seed=1 \\\n actor_rollout_ref.actor.policy_loss={{loss_mode:gspo}}",
        3,
        "actor_rollout_ref.actor.policy_loss is a section",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_where_it_cannot_read_on_it_names_the_line(name: str, tmp_path: Path) -> None:
    text, line, why = UNREADABLE[name]
    (script := tmp_path / "run.sh").write_text(text)
    with pytest.raises(UnreadableScriptError):
        migrated(text)
    result = CliRunner().invoke(app, ["migrate", str(script), "--algo", "grpo"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"migrate: line {line}: ")
    assert why in result.stderr


def test_nothing_of_the_script_is_started(tmp_path: Path) -> None:
    text = f"touch {tmp_path}/started $(touch {tmp_path}/too)\n{START} a=1\n"
    (script := tmp_path / "run.sh").write_text(text)
    assert CliRunner().invoke(app, ["migrate", str(script), "--algo", "grpo"]).exit_code == 0
    assert [file.name for file in tmp_path.iterdir()] == ["run.sh"]


def test_a_preset_that_is_none_and_a_file_that_is_not_there() -> None:
    result = CliRunner().invoke(app, ["migrate", str(SCRIPTS / "arrays.sh"), "--algo", "DAPO"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "--algo is DAPO" in result.stderr
    assert result.stderr.strip().endswith("Type: --algo dapo")
    missing = CliRunner().invoke(app, ["migrate", "no/such.sh", "--algo", "dapo"])
    assert (missing.exit_code, missing.stdout) == (1, "")
    assert "no/such.sh" in missing.stderr


def test_bytes_that_are_not_utf8_stay_as_they_are() -> None:
    source = f"# caf\xe9\n{START} a=1\n".encode("latin-1")
    expected = f"# caf\xe9\n{START} +algo@_global_=grpo a=1\n".encode("latin-1")
    assert migrate(read_script(source), "grpo").source == expected
