"""Start the command line; Ctrl-C ends it with status 130 and one line even while it is being imported."""

import gc
import sys


def main() -> None:
    """Run ``grpo-verl-ext`` with the arguments of this process."""
    try:
        from grpo_verl_ext.cli import app
        from grpo_verl_ext.utils.console import print_any_character
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again to resume.", file=sys.stderr)
        sys.exit(130)
    gc.set_threshold(100_000)  # importing verl and composing make many objects, and hardly one in vain
    print_any_character()
    app()


if __name__ == "__main__":
    main()
