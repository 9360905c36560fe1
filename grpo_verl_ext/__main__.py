"""Start the command line; Ctrl-C ends it with status 130 and one line even while it is being imported."""

import sys


def main() -> None:
    """Run ``grpo-verl-ext`` with the arguments of this process."""
    try:
        from grpo_verl_ext.cli import app
    except KeyboardInterrupt:
        print("\nInterrupted. Run the same command again to resume.", file=sys.stderr)
        sys.exit(130)
    app()


if __name__ == "__main__":
    main()
