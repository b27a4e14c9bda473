/* The clock of a server, in a file that a test writes. LD_PRELOAD. The file of SERVER_CLOCK has microseconds since the
   epoch. That of CLOCK_AHEAD has the microseconds by which the wall clock is ahead; seconds last as long as ever. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *micros;
static int is_whole;

__attribute__((constructor)) static void begin(void) {
  is_whole = getenv("SERVER_CLOCK") != NULL;
  int file = open(getenv(is_whole ? "SERVER_CLOCK" : "CLOCK_AHEAD"), O_RDONLY);
  void *page = mmap(NULL, sizeof(*micros), PROT_READ, MAP_SHARED, file, 0);
  if (file < 0 || page == MAP_FAILED) _exit(9);
  micros = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
  static long long latest;
  int day = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
  int failed = syscall(SYS_clock_gettime, id, now);
  if (failed || !micros || !(day || (is_whole && id == CLOCK_MONOTONIC))) return failed;
  long long at = *micros;
  if (!is_whole) {
    at += now->tv_sec * 1000000LL + now->tv_nsec / 1000;
  } else {
    if (at > latest) latest = at;
    if (!day) at = latest;
  }
  now->tv_sec = at / 1000000;
  now->tv_nsec = at % 1000000 * 1000;
  return 0;
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
