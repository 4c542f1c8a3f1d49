#include "comm/backends/mpi/plugin/functions.h"

#include <cstring>
#include <utility>

#include <mpi.h>

namespace {

static_assert(sizeof(MPI_Request) <= sizeof(lockstep_mpi_request));

MPI_Comm world = MPI_COMM_NULL;  // a separate communicator: its messages match no others
bool began_here = false;
lockstep_mpi_world* to_tell = nullptr;  // of the program's MPI_Finalize()

constexpr int needs_all_threads = -1;
constexpr int has_ended = -2;

MPI_Request load(const lockstep_mpi_request* request) {
  MPI_Request loaded;
  std::memcpy(&loaded, request->bytes, sizeof(MPI_Request));
  return loaded;
}

void store(lockstep_mpi_request* request, MPI_Request value) {
  std::memcpy(request->bytes, &value, sizeof(MPI_Request));
}

int begin() {
  int is_begun = 0;
  int is_over = 0;
  int level = MPI_THREAD_SINGLE;
  MPI_Finalized(&is_over);
  if (is_over != 0) return has_ended;
  MPI_Initialized(&is_begun);
  if (is_begun == 0) {
    began_here = true;
    return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  }
  int code = MPI_Query_thread(&level);
  return code == MPI_SUCCESS && level < MPI_THREAD_MULTIPLE ? needs_all_threads : code;
}

int at_finalize(MPI_Comm, int, void*, void*) {
  if (auto* told = std::exchange(to_tell, nullptr)) told->ending(told->context);
  return MPI_SUCCESS;
}

// MPI_Finalize() first deletes the attributes of MPI_COMM_SELF, while MPI still works.
int watch_finalize() {
  int key = MPI_KEYVAL_INVALID;
  if (int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, at_finalize, &key, nullptr);
      code != MPI_SUCCESS)
    return code;
  if (int code = MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr); code != MPI_SUCCESS) return code;
  return MPI_Comm_free_keyval(&key);
}

int start(lockstep_mpi_world* facts) {
  if (int code = begin(); code != MPI_SUCCESS) return code;
  if (int code = MPI_Comm_dup(MPI_COMM_WORLD, &world); code != MPI_SUCCESS) return code;
  MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(world, &facts->rank);
  MPI_Comm_size(world, &facts->size);
  int* greatest = nullptr;
  int found = 0;
  MPI_Comm_get_attr(world, MPI_TAG_UB, &greatest, &found);
  facts->greatest_tag = found != 0 ? *greatest : 32767;  // the minimum that the standard guarantees
  char version[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(version, &length);
  std::strncpy(facts->library, version, sizeof(facts->library) - 1);
  facts->library[sizeof(facts->library) - 1] = '\0';
  facts->library[std::strcspn(facts->library, ",\n")] = '\0';
  if (!began_here) {
    if (int code = watch_finalize(); code != MPI_SUCCESS) return code;
    to_tell = facts;
  }
  return MPI_Bcast(facts->root, sizeof(facts->root), MPI_BYTE, 0, world);
}

int send(const void* data, std::size_t bytes, int to, int tag, lockstep_mpi_request* request) {
  MPI_Request fresh = MPI_REQUEST_NULL;
  int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, to, tag, world, &fresh);
  store(request, fresh);
  return code;
}

int receive(void* data, std::size_t bytes, int from, int tag, lockstep_mpi_request* request) {
  MPI_Request fresh = MPI_REQUEST_NULL;
  int source = from < 0 ? MPI_ANY_SOURCE : from;
  int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, source, tag, world, &fresh);
  store(request, fresh);
  return code;
}

int test(lockstep_mpi_request* request, int* done, int* from) {
  MPI_Request held = load(request);
  MPI_Status status;
  int code = MPI_Test(&held, done, &status);
  store(request, held);
  if (code == MPI_SUCCESS && *done != 0) *from = status.MPI_SOURCE;
  return code;
}

int cancel(lockstep_mpi_request* request) {
  MPI_Request held = load(request);
  int code = MPI_Cancel(&held);
  if (code == MPI_SUCCESS) code = MPI_Wait(&held, MPI_STATUS_IGNORE);
  store(request, held);
  return code;
}

int stop() {
  if (int code = MPI_Comm_free(&world); code != MPI_SUCCESS) return code;
  return began_here ? MPI_Finalize() : MPI_SUCCESS;
}

void forget() { to_tell = nullptr; }

void describe(int code, char* text, std::size_t bytes) {
  char message[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  if (code == needs_all_threads) {
    std::strcpy(message,
                "the program initialised MPI itself, without MPI_THREAD_MULTIPLE; ask "
                "MPI_Init_thread() for it, or leave MPI to Lockstep");
  } else if (code == has_ended) {
    std::strcpy(
        message,
        "MPI_Finalize() has been called, and MPI can be initialised only once in a process");
  } else {
    MPI_Error_string(code, message, &length);
  }
  std::strncpy(text, message, bytes - 1);
  text[bytes - 1] = '\0';
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const lockstep_mpi_functions* lockstep_mpi_plugin(
    std::uint32_t version) {
  static const lockstep_mpi_functions functions{start,  send, receive, test,
                                                cancel, stop, forget,  describe};
  return version == lockstep_mpi_version ? &functions : nullptr;
}
