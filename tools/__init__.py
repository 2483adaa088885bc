"""What ./dev runs: set-up of the machine, checks, tests and generated pages; never part of the product."""
