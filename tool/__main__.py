"""`python -m qkvac` is the command `qkvac`."""

from qkvac.isolation.origins import narrow


def main() -> None:
    """Runs the command line, which imports nothing from the folder that it is started in."""
    narrow()
    from qkvac.cli.main import main as run
    from qkvac.isolation.descendants import adopt_and_end

    adopt_and_end()
    run()


if __name__ == "__main__":
    main()
