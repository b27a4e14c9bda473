/* A server whose clock is ahead by the microseconds in a file, and counts seconds like any other. LD_PRELOAD. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *ahead;

__attribute__((constructor)) static void begin(void) {
  int file = open(getenv("CLOCK_AHEAD"), O_RDONLY);
  void *page = mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, file, 0);
  if (file < 0 || page == MAP_FAILED) _exit(9);
  ahead = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, id, now);
  if (!failed && ahead && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
    long long micros = now->tv_sec * 1000000LL + now->tv_nsec / 1000 + *ahead;
    now->tv_sec = micros / 1000000;
    now->tv_nsec = micros % 1000000 * 1000;
  }
  return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  (void)zone;
  struct timespec at;
  if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
  now->tv_sec = at.tv_sec;
  now->tv_usec = at.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *now) {
  struct timespec at;
  if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
  if (now) *now = at.tv_sec;
  return at.tv_sec;
}
