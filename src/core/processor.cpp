#include "processor.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "futex.hpp"

namespace dragon {

namespace {

constexpr Nanoseconds kSoonest = 2'000'000, kLatest = 2'000'000'000;  // between two moves
constexpr Nanoseconds kYields = 200'000;                              // between two yields

// Threads on this machine that run or would like to.
long runnable() {
    char text[128];
    int fd = open("/proc/loadavg", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    const char* slash = strchr(text, '/');  // "0.20 0.18 0.12 1/80 11206"
    while (slash && slash > text && slash[-1] != ' ') --slash;
    return slash ? strtol(slash, nullptr, 10) : -1;
}

void leave(uint32_t processor) {
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    long busy = runnable();
    if (busy < 0 || busy > CPU_COUNT(&allowed)) return;
    others = allowed;
    CPU_CLR(processor, &others);
    // Both at once, so that the thread may be anywhere again once it has moved.
    if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace

void was_woken_from(uint32_t waker) {
    static thread_local Nanoseconds next = 0, pause = kSoonest;
    if (waker != current_processor()) return;
    Nanoseconds time = now();
    if (time < next) return;
    // Where moving does not help for long it is tried less and less.
    pause = time - next < pause ? std::min(pause * 2, kLatest) : kSoonest;
    next = time + pause;
    leave(waker);
}

void woke_another() {
    static thread_local Nanoseconds next = 0;
    Nanoseconds time = now();
    if (time < next) return;
    next = time + kYields;
    sched_yield();
}

}  // namespace dragon
