"""The only part of the package that imports verl: registration, adapters, driver checks, CPU platform."""

from grpo_verl_ext.utils.which_verl import which_verl

# Refuse a verl with other hooks than the plugin needs.
which_verl()

# verl loads this package as a plugin in the middle of its own import. Importing it here gives every module
# below the same order, whichever of them is asked for first.
import verl  # noqa: E402, F401
