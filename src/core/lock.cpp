// The slow path of SharedLock: somebody else holds it, or did when it died.
#include "layout.hpp"

namespace dragon {

namespace {

// Most locks are held for less than a microsecond, while a sleep and a wake-up cost 50 and often bring both
// processes to one processor. Looks are rare, so that the holder keeps the word in its cache.
constexpr Nanoseconds kSpins = 15'000, kBetweenLooks = 1'000;

}  // namespace

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
            bool dead = !arena().alive(seen & ~kContended);
            return dead && word_.compare_exchange_strong(seen, self | kContended) ? Status::Recovered
                                                                                  : Status::Timeout;
        }
        Status status = futex_wait(word_, seen, deadline, slice);
        if (status == Status::Interrupted) return status;
        if (now() - start >= slice && word_.load() == seen) {
            if (!arena().alive(seen & ~kContended) && word_.compare_exchange_strong(seen, self | kContended))
                return Status::Recovered;
            slice = std::min<Nanoseconds>(slice * 2, 500'000'000);
        }
    }
}

Status SharedLock::try_to_lock(OwnerId self) {
    if (try_lock(self)) return Status::Ok;
    OwnerId holder = owner();
    return holder && arena().reaped(holder) && take_from_dead(holder, self) ? Status::Recovered
                                                                            : Status::Timeout;
}

bool SharedLock::take_from_dead(OwnerId dead, OwnerId self) {
    uint32_t seen = word_.load();
    return (seen & ~kContended) == dead && word_.compare_exchange_strong(seen, self | (seen & kContended));
}

}  // namespace dragon
