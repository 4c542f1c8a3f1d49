// The interface of an MPI plug-in: the few functions of MPI that the backend `mpi` needs, over raw
// bytes.
//
// Lockstep links no MPI. For each implementation found at build time, this source (functions.cc) is
// compiled into one small library, and the backend opens the library whose launcher started the
// program. The interface is plain C. All calls but forget() must come from the thread that calls
// start(). Only start() and stop() block. Calls that can fail return 0, or an error code that
// describe() explains.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Holds an MPI_Request; plain bytes that may be moved.
struct lockstep_mpi_request {
  alignas(8) unsigned char bytes[16];
};

struct lockstep_mpi_world {
  int rank;
  int size;
  int greatest_tag;
  char library[128];  // the implementation's name and version
  char root[256];     // a text of the caller's; start() replaces it by that of rank 0
  // If the program initialised MPI: called once, inside its MPI_Finalize(), while MPI still works.
  // MPI_Finalize() continues when it returns; no function but forget() may be called after that.
  void (*ending)(void* context);
  void* context;
};

struct lockstep_mpi_functions {
  // Initialises MPI unless the program has done so. In that case MPI must allow calls from any
  // thread. Collective over the whole world. Keeps `world` until forget().
  int (*start)(lockstep_mpi_world* world);
  // At most 2^30 bytes per message. The memory belongs to MPI until test() sets `done`.
  int (*send)(const void* data, std::size_t bytes, int to, int tag, lockstep_mpi_request* request);
  // `from` may be -1: any source.
  int (*receive)(void* data, std::size_t bytes, int from, int tag, lockstep_mpi_request* request);
  int (*test)(lockstep_mpi_request* request, int* done, int* from);
  // Cancels a receive and releases its memory.
  int (*cancel)(lockstep_mpi_request* request);
  // Finalises MPI if start() initialised it. Collective over the whole world.
  int (*stop)();
  // Ends the use of start()'s `world`: `ending` will not be called any more. Calls no MPI.
  void (*forget)();
  void (*describe)(int code, char* text, std::size_t bytes);
};

// The only symbol of a plug-in.
constexpr const char* lockstep_mpi_symbol = "lockstep_mpi_plugin";
using lockstep_mpi_plugin_function = const lockstep_mpi_functions* (*)(std::uint32_t version);
// Increment it with every change above; a plug-in of another version returns null.
constexpr std::uint32_t lockstep_mpi_version = 3;

}  // extern "C"
