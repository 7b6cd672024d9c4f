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
constexpr Nanoseconds kLooks = 500'000;                               // between two looks for an idle one
constexpr Nanoseconds kYields = 200'000;                              // between two yields
constexpr Nanoseconds kSettles = 5'000'000;                           // a moment after a move
constexpr Nanoseconds kShort = 20'000;  // a sleep that spinning would have spared

struct Moves {
    Nanoseconds next = 0, pause = kSoonest;  // when the thread may move, and how long it may not after that
    Nanoseconds settled = 0;                 // when its last move is over
};
thread_local Moves moves;

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

// Whether so few threads would like to run that another processor than this one may be idle. Since Linux 6.12
// some are counted that have just gone to sleep: who has much to gain takes the chance.
bool others_may_be_idle(const cpu_set_t& allowed, bool bold) {
    long busy = runnable();
    return busy >= 0 && busy <= CPU_COUNT(&allowed) + (bold ? 2 : 0);
}

// Whether this thread is on another processor now.
bool leave(uint32_t processor, const cpu_set_t& allowed) {
    cpu_set_t others = allowed;
    CPU_CLR(processor, &others);
    if (sched_setaffinity(0, sizeof others, &others) != 0) return false;
    // At once, so that the thread may be anywhere again once it has moved.
    sched_setaffinity(0, sizeof allowed, &allowed);
    return true;
}

}  // namespace

void was_woken_from(uint32_t waker, Nanoseconds slept) {
    if (waker != current_processor()) return;
    Nanoseconds time = now();
    if (time < moves.next) return;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
    if (!others_may_be_idle(allowed, slept < kShort)) {
        moves.next = time + kLooks;
        return;
    }
    // Where moving does not help for long it is tried less and less.
    moves.pause = time - moves.next < moves.pause ? std::min(moves.pause * 2, kLatest) : kSoonest;
    moves.next = time + moves.pause;
    if (leave(waker, allowed)) moves.settled = now() + kSettles;
}

bool has_just_moved() {
    if (moves.settled && now() >= moves.settled) moves.settled = 0;
    return moves.settled;
}

void moved_in_vain() {
    moves.settled = 0;
    moves.pause = std::min(moves.pause * 4, kLatest);
    moves.next = now() + moves.pause;
}

void woke_another() {
    static thread_local Nanoseconds next = 0;
    Nanoseconds time = now();
    if (time < next) return;
    next = time + kYields;
    sched_yield();
}

}  // namespace dragon
