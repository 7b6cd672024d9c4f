// The lock in shared memory, and the limits of waits for it.
#pragma once

#include <mutex>
#include <stdexcept>

#include "futex.hpp"

namespace dragon {

using OwnerId = uint32_t;  // a process: slot and generation; 0 is "nobody"
inline constexpr int kOwnerBits = 30;

// Thrown when an internal lock of the library is held by a process that does not run, for instance because it
// was stopped.
struct StillLocked : std::runtime_error {
    explicit StillLocked(OwnerId holder = 0);
};

// One step of a wait whose caller set no deadline. It takes at most kWaitStep and returns true when the wait
// has ended.
using Attempt = bool (*)(void* what);
// Repeats such a step. The bindings replace this function by one that releases the interpreter lock meanwhile
// and runs signal handlers, which may throw.
extern void (*wait_in_steps)(Attempt attempt, void* what);
inline constexpr Nanoseconds kWaitStep = 100'000'000;

template <class F>
void in_steps(F attempt) {
    wait_in_steps([](void* what) { return (*static_cast<F*>(what))(); }, &attempt);
}

// While a Bounded exists, its thread waits at most `limit` for the library's internal locks, and then gets a
// StillLocked.
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

// A lock in shared memory. Its word is 0, or the id of the owning process. The top bit is set when a process
// may sleep on the lock, the bit below while the owner repairs what a dead owner left.
class SharedLock {
  public:
    bool try_lock(OwnerId self) {
        uint32_t free = 0;
        return word_.compare_exchange_strong(free, self, std::memory_order_acquire);
    }
    // Recovered: the owner had died; the caller has the lock now and must repair the structure.
    Status lock(OwnerId self, Nanoseconds deadline = kForever) {
        return try_lock(self) ? Status::Ok : lock_slowly(self, deadline);
    }
    // Locks without a deadline. Throws StillLocked after `limit` or the limit of Bounded. Returns true for a
    // recovered lock.
    bool hold(OwnerId self, Nanoseconds limit = kForever) {
        return try_lock(self) ? false : hold_slowly(self, limit);
    }
    // Returns false if it was not locked.
    bool unlock() {
        uint32_t old = word_.exchange(0, std::memory_order_release);
        if (old & kContended) futex_wake(word_, 1);
        return old != 0;
    }
    // Like unlock(), for a lock on which no process sleeps.
    void release() { word_.store(0, std::memory_order_release); }
    OwnerId owner() const { return word_.load(std::memory_order_acquire) & kOwner; }
    // For a process that cleans up after a dead one. Returns true if the lock was held by the dead process,
    // or by another dead process, which may have been cleaning up as well; the caller has the lock then.
    // Waits for a repair by a live process, and throws StillLocked if that repair does not end.
    bool settle(OwnerId dead, OwnerId self) {
        return word_.load(std::memory_order_acquire) && settle_slowly(dead, self);
    }
    // Whether settle() may have something to do.
    bool concerns(OwnerId dead) const;
    void repaired() { word_.fetch_and(~kRepairing); }
    // Does not wait. Recovered: the owner was already reaped.
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

// A lock between the threads of this process. A thread that waits for it lets other threads run (see
// in_steps).
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
