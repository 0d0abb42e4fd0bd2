"""`python -m magistrate` runs the command `magistrate`."""

from magistrate.cli import main

if __name__ == "__main__":
    main()
