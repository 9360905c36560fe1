"""The documentation site: ``sphinx-build -W --keep-going -q docs build/site``, part of tests/run.sh.

Where ``REPOSITORY_ADDRESS`` is set, the navigation leads to the repository, and README installs from there.
"""

import os
import sys
from pathlib import Path

import yaml
from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import grpo_verl_ext

project = "grpo_verl_ext"
release = version = grpo_verl_ext.__version__
author = "The grpo_verl_ext authors"
project_copyright = author

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    # docs/_ext
    "docstrings",
    "formulas",
    "pictures",
    "repository",
]
exclude_patterns = ["_ext"]

html_theme = "furo"
html_title = f"grpo_verl_ext {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_search_scorer = str(Path(__file__).parent / "_ext/search_scorer.js")
html_math_renderer = "mathml"
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

# GitHub shows the pages, too: what it takes for a formula or an anchor is one here, and nothing else is.
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_space = False
myst_dmath_allow_digits = False
myst_fence_as_directive = ["math"]
myst_heading_anchors = 6

default_role = "py:obj"
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_maximum_signature_line_length = 80

NAVIGATION = """
```{toctree}
:hidden:

Start <self>
README <repository/README>
Repository <$REPOSITORY_ADDRESS>
glossary
```

```{toctree}
:hidden:
:caption: Train

first_hour
installation
cpu
gpus
migration
settings
support
```

```{toctree}
:hidden:
:caption: Choose an algorithm

papers
```

GROUPS

```{toctree}
:hidden:
:caption: Data, reward, model

tasks
Tasks of a checkout <repository/examples/tasks/README>
rewards
iterative
lora_tools_images
shared_prompts
```

```{toctree}
:hidden:
:caption: Find mistakes

doctor
troubleshooting
```

```{toctree}
:hidden:
:caption: Compare

ablations
Anatomy of a rollout, an example <repository/examples/anatomy>
Results on the embedded task <repository/examples/ablations/RESULTS>
Distillation, an example <repository/examples/teacher/README>
```

```{toctree}
:hidden:
:caption: Check the promise

normalisation
conformance
repository/benchmarks/README
```

```{toctree}
:hidden:
:caption: Write your own

api
own_loss
new_algorithm
```

```{toctree}
:hidden:
:caption: The project

versioning
repository/recipe/grpo_verl_ext/README
repository/CONTRIBUTING
repository/SECURITY
repository/CODE_OF_CONDUCT
repository/CHANGELOG
```
"""


GROUPS = yaml.safe_load((Path(__file__).parents[1] / "tests/helpers/papers.yaml").read_text(encoding="utf-8"))
TREES = []
for group, names in GROUPS.items():
    pages = (f"algorithms/{name}" for name in names)
    TREES.append("\n".join(["```{toctree}", ":hidden:", f":caption: {group}", "", *pages, "```"]))
NAVIGATION = NAVIGATION.replace("GROUPS", "\n\n".join(TREES))


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    """Fill in the address; append to the first page its table of contents, shown as code by GitHub."""
    source[0] += NAVIGATION if docname == app.config.root_doc else ""
    if address := os.environ.get("REPOSITORY_ADDRESS", "").rstrip("/"):
        source[0] = source[0].replace("$REPOSITORY_ADDRESS", address)
    source[0] = source[0].replace("Repository <$REPOSITORY_ADDRESS>\n", "")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", prepare)
