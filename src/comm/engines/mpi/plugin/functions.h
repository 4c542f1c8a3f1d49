// What an MPI plug-in offers: the little of MPI that the engine `mpi` needs, over raw bytes.
//
// Lockstep links no MPI. Each implementation found when it is built becomes one small library of
// this one source (functions.cc), and the engine opens the one whose launcher started the program.
// Only C crosses the border. Every call comes from one thread, that of start(); none blocks, but
// start() and stop(). Calls that can fail return 0 or the code that describe() explains.
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
};

struct lockstep_mpi_functions {
  // Initialises MPI unless the program has done so, which must then allow calls from any thread.
  int (*start)(lockstep_mpi_world* world);
  // At most 2^30 bytes a message. The memory belongs to MPI until test() says that it is done.
  int (*send)(const void* data, std::size_t bytes, int to, int tag, lockstep_mpi_request* request);
  // `from` may be -1: from anybody.
  int (*receive)(void* data, std::size_t bytes, int from, int tag, lockstep_mpi_request* request);
  int (*test)(lockstep_mpi_request* request, int* done, int* from);
  // Of a receive: gives its memory back.
  int (*cancel)(lockstep_mpi_request* request);
  // Ends MPI if start() began it. A collective operation of the whole world.
  int (*stop)();
  void (*describe)(int code, char* text, std::size_t bytes);
};

// The one symbol of a plug-in.
constexpr const char* lockstep_mpi_symbol = "lockstep_mpi_plugin";
using lockstep_mpi_plugin_function = const lockstep_mpi_functions* (*)(std::uint32_t version);
// Goes up with every change above; a plug-in of another version answers with null.
constexpr std::uint32_t lockstep_mpi_version = 1;

}  // extern "C"
