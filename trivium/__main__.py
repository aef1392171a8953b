"""`python -m trivium` is the command line."""

from trivium.cli.main import main

main()
