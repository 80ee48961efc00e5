/* A process with this library preloaded has a clock (CLOCK_REALTIME) that is AHEAD_MS ahead; other clocks are right. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*real)(clockid_t, struct timespec *);
static long ahead_ms;

__attribute__((constructor)) static void begin(void) {
  real = dlsym(RTLD_NEXT, "clock_gettime");
  ahead_ms = atol(getenv("AHEAD_MS"));
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  if (!real) begin();
  int failed = real(clock, at);
  if (clock != CLOCK_REALTIME || failed) return failed;
  long ns = at->tv_nsec + (ahead_ms % 1000 + 1000) % 1000 * 1000000;
  at->tv_sec += ahead_ms / 1000 - (ahead_ms % 1000 < 0) + ns / 1000000000;
  at->tv_nsec = ns % 1000000000;
  return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  int failed = clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return failed;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
