"""Test grids: refusals and the runs they make."""

from pathlib import Path

import pytest

from grpo_verl_ext.ablation.grid import AblationError, read_grid, runs_of
from grpo_verl_ext.ablation.run import check_runs, compose_runs

FOLDER = Path(__file__).parents[2] / "examples" / "ablations"
ELSEWHERE = ("run it again at commit", "pip install -e examples/teacher")
EXAMPLES = [
    file for file in sorted(FOLDER.glob("*.yaml")) if not any(each in file.read_text() for each in ELSEWHERE)
]
"""All but those of features that have left the package."""

SMALL = """
folder: somewhere
steps: 2
base: [actor_rollout_ref.rollout.name=vllm]
axes:
  algo: {grpo: [+algo=grpo], gvpo: [+algo=gvpo]}
  lr: {low: [actor_rollout_ref.actor.optim.lr=1e-6], high: [actor_rollout_ref.actor.optim.lr=1e-5]}
seeds: [3, 4]
baseline: [grpo, low]
metrics: [critic/score/mean]
"""


@pytest.fixture
def written(tmp_path: Path):
    def write(text: str = SMALL) -> Path:
        file = tmp_path / "grid.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write


def test_axes_are_crossed_and_every_variant_has_every_seed(written) -> None:
    runs = runs_of(read_grid(written()))
    assert [run.name for run in runs] == [
        *("grpo-low/seed-3", "grpo-high/seed-3", "gvpo-low/seed-3", "gvpo-high/seed-3"),
        *("grpo-low/seed-4", "grpo-high/seed-4", "gvpo-low/seed-4", "gvpo-high/seed-4"),
    ]
    last = runs[-1].training
    assert last.folder == Path("somewhere/gvpo-high/seed-4")
    assert (last.steps, last.tracked_as) == (2, ("somewhere", "gvpo-high/seed-4"))
    assert last.overrides == [
        "actor_rollout_ref.rollout.name=vllm",
        "+algo=gvpo",
        "actor_rollout_ref.actor.optim.lr=1e-5",
        "data.seed=4",
        "++actor_rollout_ref.rollout.seed=4",
    ]


def test_a_seed_decides_the_same_for_every_variant(written) -> None:
    configs = compose_runs(runs_of(read_grid(written()))[::3])
    assert [*configs] == ["grpo-low/seed-3", "gvpo-high/seed-3", "gvpo-low/seed-4"]
    for name, config in configs.items():
        seed = int(name[-1])
        assert (config.data.seed, config.actor_rollout_ref.rollout.seed) == (seed, seed), name


