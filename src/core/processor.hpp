// Which processor a process runs on.
#pragma once

#include <sched.h>

#include <cstdint>

namespace dragon {

using Nanoseconds = int64_t;

inline uint32_t current_processor() { return static_cast<uint32_t>(sched_getcpu()); }

// Kernels that are not told which processors share a cache, on virtual machines above all, wake a sleeper on
// its waker's processor even when others are idle, and both take turns there until the load balancer looks,
// tens of milliseconds later. So this thread, woken by one that runs on `waker`, moves where that is its own
// processor and others are idle, the sooner the shorter it slept; and one that woke another lets that run for
// a moment, once in a while, so that it can.
void was_woken_from(uint32_t waker, Nanoseconds slept);
void woke_another();
// Whether this thread moved a moment ago. What it waits for then comes soon, though it never did before: who
// answers has a processor of its own now.
bool has_just_moved();
void moved_in_vain();  // as it did not come

}  // namespace dragon
