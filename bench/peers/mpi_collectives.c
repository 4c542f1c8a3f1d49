/* MPI's collectives: one rank of `./dev bench collectives`, started by mpirun.
 *
 * Reads FOLDER/in.RANK and writes FOLDER/out.RANK: first {"ready": true, "library": ...}, then answers to
 *
 *   check OP BYTES MEMORY            creates the tensors and compares the result of one call with the expected one
 *   run OP BYTES MEMORY UNCOUNTED N  {"ns": [...]}: nanoseconds of each of N calls
 *
 * Between lines it is blocked in a read, where MPI does not spin. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum op { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, ALL_TO_ALL, REDUCE, GATHER, SCATTER, BARRIER, OPS };
static const char* const names[OPS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all",
                                       "reduce",     "gather",     "scatter",        "barrier"};

static int rank, ranks;
static float *whole, *other; /* `other` has the size of a part, or of `whole` */

static void give_up(const char* what) {
  fprintf(stderr, "mpi_collectives: rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static enum op op_named(const char* name) {
  for (int op = 0; op < OPS; ++op)
    if (strcmp(name, names[op]) == 0) return (enum op)op;
  give_up("unknown operation");
  return OPS;
}

/* One rank may return before the others have begun, so a barrier precedes each call. */
static int is_rooted(enum op op) { return op == BROADCAST || op == REDUCE || op == GATHER || op == SCATTER; }

/* Aligned like LibTorch's allocator. */
static float* make(size_t count) {
  void* memory = NULL;
  if (posix_memalign(&memory, 64, count * sizeof(float) + 64) != 0) give_up("no memory");
  return memory;
}

static void fill(float* values, size_t count) {
  for (size_t i = 0; i < count; ++i) values[i] = 1;
}

static void call(enum op op, int count) {
  int part = count / ranks;
  MPI_Comm world = MPI_COMM_WORLD;
  switch (op) {
    case ALL_REDUCE: MPI_Allreduce(MPI_IN_PLACE, whole, count, MPI_FLOAT, MPI_SUM, world); break;
    case ALL_GATHER: MPI_Allgather(other, part, MPI_FLOAT, whole, part, MPI_FLOAT, world); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(whole, other, part, MPI_FLOAT, MPI_SUM, world); break;
    case BROADCAST: MPI_Bcast(whole, count, MPI_FLOAT, 0, world); break;
    case ALL_TO_ALL: MPI_Alltoall(whole, part, MPI_FLOAT, other, part, MPI_FLOAT, world); break;
    case REDUCE:
      MPI_Reduce(rank == 0 ? MPI_IN_PLACE : whole, rank == 0 ? whole : NULL, count, MPI_FLOAT, MPI_SUM, 0, world);
      break;
    case GATHER: MPI_Gather(other, part, MPI_FLOAT, whole, part, MPI_FLOAT, 0, world); break;
    case SCATTER: MPI_Scatter(whole, part, MPI_FLOAT, other, part, MPI_FLOAT, 0, world); break;
    default: MPI_Barrier(world);
  }
}

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static long long measured_call(enum op op, int count) {
  if (is_rooted(op)) MPI_Barrier(MPI_COMM_WORLD);
  long long start = now();
  call(op, count);
  return now() - start;
}

static void take_turn(enum op op, long bytes, int uncounted, int calls, FILE* out) {
  int count = (int)(bytes / (long)sizeof(float));
  fill(whole, count);
  fill(other, op == ALL_TO_ALL ? count : count / ranks);
  long long* times = malloc(sizeof(long long) * (size_t)(calls + 1));
  if (times == NULL) give_up("no memory");
  for (int i = 0; i < uncounted; ++i) measured_call(op, count);
  for (int i = 0; i < calls; ++i) times[i] = measured_call(op, count);
  fprintf(out, "{\"ns\":[");
  for (int i = 0; i < calls; ++i) fprintf(out, i == 0 ? "%lld" : ",%lld", times[i]);
  fprintf(out, "]}\n");
  fflush(out);
  free(times);
}

/* The values of src/apps/bench/collectives/kinds.cc, which differ by rank and position. */
enum { PERIOD = 4093, RANK_STEP = 4096 };

static float input_value(int of_rank, long position) { return (float)(position % PERIOD + RANK_STEP * of_rank); }

static float sum_of_inputs(long position) {
  return (float)(ranks * (position % PERIOD) + RANK_STEP * ((long)ranks * (ranks - 1) / 2));
}

static float output_value(enum op op, long position, long part) {
  int from = (int)(position / part);
  switch (op) {
    case ALL_REDUCE:
    case REDUCE: return sum_of_inputs(position);
    case REDUCE_SCATTER: return sum_of_inputs(rank * part + position);
    case ALL_GATHER:
    case GATHER: return input_value(from, position % part);
    case ALL_TO_ALL: return input_value(from, rank * part + position % part);
    case SCATTER: return input_value(0, rank * part + position);
    default: return input_value(0, position);
  }
}

/* The input is `whole`, except in operations that gather parts. The output is the other tensor, or the same one. */
static void check(enum op op, long count) {
  long part = count / ranks;
  int gathers = op == ALL_GATHER || op == GATHER;
  int is_in_place = op == ALL_REDUCE || op == BROADCAST || op == REDUCE;
  float* input = gathers ? other : whole;
  float* output = gathers || is_in_place ? whole : other;
  long inputs = gathers ? part : count;
  long outputs = gathers || is_in_place || op == ALL_TO_ALL ? count : part;
  for (long i = 0; i < inputs; ++i) input[i] = input_value(rank, i);
  call(op, (int)count);
  if (op == BARRIER || ((op == REDUCE || op == GATHER) && rank != 0)) return;
  for (long i = 0; i < outputs; ++i) {
    if (output[i] == output_value(op, i, part)) continue;
    fprintf(stderr, "mpi_collectives: %s: rank %d expected %g at element %ld, found %g\n", names[op], rank,
            (double)output_value(op, i, part), i, (double)output[i]);
    give_up("a wrong result");
  }
}

static void make_tensors(enum op op, long bytes) {
  size_t count = (size_t)bytes / sizeof(float), part = count / (size_t)ranks;
  free(whole);
  free(other);
  whole = make(count);
  other = make(op == ALL_TO_ALL ? count : part);
  fill(whole, count);
  fill(other, op == ALL_TO_ALL ? count : part);
}

static void serve(FILE* in, FILE* out) {
  char line[256], order[16], name[32], memory[32];
  long bytes = 0;
  int uncounted = 0, calls = 0;
  while (fgets(line, sizeof line, in) != NULL) {
    int words = sscanf(line, "%15s %31s %ld %31s %d %d", order, name, &bytes, memory, &uncounted, &calls);
    if (words == 4 && strcmp(order, "check") == 0) {
      make_tensors(op_named(name), bytes);
      check(op_named(name), bytes / (long)sizeof(float));
      fprintf(out, "{\"checked\": true}\n");
      fflush(out);
    } else if (words == 6 && strcmp(order, "run") == 0 && whole != NULL) {
      take_turn(op_named(name), bytes, uncounted, calls, out);
    } else {
      give_up("what line?");
    }
  }
}

static FILE* open_pipe(const char* folder, const char* direction, const char* mode) {
  char path[4096];
  snprintf(path, sizeof path, "%s/%s.%d", folder, direction, rank);
  FILE* file = fopen(path, mode);
  if (file == NULL) give_up("cannot open its pipe");
  return file;
}

int main(int count, char** words) {
  char library[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Init(&count, &words);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (count != 2) give_up("expected the folder of its pipes");
  MPI_Get_library_version(library, &length);
  library[strcspn(library, ",\n\t\"\\")] = '\0';
  FILE* out = open_pipe(words[1], "out", "w");
  FILE* in = open_pipe(words[1], "in", "r");
  fprintf(out, "{\"ready\": true, \"library\": \"%s\"}\n", library);
  fflush(out);
  serve(in, out);
  MPI_Finalize();
  return 0;
}
