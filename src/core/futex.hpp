// Waits on a 32-bit word that processes share, with deadlines on the monotonic clock.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>

namespace dragon {

using Word = std::atomic<uint32_t>;
using Nanoseconds = int64_t;

inline constexpr Nanoseconds kForever = INT64_MAX;

// How a wait ended. Interrupted: a signal arrived; the caller runs its handlers and waits again. Busy: a
// timeout during which the object could not be examined, because another process held its lock all the time.
enum class Status { Ok, Timeout, Interrupted, Destroyed, EndOfFile, Broken, Recovered, Busy };

inline Nanoseconds now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1'000'000'000LL + t.tv_nsec;
}

inline Nanoseconds deadline_after(double seconds) {
    if (seconds > 1e9) return kForever;
    return now() + static_cast<Nanoseconds>(std::max(seconds, 0.0) * 1e9);
}

inline int futex_wake(Word& word, int count) {
    return static_cast<int>(syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0));
}

// Sleeps while `word` is `seen`, until the deadline or for `slice` nanoseconds at most. Sleeps are sliced so
// that a wake-up that was lost with a killed process only delays the other processes.
inline Status futex_wait(Word& word, uint32_t seen, Nanoseconds deadline, Nanoseconds slice) {
    Nanoseconds wait = slice;
    if (deadline != kForever) wait = std::min(wait, deadline - now());
    if (wait <= 0) return Status::Timeout;
    timespec t{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
    if (syscall(SYS_futex, &word, FUTEX_WAIT, seen, &t, nullptr, 0) == 0) return Status::Ok;
    return errno == EINTR ? Status::Interrupted : Status::Ok;
}

// The lengths of the slices of one long wait: short at first, then one second each, so that an idle sleeper
// costs almost nothing.
class Slices {
  public:
    explicit Slices(Nanoseconds first = 100'000'000) : next_(first) {}
    Nanoseconds next() {
        Nanoseconds slice = next_;
        next_ = std::min<Nanoseconds>(next_ * 2, 1'000'000'000);
        return slice;
    }

  private:
    Nanoseconds next_;
};

// Decides for each object, from earlier waits, whether to spin before sleeping. A sleep and a wake-up across
// cores cost 50 us and more, while a spinning reader sees a write in 0.3 us; but spinning through long waits
// takes the processor from the process that is waited for.
class Spin {
  public:
    // `short_waits`: what to expect before the first waits have been measured.
    explicit Spin(bool short_waits = true) : score_(short_waits ? kShort : 0) {}

    template <class Ready>
    bool until(Ready ready, Nanoseconds budget = 50'000) {
        int32_t score = score_.load(std::memory_order_relaxed);
        // After a run of failures only one wait in 32 tries again, to notice when waits become short.
        if (score <= 0 && skipped_.fetch_add(1, std::memory_order_relaxed) % 32 != 31) return false;
        Nanoseconds end = now() + budget;
        do {
            // No PAUSE here: on a virtual machine it exits to the hypervisor (88 us per round trip instead of
            // 2.4 us).
            for (int i = 0; i < 64; ++i) {
                if (ready()) {
                    learn(score, std::min(score + 4, 16));
                    return true;
                }
            }
        } while (now() < end);
        learn(score, std::max(score - 4, 0));
        return false;
    }

  private:
    static constexpr int32_t kShort = 8;
    // Other processes read the neighbouring data of the cache line and should not wait for a store that
    // changes nothing.
    void learn(int32_t before, int32_t now) {
        if (now != before) score_.store(now, std::memory_order_relaxed);
    }

    std::atomic<int32_t> score_;
    std::atomic<uint32_t> skipped_{0};
};

// Some kernels, above all on virtual machines, wake a sleeper on its waker's processor, where it waits until
// the waker sleeps or the load balancer moves it. So a process that woke another yields its processor once in
// a while: a request that wakes several processes, one after another, then takes half the time.
inline void let_others_run() {
    constexpr Nanoseconds kBetweenYields = 200'000;
    static thread_local Nanoseconds next = 0;
    Nanoseconds time = now();
    if (time < next) return;
    next = time + kBetweenYields;
    sched_yield();
}

// Notifies the node's agent of a change to the object that contains `inside`. The agent waits on behalf of
// processes of other nodes.
void ring_agent(const void* inside);

// Sleepers on one word, woken one at a time. `pending` prevents a fast producer from waking a process that
// was already woken and has not run yet. The woken process clears it and passes the wake-up on if there is
// more to take.
struct Sleepers {
    Word word{0};
    Word count{0};
    Word pending{0};
    Word watchers{0};  // number of waiters on other nodes, for which the agent watches

    void notify_one() {
        word.fetch_add(1);
        if (watchers.load() > 0) ring_agent(this);
        pass_on();
    }
    void notify_all() {
        word.fetch_add(1);
        if (watchers.load() > 0) ring_agent(this);
        if (count.load() > 0) futex_wake(word, INT_MAX);
    }
    void pass_on() {
        if (count.load() == 0 || pending.exchange(1) != 0) return;
        if (futex_wake(word, 1) > 0) let_others_run();
    }
    // Sleeps unless `ready` returns true. The caller must check its condition again, whatever this returns.
    template <class Ready>
    Status sleep(Ready ready, Nanoseconds deadline, Nanoseconds slice) {
        uint32_t seen = word.load();
        count.fetch_add(1);
        pending.store(0);  // the process that was to be woken may have been killed
        Status status = ready() ? Status::Ok : futex_wait(word, seen, deadline, slice);
        count.fetch_sub(1);
        pending.store(0);
        return status;
    }
};

}  // namespace dragon
