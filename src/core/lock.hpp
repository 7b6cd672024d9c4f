// The lock in shared memory, and how long is waited for one.
#pragma once

#include <mutex>
#include <stdexcept>

#include "futex.hpp"

namespace dragon {

using OwnerId = uint32_t;  // a process: slot and generation; 0 is "nobody"
inline constexpr int kOwnerBits = 30;

// A lock that the library takes for itself is held by a process that does not go on: it was stopped.
struct StillLocked : std::runtime_error {
    explicit StillLocked(OwnerId holder = 0);
};

// What a wait without a deadline of its caller's does, a tenth of a second at a time, until it returns true.
using Attempt = bool (*)(void* what);
// How such a wait goes on. The bindings' way lets go of the interpreter meanwhile, and runs signal handlers,
// which may throw.
extern void (*wait_in_steps)(Attempt attempt, void* what);
inline constexpr Nanoseconds kWaitStep = 100'000'000;

template <class F>
void in_steps(F attempt) {
    wait_in_steps([](void* what) { return (*static_cast<F*>(what))(); }, &attempt);
}

// While one of these lives, this thread waits that long at most for locks that the library takes for itself,
// and gets a StillLocked then.
class Bounded {
  public:
    explicit Bounded(Nanoseconds limit) : before_(limit_) { limit_ = limit; }
    Bounded(const Bounded&) = delete;
    ~Bounded() { limit_ = before_; }
    static Nanoseconds limit() { return limit_; }

  private:
    inline static thread_local Nanoseconds limit_ = kForever;
    Nanoseconds before_;
};

// A lock in shared memory: 0, or the id of the owning process, with the top bit set when somebody may sleep
// on it, and the one below while its owner repairs what a dead one left.
class SharedLock {
  public:
    bool try_lock(OwnerId self) {
        uint32_t free = 0;
        return word_.compare_exchange_strong(free, self, std::memory_order_acquire);
    }
    // Recovered: the owner had died and the lock is now ours.
    Status lock(OwnerId self, Nanoseconds deadline = kForever) {
        return try_lock(self) ? Status::Ok : lock_slowly(self, deadline);
    }
    // Locks without a deadline, but for `limit` and that of Bounded: StillLocked then. True: recovered.
    bool hold(OwnerId self, Nanoseconds limit = kForever) {
        return try_lock(self) ? false : hold_slowly(self, limit);
    }
    // Returns false if it was not locked.
    bool unlock() {
        uint32_t old = word_.exchange(0, std::memory_order_release);
        if (old & kContended) futex_wake(word_, 1);
        return old != 0;
    }
    // unlock() of one that nobody sleeps on.
    void release() { word_.store(0, std::memory_order_release); }
    OwnerId owner() const { return word_.load(std::memory_order_acquire) & kOwner; }
    // For whoever goes through what a dead process left. True: it held the lock, which is ours now; or
    // another dead one did, which may have been going through the same. What a live one repairs is waited
    // for: StillLocked where that does not go on.
    bool settle(OwnerId dead, OwnerId self) {
        return word_.load(std::memory_order_acquire) && settle_slowly(dead, self);
    }
    // Whether settle() has anything to do.
    bool concerns(OwnerId dead) const;
    void repaired() { word_.fetch_and(~kRepairing); }
    // Does not wait. Recovered: the owner was known to be dead.
    Status try_to_lock(OwnerId self);

  private:
    static constexpr uint32_t kContended = 1u << 31, kRepairing = 1u << 30, kOwner = kRepairing - 1;
    static_assert(kOwner == (1u << kOwnerBits) - 1);
    Status lock_slowly(OwnerId self, Nanoseconds deadline);
    bool hold_slowly(OwnerId self, Nanoseconds limit);
    bool settle_slowly(OwnerId dead, OwnerId self);
    bool take_over(uint32_t seen, OwnerId self) {
        return word_.compare_exchange_strong(seen, self | kRepairing | (seen & kContended));
    }
    Word word_{0};
};

// A lock of this process's threads. Who waits for it lets the others go on.
class PatientMutex {
  public:
    void lock() {
        if (mutex_.try_lock()) return;
        in_steps([this] {
            for (Nanoseconds end = now() + kWaitStep; now() < end; usleep(50))
                if (mutex_.try_lock()) return true;
            return false;
        });
    }
    void unlock() { mutex_.unlock(); }

  private:
    std::mutex mutex_;
};

}  // namespace dragon
