"""Entry point ``grpo_verl_ext`` of the group ``verl.plugins``: verl imports it in each of its processes.

verl logs an exception of a plugin at DEBUG and continues without the plugin, so the user would see
``Unknown advantage estimator`` only after a whole rollout. This module therefore prints the failure on stderr
before it raises it again.
"""

import sys

try:
    from grpo_verl_ext import driver
    from grpo_verl_ext.verl_plugin.registration import register

    register()
    driver.register_checks()
except Exception as error:
    print(
        f"grpo_verl_ext: the plugin did not load, so its algorithms, presets and CPU platform are missing in "
        f"this process.\n  {type(error).__name__}: {error}",
        file=sys.stderr,
        flush=True,
    )
    raise
