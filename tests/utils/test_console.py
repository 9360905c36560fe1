"""Test how the command line ends after Ctrl-C, and on terminals without Unicode."""

import json
import signal
import time
from pathlib import Path

import pytest
from processes import Python
from typer.testing import CliRunner

from grpo_verl_ext.ablation import grid
from grpo_verl_ext.ablation.declaration import GridSettings
from grpo_verl_ext.cli import app
from grpo_verl_ext.runs.verl_run import TRAINED
from grpo_verl_ext.utils.console import one_message

RESUME = "\nInterrupted. Run the same command again to resume.\n"


def test_ctrl_c_that_python_drops_in_a_destructor(monkeypatch: pytest.MonkeyPatch) -> None:
    class Freed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def pressed(*_: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Freed()
        time.sleep(10)

    monkeypatch.setattr(grid, "read_grid", pressed)
    ended = CliRunner().invoke(app, ["ablate", "plan", "grid.yaml"])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (130, "", RESUME)


def test_ctrl_c_while_the_command_line_is_imported(interpreter: Python) -> None:
    ended = interpreter(
        """
        import sys
        from importlib.abc import MetaPathFinder

        class Pressed(MetaPathFinder):
            def find_spec(self, name, path, target=None):
                if name == "grpo_verl_ext.cli":
                    raise KeyboardInterrupt

        sys.meta_path.insert(0, Pressed())
        from grpo_verl_ext.__main__ import main
        main()
        """
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", RESUME)


@pytest.mark.parametrize(
    ("extra", "module", "brings"),
    [
        ("ablation", "scipy.stats", True),
        ("ablation", "hydra", False),
        ("iterate", "trl", True),
        ("iterate", "scipy", False),
        ("prepare", "pandas", False),
    ],
)
def test_a_missing_module_names_the_extra_that_brings_it(
    extra: str, module: str, brings: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit), one_message("it", extra=extra):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    line = f". Type: pip install '.[{extra}]', in a checkout of grpo_verl_ext" * brings
    assert capsys.readouterr().err == f"it: No module named {module!r}{line}\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
def test_a_terminal_that_lacks_characters(tmp_path: Path, encoding: str, interpreter: Python) -> None:
    """Status 1 would mean warnings, or runs that are not finished."""
    settings = GridSettings(
        **{"folder": str(tmp_path), "steps": 1, "base": [], "axes": {"algo": {"a": [], "b": []}}},
        **{"seeds": [1], "baseline": ["a"], "metrics": ["acc"]},
    )
    grid.keep_grid(settings)
    for run, acc in zip(grid.runs_of(settings), (0.5, 0.25), strict=True):
        run.training.folder.mkdir(parents=True)
        logged = json.dumps({"step": 1, "data": {TRAINED: 1, "acc": acc}})
        (run.training.folder / "attempt-1.jsonl").write_text(f"{logged}\n")
    words = ["grpo-verl-ext", "ablate", "report", str(tmp_path)]
    code = f"import sys\nfrom grpo_verl_ext.__main__ import main\nsys.argv = {words}\nmain()"
    ended = interpreter(code, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert {"latin-1": "b \\u2212 a", "utf-8": "b − a"}[encoding] in ended.stdout
