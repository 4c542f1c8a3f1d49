# cmake --install: headers, libraries, programs, and what find_package(Lockstep) reads.
