/* Moves the wall clock of every process that is started with LD_PRELOAD on this library, by as many seconds as the file
 * COUNTERFLOW_CHAOS_CLOCK holds (a binary int64, read at every call). The monotonic clocks are left alone, as in a real jump, and
 * so is the simulated provider: its bill is what the ledger is judged by. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset_s;
static int (*real_gettime)(clockid_t, struct timespec *);

/* The command line of this process names the provider. Its words are separated by NUL. */
static int is_provider(void) {
    static char line[4096];
    static const char name[] = "workers.simcloud";
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, line, sizeof(line));
    if (file >= 0) close(file);
    return length > 0 && memmem(line, (size_t)length, name, sizeof(name) - 1) != NULL;
}

__attribute__((constructor)) static void prepare(void) {
    real_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (is_provider()) return;
    const char *path = getenv("COUNTERFLOW_CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        if (page != MAP_FAILED) offset_s = page;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real_gettime) prepare();
    int status = real_gettime(clock, at);
    if (status == 0 && offset_s && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += *offset_s;
    return status;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME_COARSE, &now)) return (time_t)-1;
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
