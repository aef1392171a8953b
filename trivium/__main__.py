"""`python -m trivium` is the command line."""

from trivium.cli import main

main()
