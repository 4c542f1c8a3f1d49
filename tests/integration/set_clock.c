/* LD_PRELOAD: the wall clock jumps by an hour, forwards and backwards, several times a second. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long jump(void) {
  struct timespec now;
  syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  const long turn = (now.tv_sec * 10 + now.tv_nsec / 100000000) / 3 % 3;
  return turn == 0 ? 0 : turn == 1 ? 3600 : -3600;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
  const int result = (int)syscall(SYS_clock_gettime, clock, time);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) time->tv_sec += jump();
  return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
  const int result = (int)syscall(SYS_gettimeofday, time, zone);
  time->tv_sec += jump();
  return result;
}

time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to != NULL) *to = now.tv_sec;
  return now.tv_sec;
}