@pytest.fixture
def knobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables that gsm8k.sh exports."""
    knobs = {"DATA": "/data", "MODEL": "org/model", "N_GPUS": "8", "N_NODES": "1", "REWARDS": "/rewards"}
    for name, value in knobs.items():
        monkeypatch.setenv(name, value)


@pytest.mark.ci
@pytest.mark.usefixtures("knobs")
@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_the_examples_compose(file: Path) -> None:
    grid = read_grid(file)
    of_one_seed = [run for run in runs_of(grid) if run.seed == grid.seeds[0]]
    assert len(compose_runs(of_one_seed)) >= 2


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["steps=0"], r"steps is 0; .*greater than or equal to 1"),
        (["seeds=[]"], r"seeds is \[\]; .* at least 1 item"),
        (["seeds=[1,9223372036854775808]"], r"seeds\[1\] is 9223372036854775808; valid is less than"),
        (["seeds=[1,1]"], r"seeds is \[1, 1\] and .*valid are different seeds"),
        (["seed_overrides=[]"], r"so that only 1 of .* Type: .*'seed_overrides=\[data\.seed=\{seed\}\]'"),
        (["seeds=[-1]"], r"seeds\[0\] is -1; .*greater than or equal to 0"),
        (["axes=[a]"], r"axes: Cannot merge .*Type: axes=<value>"),
        (["axes.algo.a/b=[]"], r"the labels a/b, low, which name the folder 'a/b-low'; valid is .*Rename"),
        (["axes.algo.a,b=[]"], r"name the folder 'a,b-low'"),
        (["axes.algo.+=[]"], r"name the folder '\+-low'"),
        (["axes.algo.GRPO=[]"], r"the labels GRPO, low, .* that no other variant has"),
        (["axes.algo.a=[]", "axes.algo.a-b=[]", "axes.lr={b-c: [], c: []}"], r"the labels a-b, c, .*'a-b-c'"),
        (["axes.empty={}"], r"axes\.empty is \{\}; .*at least 1 item"),
        (["baseline=[grpo]"], r"valid is one label of each axis.*Type: 'baseline=\[grpo,low\]'"),
    ],
)
def test_a_wrong_value_is_named(written, overrides: list[str], message: str) -> None:
    with pytest.raises(AblationError, match=message):
        read_grid(written(), overrides)


@pytest.mark.parametrize("folder", ["", "folder: ''\n"])
def test_a_grid_without_a_folder_is_refused(written, folder: str) -> None:
    """Results would lie in the folder in which the command is typed."""
    with pytest.raises(AblationError, match=r"folder is not given.* Type: folder="):
        read_grid(written(SMALL.replace("folder: somewhere\n", folder)))


def test_labels_are_the_text_that_was_typed(written) -> None:
    axes = "axes: {beta: {on: [a=on], 0.1: [b=1], 1e-6: [c=1], 010: [], null: []}}"
    text = SMALL[: SMALL.index("axes:")] + f"{axes}\nseeds: [1]\nbaseline: [on]\nmetrics: [1e-3]\n"
    grid = read_grid(written(text))
    assert grid.axes == {"beta": {"on": ["a=on"], "0.1": ["b=1"], "1e-6": ["c=1"], "010": [], "null": []}}
    assert (grid.baseline, grid.metrics) == (["on"], ["1e-3"])
    assert [run.variant for run in runs_of(grid)] == ["on", "0.1", "1e-6", "010", "null"]
    again = read_grid(written(text), ["baseline=[1e-6]", "axes.beta.no=[d=1]", "folder=2026.10"])
    assert (again.baseline, again.axes["beta"]["no"], again.folder) == (["1e-6"], ["d=1"], "2026.10")


def test_what_verl_would_refuse_names_the_run(written) -> None:
    grid = read_grid(written(), ["axes.lr.high=[trainer.no_such_key=1]"])
    with pytest.raises(AblationError, match=r"grpo-high/seed-3: verl refuses its overrides: .*no_such_key"):
        compose_runs(runs_of(grid))


def test_what_the_driver_would_refuse_names_the_run(written) -> None:
    grid = read_grid(written(), ["base=[+platform=cpu,actor_rollout_ref.rollout.n=1]"])
    configs = compose_runs(runs_of(grid))
    with pytest.raises(AblationError, match=r"grpo-low/seed-3: group-size is tested with .*n ≥ 2; it is 1"):
        check_runs(configs, here=True)


def test_the_tasks_of_the_seeds_are_prepared_once(written, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("GRPO_VERL_EXT_CACHE", str(tmp_path))
    (tmp_path / "chain_sum" / "seed-3").mkdir(parents=True)
    prepared = []

    def prepare(task: str, seed: int, *, force: bool) -> None:
        prepared.append((task, seed))
        (tmp_path / task / f"seed-{seed}").mkdir()

    grid = read_grid(
        written(), ["base=[+platform=cpu,+task=chain_sum]", "seed_overrides=['task.seed={seed}']"]
    )
    monkeypatch.setattr("grpo_verl_ext.tasks.chain_sum.prepare.run_prepare", prepare)
    check_runs(compose_runs(runs_of(grid)), here=False)
    assert prepared == [("chain_sum", 4)]
