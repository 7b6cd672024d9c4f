// A clock that is wrong. Preloaded, it adds to the time of day as many seconds as the file CLOCK says, an
// int64_t, which may be changed at any time. Clocks that only go on, as CLOCK_MONOTONIC, are left alone, as
// they are when somebody sets the clock of a machine.

#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t* wrong_by;

__attribute__((constructor)) static void look_for_file(void) {
    int fd = open(CLOCK, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;  // right
    void* mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) wrong_by = mapped;
    close(fd);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    int told_by_day = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI;
    if (!failed && told_by_day && wrong_by) now->tv_sec += *wrong_by;
    return failed;
}

int gettimeofday(struct timeval* restrict now, void* restrict zone) {
    (void)zone;
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* now) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
