"""Write this folder's README from the table of seams: ``python tests/contract/contract_page.py``."""

from pathlib import Path

from reliances import PresetKeys
from seams import SEAMS, Seam

PAGE = Path(__file__).with_name("README.md")

INTRODUCTION = """# The contract with verl

Every point at which this package touches verl: what it imports, overrides, patches and calls, the registries
it enters and the configuration it reads. Pieces of verl's source and orders of its calls are listed only
where their change would raise no error; [`seams.py`](seams.py), the table, says what would go wrong. This
page is written from it (`python tests/contract/contract_page.py`).

```
python -m pytest tests/contract                    # against the verl that is installed
bash tests/contract/against.sh 0.9.0               # against another, in a folder that goes away again
bash tests/contract/against.sh newest              # needs the network; a folder or git+https://… does, too
bash tests/contract/against.sh 0.9.0 tests/plugin  # other tests against it; needs the network
```

The tests of the table read verl's sources and import nothing, so they take seconds and need none of verl's
requirements. A test that fails says what moved, and who relies on it. Where the table has pieces of source
(`has …`), verl may only say the same in other words: look, then correct the line.

```text
verl.trainer.ppo.v1.trainer_base.PPOTrainer._update_actor has lost its parameter metrics;
grpo_verl_ext.verl_plugin.gvpo.trainer overrides it
```

That the checks before a training leave verl's own users in peace is asked of verl's example scripts:
`python tests/contract/verl_scripts.py CHECKOUT` runs every script of a checkout's `examples/`,
`tests/special_e2e` and `verl/experimental/*/shell` with stand-ins for Python, Ray and whatever else they call
and puts each list of arguments through the hook in the driver, as it is and with a preset in front.

Another test reads our own sources: a name, attribute, override or key that is not in the table fails
it. Whether our patches are still needed is asked in `tests/cpu/test_patches.py`.

| verl | contract |
|---|---|
| 0.9.0 | holds, and losses, estimators, groups and CPU platform pass their tests; no training was run (¹) |
| 0.9.1 | holds; the version that all tests run with, and the newest of the package index |
| its main branch | not looked at: `bash tests/contract/against.sh git+https://github.com/verl-project/verl` |

(¹) Its validation leaves out responses that never came; from 0.9.1 on they count 0 in `val-core/…/acc`.

`…` stands for any more parameters; names of verl's are given without `verl.`, ours without `grpo_verl_ext.`
"""


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_section(name, seams) for name, seams in SEAMS.items())


def _section(name: str, seams: list[Seam]) -> str:
    rows = dict.fromkeys(_row(seam) for seam in seams)
    return f"\n## {name}\n\n| verl | what we rely on | who |\n|---|---|---|\n{''.join(rows)}"


def _row(seam: Seam) -> str:
    """A row; the same one for all presets."""
    if isinstance(seam.relies, PresetKeys):
        return f"| {_of_verl(seam)} | {seam.relies} | each file of `config` sets its own |\n"
    return f"| {_of_verl(seam)} | {seam.relies} | {_ours(seam)} |\n"


def _of_verl(seam: Seam) -> str:
    return f"`{seam.where.removeprefix('verl.')}`"


def _ours(seam: Seam) -> str:
    return ", ".join(f"`{name}` {seam.relies.verb}" for name in seam.by)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
