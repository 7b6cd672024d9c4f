// Which processor a process runs on.
#pragma once

#include <sched.h>

#include <cstdint>

namespace dragon {

inline uint32_t current_processor() { return static_cast<uint32_t>(sched_getcpu()); }

// This thread was woken from a sleep by a process that runs on `waker`. Where both share that processor again
// and again although others are idle, the thread moves to another. Kernels that are not told which processors
// share a cache, on virtual machines above all, wake a sleeper where it last ran; both then take turns until
// the load balancer looks, tens of milliseconds later.
void woken_from(uint32_t waker);

}  // namespace dragon
