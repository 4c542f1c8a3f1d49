// Prints the size of MPI's world. An mpirun that passes rank numbers in a way that the library does
// not understand starts worlds of size one (MPICH 4.2.0 of Ubuntu 24.04).
#include <mpi.h>

#include <cstdio>

int main(int count, char** arguments) {
  MPI_Init(&count, &arguments);
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == 0) std::printf("world of %d\n", size);
  MPI_Finalize();
}
