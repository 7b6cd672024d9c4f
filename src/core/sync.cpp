#include "sync.hpp"

namespace dragon {

namespace {

// Waits until `done` returns true (Ok), the object is destroyed, or the deadline.
template <class Done>
Status wait_for(Done done, const std::atomic<uint16_t>& destroyed, Sleepers& sleepers, Spin& spin,
                Nanoseconds deadline) {
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (done()) return Status::Ok;
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [&] { return done() || destroyed.load(); };
        if (spin.until(ready)) continue;
        if (sleepers.sleep(ready, deadline, slices.next()) == Status::Interrupted) return Status::Interrupted;
    }
}

}  // namespace

// ---- lock

Status Lock::acquire(OwnerId self, uint64_t thread, Nanoseconds deadline) {
    if (recursive_ && is_mine(self, thread)) {
        count_.fetch_add(1);
        return Status::Ok;
    }
    if (destroyed.load()) return Status::Destroyed;
    Status status = deadline == 0 ? lock_.try_to_lock(self) : lock_.lock(self, deadline);
    if (status == Status::Ok || status == Status::Recovered) {
        thread_.store(thread, std::memory_order_relaxed);
        if (recursive_) count_ = 1;
    }
    return status;
}

Lock::Release Lock::release(OwnerId self, uint64_t thread) {
    if (recursive_) {
        if (!is_mine(self, thread)) return Release::NotMine;
        if (count_.fetch_sub(1) > 1) return Release::Ok;
        thread_ = 0;
    }
    if (!lock_.unlock()) return Release::NotLocked;
    if (watchers_.load() > 0) ring_agent(this);
    return Release::Ok;
}

// ---- semaphore

bool Semaphore::try_acquire() {
    uint32_t value = value_.load();
    while (value > 0)
        if (value_.compare_exchange_weak(value, value - 1)) return true;
    return false;
}

Status Semaphore::acquire(Nanoseconds deadline) {
    Slices slices;
    bool slept = false;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (try_acquire()) {
            if (slept && value_.load() > 0) sleepers_.pass_on();
            return Status::Ok;
        }
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        auto ready = [this] { return value_.load() > 0 || destroyed.load(); };
        if (spin_.until(ready)) continue;
        if (sleepers_.sleep(ready, deadline, slices.next()) == Status::Interrupted)
            return Status::Interrupted;
        slept = true;
    }
}

bool Semaphore::release(uint32_t count) {
    uint32_t value = value_.load();
    do {
        if (count > bound_ - value) return false;
    } while (!value_.compare_exchange_weak(value, value + count));
    sleepers_.notify_one();
    return true;
}

void Semaphore::destroy() {
    destroyed = 1;
    sleepers_.notify_all();
}

// ---- event

void Event::set() {
    flag_ = 1;
    sleepers_.notify_all();
}

Status Event::wait(Nanoseconds deadline) {
    return wait_for([this] { return flag_.load() != 0; }, destroyed, sleepers_, spin_, deadline);
}

void Event::destroy() {
    destroyed = 1;
    sleepers_.notify_all();
}

// ---- condition

static constexpr char kNoWaiter[] = "no waiter of this condition: it has left, or never entered";

void Condition::lock(Arena& a) {
    // The list is consistent after every instruction: there is nothing to repair.
    if (lock_.hold(a.self())) lock_.repaired();
}

void Condition::recover(Arena& a, OwnerId dead) {
    if (!lock_.settle(dead, a.self())) lock(a);
    // The block of a dead waiter is freed with everything else of its process, so it must be unlinked here.
    uint32_t lost = 0;
    for (Link* link = &head_; *link;) {
        auto* waiter = a.at<Waiter>(*link);
        if (waiter->owner == dead) {
            lost += waiter->notified.load();
            *link = waiter->next;
        } else {
            link = &waiter->next;
        }
    }
    tell(a, lost);
    lock_.unlock();
}

// The offset of a waiter passes through Python and other nodes, so it is checked.
void Condition::check(Arena& a, Offset waiter) const {
    if (!a.is_data(waiter, sizeof(Waiter))) throw ObjectDestroyed(kNoWaiter);
}

Offset Condition::enter(Arena& a, OwnerId owner) {
    Offset block = a.allocate(sizeof(Waiter));
    new (a.at<Waiter>(block)) Waiter{0, owner, {0}};
    a.give(block, owner);
    try {
        lock(a);
    } catch (...) {
        a.give(block, a.self());
        a.free(block);
        throw;
    }
    Link* link = &head_;
    while (*link) link = &a.at<Waiter>(*link)->next;
    *link = block;
    lock_.unlock();
    return block;
}

Status Condition::sleep(Arena& a, Offset waiter, Nanoseconds deadline) {
    check(a, waiter);
    Word& notified = a.at<Waiter>(waiter)->notified;
    Slices slices;
    for (;;) {
        if (destroyed.load()) return Status::Destroyed;
        if (notified.load()) return Status::Ok;
        if (deadline == 0 || now() >= deadline) return Status::Timeout;
        if (futex_wait(notified, 0, deadline, slices.next()) == Status::Interrupted)
            return Status::Interrupted;
    }
}

bool Condition::leave(Arena& a, Offset waiter) {
    check(a, waiter);
    lock(a);
    Link* link = &head_;
    while (*link && *link != waiter) link = &a.at<Waiter>(*link)->next;
    bool found = *link != 0;
    if (found) *link = a.at<Waiter>(waiter)->next;
    lock_.unlock();
    if (!found) throw ObjectDestroyed(kNoWaiter);
    bool notified = a.at<Waiter>(waiter)->notified.load() != 0;
    a.give(waiter, a.self());
    a.free(waiter);
    return notified;
}

uint32_t Condition::notify(Arena& a, uint32_t count) {
    lock(a);
    uint32_t told = tell(a, count);
    lock_.unlock();
    return told;
}

// The caller holds lock_.
uint32_t Condition::tell(Arena& a, uint32_t count) {
    uint32_t told = 0;
    for (Offset w = head_; w && told < count; w = a.at<Waiter>(w)->next) {
        auto* waiter = a.at<Waiter>(w);
        if (waiter->notified.load() || !a.alive(waiter->owner)) continue;
        waiter->notified = 1;
        futex_wake(waiter->notified, 1);
        ++told;
    }
    if (told > 0 && watchers_.load() > 0) ring_agent(this);
    return told;
}

void Condition::destroy(Arena& a) {
    destroyed = 1;
    notify(a, UINT32_MAX);
}

// ---- words

Status Words::wait(uint32_t i, uint64_t value, Nanoseconds deadline) {
    return wait_for([&] { return at(i).load() != value; }, destroyed, sleepers_, spin_, deadline);
}

void Words::destroy() {
    destroyed = 1;
    sleepers_.notify_all();
}

}  // namespace dragon
