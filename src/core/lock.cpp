// The slow paths of SharedLock: another process holds the lock, or held it when it died.
#include "lock.hpp"

#include <string>

#include "layout.hpp"

namespace dragon {

namespace {

// Most locks are held for less than a microsecond, while a sleep and a wake-up cost 50 us and often put both
// processes on one processor. The word is read rarely, so that the holder keeps it in its cache.
constexpr Nanoseconds kSpins = 15'000, kBetweenLooks = 1'000;
// How long a process that cleans up waits for a repair by another process.
constexpr Nanoseconds kRepairs = 200'000'000;

}  // namespace

StillLocked::StillLocked(OwnerId holder)
    : std::runtime_error((holder ? "process " + std::to_string(arena().pid_of(holder)) : "another process") +
                         " holds a lock of the run's shared memory and does not go on; was it stopped?") {}

void (*wait_in_steps)(Attempt, void*) = [](Attempt attempt, void* what) { while (!attempt(what)); };

Status SharedLock::lock_slowly(OwnerId self, Nanoseconds deadline) {
    Nanoseconds time = now();
    for (Nanoseconds end = time + kSpins; time < end;) {
        if (word_.load(std::memory_order_relaxed) == 0 && try_lock(self)) return Status::Ok;
        for (Nanoseconds look = time + kBetweenLooks; time < look;) time = now();
    }
    Nanoseconds slice = 20'000'000;
    for (;;) {
        uint32_t seen = word_.load();
        if (seen == 0) {
            if (word_.compare_exchange_strong(seen, self | kContended)) return Status::Ok;
            continue;
        }
        if (!(seen & kContended) && !word_.compare_exchange_strong(seen, seen | kContended)) continue;
        seen |= kContended;
        Nanoseconds start = now();
        if (start >= deadline) {
            bool dead = !arena().alive(seen & kOwner);
            return dead && take_over(seen, self) ? Status::Recovered : Status::Timeout;
        }
        Status status = futex_wait(word_, seen, deadline, slice);
        if (status == Status::Interrupted) return status;
        if (now() - start >= slice && word_.load() == seen) {
            if (!arena().alive(seen & kOwner) && take_over(seen, self)) return Status::Recovered;
            slice = std::min<Nanoseconds>(slice * 2, 500'000'000);
        }
    }
}

bool SharedLock::hold_slowly(OwnerId self, Nanoseconds most) {
    Bounded bounded(std::min(most, Bounded::limit()));
    Nanoseconds start = now();
    Status status;
    in_steps([&] {
        // The agent also serves other processes, and must not wait for long.
        Nanoseconds limit = std::min(Bounded::limit(), arena().keeps() ? kWaitStep : kForever);
        status = lock(self, now() + std::min(kWaitStep, limit));
        if (status == Status::Ok || status == Status::Recovered) return true;
        if (limit != kForever && now() - start >= limit) throw StillLocked(owner());
        return false;
    });
    return status == Status::Recovered;
}

Status SharedLock::try_to_lock(OwnerId self) {
    if (try_lock(self)) return Status::Ok;
    uint32_t seen = word_.load();
    OwnerId holder = seen & kOwner;
    return holder && arena().reaped(holder) && take_over(seen, self) ? Status::Recovered : Status::Timeout;
}

bool SharedLock::concerns(OwnerId dead) const {
    uint32_t seen = word_.load(std::memory_order_acquire);
    OwnerId holder = seen & kOwner;
    return holder && (holder == dead || (seen & kRepairing) || !arena().alive(holder));
}

bool SharedLock::settle_slowly(OwnerId dead, OwnerId self) {
    for (Nanoseconds end = now() + kRepairs;;) {
        uint32_t seen = word_.load();
        OwnerId holder = seen & kOwner;
        if (!holder) return false;
        if (holder == dead || !arena().alive(holder)) {
            if (take_over(seen, self)) return true;
        } else if (!(seen & kRepairing)) {
            return false;
        } else if (now() >= end) {
            throw StillLocked(holder);
        } else {
            usleep(100);
        }
    }
}

}  // namespace dragon
