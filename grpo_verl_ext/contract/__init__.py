"""The contract with verl: every point at which this package relies on verl's sources.

`derived` reads our own sources for what they import, call, override and read; `seams` has by hand what they
do not show. verl is read and not imported. `doctor` checks the contract on the installed verl, and
``tests/contract`` in every run of the tests.
"""
