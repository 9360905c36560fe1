"""What verl loads in each of its processes: entry point ``grpo_verl_ext`` of the group ``verl.plugins``.

verl logs an exception of a plugin at DEBUG and goes on without it, so that the user meets
``Unknown advantage estimator`` only after a whole rollout. This module therefore says on stderr what
failed before it lets the exception go.
"""

import sys

try:
    from grpo_verl_ext.verl_plugin.registration import register

    register()
except Exception as error:
    print(
        f"grpo_verl_ext: the plugin did not load, so its algorithms, presets and CPU platform are missing in "
        f"this process.\n  {type(error).__name__}: {error}",
        file=sys.stderr,
        flush=True,
    )
    raise
