#!/usr/bin/env python3
"""Runs a test program that needs mpirun, or skips it if this mpirun cannot start worlds of several ranks.

    under_mpirun.py MPIRUN WORLD -n RANKS PROGRAM WORDS...    MPIRUN starts the ranks of PROGRAM
    under_mpirun.py MPIRUN WORLD PROGRAM WORDS...             PROGRAM calls MPIRUN itself

WORLD is the program tests/comm/programs/mpi_world.cc, linked with the MPI that MPIRUN belongs to.
"""
import os
import sys

from support import skip, why_no_world


def main(words):
    if len(words) < 3:
        sys.exit(__doc__)
    mpirun, world, *command = words
    if why := why_no_world([mpirun], world):
        skip(why)
    if command[0] == "-n":
        command = [mpirun, *command]
    sys.stdout.flush()
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
